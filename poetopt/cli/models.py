"""`poetopt inspect` and `grad`: the contents of a model, and its training graph.

`poetopt lora` and `quantize` prepare a language model for training. `poetopt formulations`, `devices` and `zoo` list
the
choices.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

import poetopt as po
from poetopt import zoo as networks
from poetopt.api.options import READ
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
    Option,
    sharing,
)
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.files import write_atomically
from poetopt.util.text import closest
from poetopt.util.units import show_bytes


def formulations(
    show: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="One formulation or block: its mathematics in full.",
        ),
    ] = None,
    json: JsonOption = None,
) -> int:
    """List the installed formulations and blocks, or show the mathematics of one."""
    from poetopt.report.mathematics import catalogue, listing, page

    check_outputs([], {"--json": json})
    entries = catalogue(show)
    write_json(entries[0].to_dict() if show else {"formulations": [entry.to_dict() for entry in entries]}, json)
    say(page(entries[0]) if show else listing(entries), unless=[json])
    return 0


def devices(
    show: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="One device: each figure with its source."),
    ] = None,
    json: JsonOption = None,
) -> int:
    """List the known devices, or show one with the sources of its figures."""
    from poetopt.report.catalogue import device_document, device_lines, table_lines

    check_outputs([], {"--json": json})
    shown = [po.devices.device(name) for name in ([show] if show else po.devices.names())]
    documents = [device_document(device) for device in shown]
    write_json(documents[0] if show else {"devices": documents}, json)
    say("\n".join(device_lines(shown[0]) if show else table_lines(shown)), unless=[json])
    return 0


@sharing(BATCH)
def zoo(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A network; without one, they are listed."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="FILE.onnx", help="Write the network there.")
    ] = None,
    **options: Any,
) -> int:
    """List the built-in networks, or write one as an ONNX file."""
    if name is None:
        if out is not None:
            raise OptionError(f"-o {out}: the network is missing. Give one of {', '.join(networks.names())}")
        from poetopt.report.layout import columns

        say("\n".join(columns([(known, networks.ZOO[known].about) for known in networks.names()])))
        return 0
    if name not in networks.names():
        raise ModelError(f"no such network: {name!r}{closest(name, networks.names())}; `poetopt zoo` lists them")
    if out is None:
        raise OptionError(f"the file for {name} is missing. Give it, as in: poetopt zoo {name} -o {name}.onnx")
    check_outputs([], {"-o": out})
    write_atomically(out, networks.build(name, options["batch"]).SerializeToString())
    say(f"{out}: {networks.ZOO[name].about}")
    return 0


@sharing(
    Option("out", str, ..., "FILE.onnx", "Write the network there.", None, "-o --out"),
    Option("rank", int | None, None, "R", "Columns of a pair; default: 8.", None),
    Option(
        "targets", str | None, None, "PATTERNS", "Weights or nodes that get a pair; default: *q_proj,*v_proj.", None,
    ),
    Option("alpha", float | None, None, "A", "Weight of a pair, times its rank; default: the rank.", None),
    Option("merge", bool, False, "", "Merge trained pairs into the weights beside them.", None),
)  # fmt: skip
def lora(model: ModelArgument, **options: Any) -> int:
    """Add LoRA's pairs to some products of a network, so that only these are trained; or merge them."""
    from poetopt.frontends.proto import PARAMETERS

    out, merge = options.pop("out"), options.pop("merge")
    check_outputs([model], {"-o": out})
    settings = {name: value for name, value in options.items() if value is not None}
    if merge:
        if settings:
            raise OptionError(f"--merge, --{next(iter(settings))}: the file defines the pairs. Leave the option out.")
        po.merge_lora(model, out=out)
        say(f"{out}: the pairs are merged into the weights")
        return 0
    adapted = po.lora(model, out=out, **settings)
    trained = next(entry.value for entry in adapted.metadata_props if entry.key == PARAMETERS).split("\n")
    numbers = sum(math.prod(one.dims) for one in adapted.graph.initializer if one.name in trained)
    say(f"{out}: pairs beside {len(trained) // 2} of its products, {numbers:,} numbers to train; all others are frozen")
    return 0


