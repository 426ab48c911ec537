"""`poetopt inspect` and `poetopt grad`: what a model consists of, and its training graph."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from poetopt.cli.console import check_outputs, say, write_json
from poetopt.cli.options import (
    BATCH,
    LOSS,
    PARTS,
    READING,
    RUNTIME,
    STATISTICS,
    UPDATES,
    JsonOption,
    ModelArgument,
    sharing,
)
from poetopt.util.errors import ModelError


@sharing(BATCH, PARTS, STATISTICS, *READING, *LOSS, *UPDATES, RUNTIME)
def inspect(
    model: ModelArgument,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME|FILE", help="Compare with what this device has.")
    ] = None,
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Show what a model consists of and what training it takes, without solving anything."""
    from poetopt.api.inspection import inspect as look

    check_outputs([model], {"--json": json})
    options.pop("fuse")
    found = look(model, device=device, **options)
    write_json(found.to_dict(), json)
    say(str(found), unless=[json])
    return 0


@sharing(BATCH, PARTS, STATISTICS, *READING, *LOSS, *UPDATES)
def grad(
    model: ModelArgument,
    out: Annotated[str, typer.Option("-o", "--out", metavar="TRAIN.onnx", help="Write the training graph there.")],
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Write the training graph (forward, loss, backward, and updates with --optimizer) as one standard ONNX file."""
    import poetopt as po
    from poetopt.api.problems import READ
    from poetopt.frontends.proto import save_model
    from poetopt.frontends.summary import summary

    check_outputs([model], {"-o": out, "--json": json})
    loaded = po.load(model, **{name: options.pop(name) for name in READ})
    if not isinstance(loaded, po.Model):
        raise ModelError(
            f"{model}: a problem file has sizes and costs only, and no network to write; give an ONNX model"
        )
    graph = loaded.training_graph(**options)
    save_model(graph.joint, out)
    document = {"loss": graph.loss_kind, "gradients": dict(graph.gradients), "states": dict(graph.states)}
    joint = graph.joint
    if graph.optimizer != "none":
        document |= {
            "optimizer": graph.optimizer,
            "hyperparameters": {n: joint.values[tensor].item() for n, tensor in graph.hyperparameters.items()},
            "carried": dict(joint.carried),
        }
    write_json({**summary(joint), **document}, json)
    made = f"{len(graph.gradients)} gradients"
    if graph.optimizer != "none":
        made = f"{len(graph.trained)} parameters updated by {graph.optimizer}"
    lines = [
        f"{out}: {len(joint.operators)} operators; loss {graph.loss_kind}, {made}, "
        f"{len(graph.states)} updated statistics; inputs {', '.join(graph.inputs)}"
    ]
    if graph.hyperparameters:
        defaults = (f"{tensor} ({joint.values[tensor].item():g})" for tensor in graph.hyperparameters.values())
        lines.append(f"  each step   also takes {', '.join(defaults)}")
        lines.append(f"  carried     {len(joint.carried)} tensors: feed each as `name` what came out as `name.new`")
    elif graph.states:
        pairs = [f"{old} -> {new}" for old, new in graph.states.items()]
        shown = ", ".join(pairs[:2]) + (f", ... ({len(pairs)} in --json)" if len(pairs) > 2 else "")
        lines.append(f"  statistics  before -> after the step: {shown}")
    lines += [f"  note        {note}" for note in graph.notes]
    say("\n".join(lines), unless=[json])
    return 0
