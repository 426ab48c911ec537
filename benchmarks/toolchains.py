"""Programs of one plan by each compiler of bare boards: bytes of code, the stack, instructions, bits.

    python -m benchmarks.toolchains [NETWORK ...] [--output benchmarks/results/toolchains.md]

A step of one row with SGD is planned for the RAM of a device of each core. What `emit` writes of it, po_predict with
it, is compiled by arm-none-eabi-gcc and by pip's zig, and runs on an emulated core that has just the plan's RAM:
po_load, which sums up what the storage has, one step, and the writing of its results. Bytes; code is without weights.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import poetopt as po
from benchmarks.output import put
from poetopt.backends.c.build import build, write
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import Ran, run
from poetopt.backends.c.targets import TARGETS, compilers
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.step.places import graph_of
from poetopt.search.predicting import prediction_of

NETWORKS = ("lenet", "ds-cnn", "resnet8")
CORES = {"m0": "cortex-m0plus", "m4": "cortex-m4", "stm32f767": "cortex-m7"}
"""Targets by the device whose RAM a step is planned for."""
SECONDS = 20
"""For one search."""
HEADING = (
    "| network | core | compiler | code | stack at most, by the code | taken by the run | set aside | its instructions "
    "| same bits |"
)


def rows(network: str, device: str) -> Iterator[str]:
    """A row for each compiler."""
    core = TARGETS[CORES[device]]
    report = po.solve(network, batch=1, device=device, optimizer="sgd", time_limit=SECONDS, threads=1)
    assert report.plan is not None, report
    graph = graph_of(report.plan)
    program = device_program(report.plan, graph, prediction=prediction_of(report.plan, graph))
    first: Ran | None = None
    for by in compilers(core):
        with tempfile.TemporaryDirectory() as place:
            write(program, core, Path(place))
            built = build(program, core, Path(place), by=by)
            ran = run(built, random_batch(graph, 0))
        assert built.stack is not None
        assert built.sizes is not None
        first = first or ran
        same = all(ran.results[name].tobytes() == array.tobytes() for name, array in first.results.items())
        cells = (
            network,
            core.name,
            by.name,
            f"{built.sizes.code_bytes:,}",
            f"{built.stack.nbytes:,}",
            f"{ran.stack_bytes:,}",
            f"{built.stack_reserved_bytes:,}",
            f"{ran.instructions:,}",
            "yes" if same else "OTHERS",
        )
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    head = [*(__doc__ or "").splitlines(), "", HEADING, f"|{'---|' * HEADING.count(' | ')}---|"]
    found: list[str] = []
    for network in given.networks:
        for device in CORES:
            found += rows(network, device)
            put([*head, *found], given.output)


if __name__ == "__main__":
    main()