@sharing(
    Option("out", str, ..., "FILE.onnx", "Write the network there.", None, "-o --out"),
    Option("kind", str, "int4", "int4|int8", "Type of the quantized weights.", None),
    Option(
        "block", int | None, None, "N", "Number of weights with a common scale; default: 32 of int4, 64 of int8.", None,
    ),
)  # fmt: skip
def quantize(model: ModelArgument, **options: Any) -> int:
    """Write a network whose frozen matrices and tables are integers of 4 or 8 bits."""
    out, kind = options["out"], options["kind"]
    check_outputs([model], {"-o": out})
    quantized = po.quantize(model, **options)
    size = sum(one.ByteSize() for one in quantized.graph.initializer)
    say(f"{out}: {show_bytes(size)} of weights; those of products and tables are {kind}")
    return 0


@sharing(BATCH, PARTS, STATISTICS, *READING, *LOSS, *UPDATES, RUNTIME)
def inspect(
    model: ModelArgument,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME|FILE", help="Compare with the RAM of this device.")
    ] = None,
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Show what a model consists of and what its training needs, without solving anything."""
    check_outputs([model], {"--json": json})
    inspection = po.inspect(model, device=device, **options)
    write_json(inspection.to_dict(), json)
    say(inspection.text(after=f"poetopt solve {model} --device {device or 'a72'} -o plan.json"), unless=[json])
    return 0


@sharing(BATCH, PARTS, STATISTICS, *READING, *LOSS, *UPDATES)
def grad(
    model: ModelArgument,
    out: Annotated[str, typer.Option("-o", "--out", metavar="TRAIN.onnx", help="Write the training graph there.")],
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Write the training graph (forward, loss, backward, and updates with --optimizer) as one ONNX file."""
    from poetopt.frontends.proto import save_model
    from poetopt.frontends.summary import summary
    from poetopt.report.layout import table

    check_outputs([model], {"-o": out, "--json": json})
    loaded = po.load(model, **{name: options.pop(name) for name in READ})
    if not isinstance(loaded, po.Model):
        raise ModelError(
            f"{model}: a problem file has only sizes and costs, and no network to write. Give an ONNX model."
        )
    graph = loaded.training_graph(**options)
    save_model(graph.joint, out)
    document = {"loss": graph.loss_kind, "gradients": dict(graph.gradients), "states": dict(graph.states)}
    joint = graph.joint
    if graph.optimizer != "none":
        document |= {
            "optimizer": graph.optimizer,
            "hyperparameters": {n: joint.values[tensor].item() for n, tensor in graph.hyperparameters.items()},
        }
    if joint.carried:
        document["carried"] = dict(joint.carried)
    write_json({**summary(joint), **document}, json)
    results = f"{len(graph.gradients)} gradients"
    if graph.optimizer != "none":
        results = f"{len(graph.trained)} parameters updated by {graph.optimizer}"
    title = (
        f"{out}: {len(joint.operators)} operators; loss {graph.loss_kind}, {results}, "
        f"{len(graph.states)} updated statistics; inputs {', '.join(graph.inputs)}"
    )
    rows: list[tuple[str, str]] = []
    if graph.hyperparameters:
        defaults = (f"{tensor} ({joint.values[tensor].item():g})" for tensor in graph.hyperparameters.values())
        rows.append(("each step", f"also takes {', '.join(defaults)}"))
    if joint.carried:
        old, new = next(iter(joint.carried.items()))
        count = len(joint.carried)
        rows.append(("carried", f"{count} tensors: feed the new value of each into the next step, as {new} for {old}"))
    rows += [("note", str(note)) for note in graph.notes]
    say(table(title, rows), unless=[json])
    return 0
