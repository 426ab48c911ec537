"""All of training in the RAM: least energy of a step whose parameters, states and gradients are in the budget.

    .venv/bin/python -m benchmarks.whole_memory [--only SUBSTRING]... [--output FILE.md]

Each cell runs in a fresh process, as a user would: `po.solve(network, batch=1, device=..., total_ram=...)`. `half` is
half of what ordinary training takes: parameters, their gradients, optimizer states and the store-all peak. Overhead is
energy above one compute of each operator; seconds include imports and reading the model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.cells import figure, row_of, table

HERE = "benchmarks.whole_memory"
HEADING = (
    "| network | device | runtime | optimizer | total RAM, B | taken, B | overhead, J | bound, J | gap | wanted J "
    "| status, kind | page-ins / recomputes | written, B | s |"
)


@dataclass(frozen=True)
class Cell:
    """One row: what is asked, and the overhead that is wanted of it, where one is."""

    network: str
    device: str
    runtime: str
    optimizer: str
    total: int
    limit_s: float
    gap: float
    want_j: float | None = None


def cells() -> Iterator[Cell]:
    """The table, in order. A total of 0 is half of what ordinary training takes."""
    for total, want_j in ((300_000, 0.0084), (201_028, 0.2419)):
        yield Cell("lenet", "m4", "c", "sgd", total, 30, 1e-6, want_j)
    for optimizer, want_j in (("momentum", 0.2436), ("adam", 0.4828)):
        yield Cell("lenet", "m4", "c", optimizer, 256_000, 30, 1e-3, want_j)
    for total, want_j in ((9_607_340, 43.12), (11_528_808, 38.1)):
        yield Cell("resnet18-cifar", "m4", "c", "sgd", total, 60, 1e-3, want_j)
    for network in ("mobilenetv2", "resnet50", "bert-base", "gpt2-small"):
        for optimizer in ("sgd", "adam"):
            yield Cell(network, "a72", "onnxruntime", optimizer, 0, 180, 3e-2)


def measure(cell: Cell) -> dict[str, Any]:
    """Solve one cell in this process."""
    begin = time.perf_counter()
    import poetopt as po

    total = cell.total or _half(cell)
    begin = begin if cell.total else time.perf_counter()
    try:
        report = po.solve(
            cell.network,
            batch=1,
            device=cell.device,
            runtime=cell.runtime,
            optimizer=cell.optimizer,
            total_ram=total,
            parameters="paged",
            time_limit=cell.limit_s,
            gap=cell.gap,
        )
        found = report.to_dict()
    except (po.util.errors.InfeasibleError, po.util.errors.NoScheduleError) as error:
        found = dict(error.report or {})
    found["asked_total"], found["seconds"] = total, time.perf_counter() - begin
    return found


def _half(cell: Cell) -> int:
    """Half of what ordinary training takes, in bytes."""
    import poetopt as po
    from poetopt.graph import Role

    plain = po.load(cell.network, batch=1).differentiate().cost(cell.device, runtime=cell.runtime)
    graph = plain.graph
    assert graph is not None
    of_parameters = sum(t.nbytes for t in graph.tensors.values() if t.role is Role.PARAMETER)
    states = {"adam": 2, "adamw": 2, "momentum": 1}.get(cell.optimizer, 0)
    return (plain.resident_bytes + states * of_parameters + po.store_all_peak_bytes(plain)) // 2


def kind(row: dict[str, Any]) -> str:
    """What is proven, or why there is no schedule."""
    return f"{row.get('status')}, {row.get('scope')}" if row.get("overhead_j") is not None else str(row.get("reason"))


def line(cell: Cell, row: dict[str, Any]) -> str:
    """The table's row."""
    number = partial(figure, row)
    found = (
        cell.network,
        cell.device,
        cell.runtime,
        cell.optimizer,
        f"{row['asked_total']:,}" + ("" if cell.total else " (half)"),
        number("total_ram_bytes", ",d"),
        number("overhead_j", ".6g"),
        number("overhead_bound_j", ".6g"),
        number("overhead_gap", ".3%"),
        "-" if cell.want_j is None else f"{cell.want_j:g}",
        kind(row),
        f"{row.get('page_ins')} / {row.get('recomputes')}",
        number("bytes_written", ",d"),
        f"{row['seconds']:.1f}",
    )
    return f"| {' | '.join(found)} |"


def main() -> None:
    table(__doc__, Cell, measure, HEADING, cells(), partial(row_of, HERE, line))


if __name__ == "__main__":
    main()
