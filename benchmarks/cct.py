"""Training steps that another project publishes, planned and run in C beside the parameters that its own step left.

    python -m benchmarks.cct --folder CASES [--on host|cortex-m4] [--ram 256KB] [--output FILE.md]

CASES has a folder for each: `network_infer.onnx`, `inputs.npz` and `outputs.npz` (pulp-platform/Deeploy's CCT2, whose
step is gradient descent at a rate of 0.01). What is trained is what `outputs.npz` has. Batch 1, all of a step within
the RAM, parameters on storage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import poetopt as po
from benchmarks.output import put
from poetopt.backends.c.execute import train_on
from poetopt.backends.step.places import graph_of
from poetopt.plan.simulate import simulate
from poetopt.search.predicting import prediction_of

LR, AFTER = 0.01, "_updated"
HEAD = ("step", "trained", "RAM linked / planned, B", "overhead", "largest difference", "largest change", "outputs")


def measured(folder: Path, on: str, ram: str) -> list[str]:
    """A row of the table."""
    theirs = {name.removesuffix(AFTER): array for name, array in np.load(folder / "outputs.npz").items()}
    given = dict(np.load(folder / "inputs.npz"))
    report = po.solve(
        folder / "network_infer.onnx",
        device="m4",
        total_ram=ram,
        train=[*theirs],
        optimizer="sgd",
        time_limit="60s",
        threads=1,
    )
    assert report.plan is not None
    graph = graph_of(report.plan)
    batch = {name: given["labels" if name in graph.added_inputs else "input"] for name in graph.inputs}
    ended = train_on(report.plan, on, 1, LR, data=batch, predict=prediction_of)
    assert ended.ok, ended.message
    assert ended.predicted is not None
    before = graph.joint.values
    return [
        folder.name,
        f"{len(theirs)} tensors",
        f"{ended.linked_ram_bytes:,} / {ended.planned_ram_bytes:,}" if ended.linked_ram_bytes else "-",
        f"{simulate(report.plan).overhead_j:.3g} J",
        f"{max(float(np.abs(ended.values[n] - array).max()) for n, array in theirs.items()):.1e}",
        f"{max(float(np.abs(before[n] - array).max()) for n, array in theirs.items()):.1e}",
        f"{ended.predicted.distance:.1e} from onnxruntime's, {5 * ended.predicted.sensitivity:.1e} allowed",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--on", default="cortex-m4")
    parser.add_argument("--ram", default="256KB")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    lines = [f"# A peer's training steps in {asked.ram} on {asked.on}", ""]
    lines += [f"    python -m benchmarks.cct --folder CASES --on {asked.on} --ram {asked.ram}", ""]
    lines += ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for folder in sorted(path.parent for path in asked.folder.glob("*/network_infer.onnx")):
        lines.append("| " + " | ".join(measured(folder, asked.on, asked.ram)) + " |")
        print(lines[-1], flush=True)
    put(lines, asked.output)


if __name__ == "__main__":
    main()
