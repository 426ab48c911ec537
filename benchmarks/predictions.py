"""What programs in C predict after some steps of training, beside the written file in onnxruntime, row by row.

    python -m benchmarks.predictions [--on host|cortex-m4] [--output FILE.md]

Each plan is emitted, compiled and run with just its RAM. `po_predict` answers held-out rows by what the steps left;
*file* is what `train --on ... -o` wrote, evaluated by onnxruntime alone. Rows on which the class differs are counted.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import poetopt as po
from benchmarks.output import put
from poetopt import zoo
from poetopt.backends.step.places import graph_of
from poetopt.zoo.network import Network

ROWS, HELD_OUT = 8, 24
CASES = (
    ("lenet", "100%"), ("lenet", "64 KB paged"), ("ds-cnn", "40%"), ("ds-cnn", "64 KB paged"),
    ("ds-cnn", "16 KB paged"), ("resnet8", "40%"), ("resnet8", "64 KB paged"), ("conv1d", "100%"),
    ("conv1d", "6 KB paged"), ("mobilenetv1-025", "256 KB paged"),
)  # fmt: skip
"""Networks, and RAM: of the schedule alone, or of all where parameters are paged."""


def conv1d() -> onnx.ModelProto:
    """Two convolutions with BatchNormalization over 64 samples of six sensors, Dropout, four classes."""
    net = Network("conv1d", 3)
    x = net.input("input", (1, 6, 64))
    for k, (before, after) in enumerate(((6, 12), (12, 16)), 1):
        weight = net.he(f"conv{k}.weight", (after, before, 5), before * 5)
        x = net.add("Conv", [x, weight], f"conv{k}", kernel_shape=[5], pads=[2, 2], strides=[2])
        x = net.relu(net.batch_norm(x, f"bn{k}", after), f"relu{k}")
    ratio, on = net.constant("ratio", np.array(0.3, np.float32)), net.constant("on", np.array(True))
    x = net.add("Dropout", [net.add("Flatten", [x], "flatten", axis=1), ratio, on], "drop", seed=1)
    return net.model(net.linear(x, "fc", 256, 4), (1, 4))


def measured(name: str, ram: str, on: str, folder: Path) -> list[str]:
    """A row of the table."""
    model = conv1d() if name == "conv1d" else zoo.build(name, 1)
    parameters = "paged" if ram.endswith("paged") else "resident"
    plan = po.solve(
        model,
        device="m4",
        ram=ram.removesuffix(" paged").replace(" ", ""),
        parameters=parameters,
        optimizer="sgd",
        time_limit="20s",
        threads=1,
    ).plan
    assert plan is not None
    graph, rng = graph_of(plan), np.random.default_rng(0)
    inputs = [graph.tensors[n] for n in graph.inputs if n not in graph.added_inputs]
    classes = graph.tensors[graph.outputs[0]].shape[1]

    def rows(count: int) -> dict[str, object]:
        drawn = {t.name: rng.standard_normal((count, *t.shape[1:]), np.float32) for t in inputs}
        return drawn | {name: rng.integers(0, classes, count) for name in graph.added_inputs}

    train, held_out = rows(ROWS), rows(HELD_OUT)
    out = folder / f"{name}.onnx"
    ended = po.fit_on(plan, on, train, hyperparameters={"lr": 0.01}, validate=held_out, out=out, model=model)
    predicted = ended.steps.predicted
    assert predicted is not None
    mine = next(iter(predicted.outputs.values()))
    mine = mine.reshape(-1, *mine.shape[2:])
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    places = range(HELD_OUT)
    fed = [{t.name: np.asarray(held_out[t.name])[k : k + 1] for t in inputs} for k in places]
    theirs = np.concatenate([np.asarray(session.run(None, one)[0]) for one in fed])
    steps = ended.steps
    assert steps.ok, steps.message
    return [
        name, ram, f"{steps.arena_bytes:,}", f"{predicted.arena_bytes:,}",
        f"{steps.linked_ram_bytes:,} / {steps.planned_ram_bytes:,}" if steps.linked_ram_bytes else "-",
        f"{predicted.distance:.1e} / {5 * predicted.sensitivity:.1e}",
        f"{int((mine.argmax(1) != theirs.argmax(1)).sum())} of {HELD_OUT}",
        f"{np.abs(mine - theirs).max():.1e}",
    ]  # fmt: skip


HEAD = (
    "network", "RAM", "arena, B", "of it po_predict, B", "linked / planned, B", "from onnxruntime / allowed",
    "classes that differ from the file's", "largest difference",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="cortex-m4")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    lines = [f"# po_predict on {given.on}", "", f"    python -m benchmarks.predictions --on {given.on}", ""]
    lines += [f"Batches of one, {ROWS} steps of sgd, {HELD_OUT} rows held out.", ""]
    lines += ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    with tempfile.TemporaryDirectory() as folder:
        for name, ram in CASES:
            lines.append("| " + " | ".join(measured(name, ram, given.on, Path(folder))) + " |")
            print(lines[-1], flush=True)
    put(lines, given.output)


if __name__ == "__main__":
    main()
