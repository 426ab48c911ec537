"""What it takes to search for streamed runs as well where ordinary runs have a proven plan: seconds of processor.

    .venv/bin/python -m benchmarks.streaming_cost [--only SUBSTRING]... [--output FILE.md]

Each cell is solved twice, one right after the other, each in a fresh process, as a user would: `--with stream=never`,
then with operators that may stream. Seconds are of the processor (user and system, all threads), imports and reading
the model included, so that other work on the machine counts little.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cells import EndedError, figure, measured, name_of, table

HEADING = (
    "| network | batch | device | optimizer | total RAM, B | never: J | gap, kind | s | auto: J | gap, kind | s "
    "| streamed runs | times never's s |"
)
LIMIT_S = 60.0
GAP = 1e-3
HERE = "benchmarks.streaming_cost"


@dataclass(frozen=True)
class Cell:
    """One problem, and whether its operators may stream."""

    network: str
    batch: int
    device: str
    optimizer: str
    total: int
    stream: str = "never"


def cells() -> Iterator[Cell]:
    """The table, in order."""
    for total in (200_715, 212_522, 230_000, 256_000):
        yield Cell("lenet", 1, "m4", "sgd", total)
    yield Cell("lenet", 8, "m4", "sgd", 300_000)
    for network, batch, total in (("lenet", 8, 256_000), ("autoencoder", 1, 600_000), ("resnet8", 1, 500_000)):
        yield Cell(network, batch, "esp32-s3", "sgd", total)
    for total in (205_000, 240_000, 260_000):
        yield Cell("lenet", 1, "rp2040", "sgd", total)
    yield Cell("mlp", 1, "m4", "sgd", 850_000)
    yield Cell("mlp", 1, "rp2040", "sgd", 900_000)
    for total in (400_000, 700_000):
        yield Cell("ds-cnn", 1, "m4", "sgd", total)
    for total in (436_233, 900_000):
        yield Cell("autoencoder", 1, "m4", "sgd", total)
    yield Cell("resnet8", 1, "m4", "sgd", 800_000)
    for network, total in (("resnet18-cifar", 80_000_000), ("vgg16-cifar", 60_000_000), ("vgg16-cifar", 75_000_000)):
        yield Cell(network, 8, "a72", "sgd", total)


def measure(cell: Cell) -> dict[str, Any]:
    """Solve one cell in this process."""
    import poetopt as po

    begin = time.perf_counter()
    try:
        report = po.solve(
            cell.network,
            batch=cell.batch,
            device=cell.device,
            optimizer=cell.optimizer,
            total_ram=cell.total,
            parameters="paged",
            stream=cell.stream,
            time_limit=LIMIT_S,
            gap=GAP,
        )
        found = report.to_dict()
    except (po.util.errors.InfeasibleError, po.util.errors.NoScheduleError) as error:
        found = dict(error.report or {})
    used = resource.getrusage(resource.RUSAGE_SELF)
    return found | {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.perf_counter() - begin}


def pair(never: Cell) -> str:
    """The row of a cell: without streamed runs, and with them."""
    try:
        found = [measured(HERE, cell) for cell in (never, replace(never, stream="auto"))]
    except EndedError as error:
        return f"| {name_of(never)} | {error} |"
    told = [never.network, str(never.batch), never.device, never.optimizer, f"{never.total:,}"]
    for row in found:
        kind = f"{figure(row, 'overhead_gap', '.2%')}, {row.get('scope')}"
        told += [figure(row, "overhead_j", ".6g"), kind, f"{row['cpu_s']:.1f}"]
    told += [figure(found[1], "streamed_runs", "d"), f"{found[1]['cpu_s'] / found[0]['cpu_s']:.2f}"]
    return f"| {' | '.join(told)} |"


def main() -> None:
    table(__doc__, Cell, measure, HEADING, cells(), pair)


if __name__ == "__main__":
    main()
