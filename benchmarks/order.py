"""What searching for an order of the operators wins over the given one, and whether less RAM suffices then.

    .venv/bin/python -m benchmarks.order [--only SUBSTRING]... [--limit SECONDS] [--output FILE.md]

Each cell is `poetopt solve --order search` within the limit, of which the given order and the one found get a third
each. `proven` is what no schedule of the given order has, within the same scope. A cell `least` recomputes only and
asks for 5 % less RAM than the least with a schedule known in the given order, or for what any schedule needs if that
is more. Names in underscores are problem files in the shared instances. `free` is how many operators could move at all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import poetopt as po
from poetopt.diagnosis.minimum_budget import least_ram
from poetopt.diagnosis.whole import solve_whole
from poetopt.engine.solution import Options, OrderFound, Solution
from poetopt.orders.precedence import Precedence
from poetopt.orders.solve import solve_ordered
from poetopt.problem import Problem
from poetopt.units import show_share

ROOT = Path(__file__).resolve().parents[1]
INSTANCES = ROOT.parent / "shared" / "instances"
HEADING = (
    "| problem | device | RAM | free | given J | bound J | used J | bound J | gain | proven | moves | judged "
    "| ended by | total s |"
)
LESS = 0.95
"""Of the least RAM known in the given order, what a cell `least` asks for."""


@dataclass(frozen=True)
class Cell:
    """One row; without a share of the store-all peak it asks for less RAM than the given order is known to do with."""

    problem: str
    device: str
    share: float | None = None

    def __str__(self) -> str:
        ram = "least" if self.share is None else f"{self.share:.0%}"
        return f"{self.problem} {self.device} {ram}"


def cells() -> Iterator[Cell]:
    """The table, in order."""
    for problem, devices, budgets in (
        ("bert-tiny", ("m4", "a72"), (0.6, 0.4)),
        ("vgg16-cifar", ("m4", "a72"), (0.6,)),
        ("resnet18-cifar", ("m4", "a72"), (0.3,)),
        ("mobilenetv2", ("m4",), (0.5,)),
        ("lenet", ("m4",), (0.97,)),
        ("exact_resnet18_cifar", ("m4",), (0.25,)),
        ("resnet18_cifar", ("m4",), (0.3,)),
        ("bert", ("m4",), (0.3,)),
    ):
        yield from (Cell(problem, device, share) for device in devices for share in budgets)
    for problem in ("bert-tiny", "vgg16-cifar", "resnet18-cifar", "exact_resnet18_cifar", "lenet"):
        yield Cell(problem, "m4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="cells whose name contains this")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a cell")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = [HEADING, "|" + "---|" * HEADING.count(" | ") + "---|"]
    for cell in cells():
        if not options.only or any(text in str(cell) for text in options.only):
            row = measured(cell, options.limit)
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
            if options.output:
                options.output.write_text("\n".join(rows) + "\n")
    print("\n".join(rows))


def measured(cell: Cell, limit_s: float) -> str:
    """Solve one cell; its row."""
    file = INSTANCES / f"{cell.problem}.json"
    if "_" in cell.problem or cell.problem == "bert":
        if not file.exists():
            return f"| {cell.problem} | {cell.device} | skipped: no such file |"
        problem = po.load(file).differentiate().cost(cell.device)
    else:
        problem = po.load(cell.problem).differentiate().cost(cell.device, runtime="onnxruntime")
    store_all = po.store_all_peak_bytes(problem)
    if cell.share is None:
        known = least_ram(problem, Options(ram_bytes=0, paging=False), solve_whole)
        assert known is not None
        asked = Options(ram_bytes=max(problem.least_ram_bytes, int(LESS * known)), paging=False, time_limit_s=limit_s)
        ram = f"{asked.ram_bytes:,} B ({known:,} known)"
    else:
        asked = Options(ram_bytes=int(cell.share * store_all), time_limit_s=limit_s)
        ram = f"{cell.share:.0%}"
    begin = time.monotonic()
    _, solution = solve_ordered(problem, asked)
    order = solution.order
    assert order is not None
    ended = "itself" if order.finished else "clock"
    return (
        f"| {cell.problem} | {cell.device} | {ram} | {_free(problem)} of {len(problem.operators)} "
        f"| {_joules(order.given_overhead_j)} | {_joules(order.given_bound_j)} | {_used(solution)} | {_gain(order)} "
        f"| {order.moves} | {order.judged} | {ended} | {time.monotonic() - begin:.0f} |"
    )


def _free(problem: Problem) -> int:
    precedence, order = Precedence.of(problem), range(len(problem.operators))
    windows = (precedence.window(order, at) for at in order)
    return sum(low < high for low, high in windows)


def _used(solution: Solution) -> str:
    simulation = solution.simulation
    return f"{_joules(simulation.overhead_j if simulation else None)} | {_joules(solution.overhead_bound_j)}"


def _gain(order: OrderFound) -> str:
    if not order.given_overhead_j or order.gain_j is None:
        return "- | -"
    proven = "-" if order.proven_j is None else show_share(order.proven_j / order.given_overhead_j)
    return f"{show_share(order.gain_j / order.given_overhead_j)} | {proven}"


def _joules(joules: float | None) -> str:
    return "none" if joules is None else f"{joules:.6g}"


if __name__ == "__main__":
    main()
