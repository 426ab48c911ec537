"""A batch in parts: the number of parts with the least energy, at totals of RAM that the whole batch exceeds or fills.

    .venv/bin/python -m benchmarks.micro_batches [--only SUBSTRING]... [--output FILE.md]

Each row is one `po.solve(network, batch=8, micro_batch="auto", total_ram=...)` in a fresh process, as a user would.
Parameters, gradients and their sums are in the total, paged where it has no room for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.cells import figure, row_of, table

PARTS = (1, 2, 4, 8)
HEADING = (
    "| network | device | total RAM, B | taken, B | parts | energy, J | gap of the overhead "
    f"| {' | '.join(f'{parts} x {8 // parts}, J' for parts in PARTS)} | written, B | s |"
)


@dataclass(frozen=True)
class Cell:
    """One row: what is asked."""

    network: str
    device: str
    total: int
    limit_s: float


def cells() -> Iterator[Cell]:
    """The table, in order."""
    for device in ("m4", "a72"):
        for total in (524_288, 262_144, 131_072):
            yield Cell("lenet", device, total, 240)


def measure(cell: Cell) -> dict[str, Any]:
    """Solve one cell in this process."""
    begin = time.perf_counter()
    import poetopt as po

    try:
        found = po.solve(
            cell.network,
            batch=8,
            micro_batch="auto",
            device=cell.device,
            total_ram=cell.total,
            time_limit=cell.limit_s,
        ).to_dict()
    except (po.util.errors.InfeasibleError, po.util.errors.NoScheduleError) as error:
        found = {**(error.report or {}), "none": str(error)}
    found["seconds"] = time.perf_counter() - begin
    return found


def line(cell: Cell, row: dict[str, Any]) -> str:
    """The table's row."""
    tried = {one["micro_batches"]: one for one in row.get("micro_batches_tried") or ()}
    best = row["micro_batches"] if "none" not in row else "none fits"
    found = (
        cell.network,
        cell.device,
        f"{cell.total:,}",
        "-" if "none" in row else figure(row, "total_ram_bytes", ",d"),
        str(best),
        figure(row, "energy_j", ".4g"),
        figure(row, "overhead_gap", ".3%"),
        *(_of_parts(tried.get(parts)) for parts in PARTS),
        figure(row, "bytes_written", ",d"),
        f"{row['seconds']:.1f}",
    )
    return f"| {' | '.join(found)} |"


def _of_parts(one: dict[str, Any] | None) -> str:
    """Energy of a number of parts, and what is proven of it; a dash where it has no plan."""
    if one is None or one["energy_j"] is None:
        return "-"
    return f"{one['energy_j']:.4g} (>= {one['energy_bound_j']:.4g})"


def main() -> None:
    table(__doc__, Cell, measure, HEADING, cells(), partial(row_of, "benchmarks.micro_batches", line))


if __name__ == "__main__":
    main()
