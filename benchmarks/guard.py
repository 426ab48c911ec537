"""The solver's guard: twelve small cells through its mechanisms, each held to its optimum and to its gap.

    make guard
    .venv/bin/python -m benchmarks.guard [--only SUBSTRING]... [--limit SECONDS] [--without MECHANISM]...

A cell is solved in this process, to its gap, for kernels of onnxruntime. It fails where the gap stays open, where the
plan costs more than the known one, and where bound and known figures contradict each other: a bound above a plan that
is known, or a plan below what was proven. All take some 30 s of processor; each may take its limit, which is
generous: a slow machine passes, a search that lacks a mechanism doesn't. Figures are from benchmarks/results/solve.md
where it has the cell, else they were proven here to the gap that stands beside them; m4 is m4-6.toml's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import poetopt as po
from benchmarks.ablation import MECHANISMS
from benchmarks.boards import board
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import Options, Solution

LIMIT_S = 180.0
"""Of a cell; the slowest takes 10 s of processor."""
ROUNDED = 5e-5
"""Known figures are written with five digits or more: half a unit of the last one, at worst."""


@dataclass(frozen=True)
class Cell:
    """One solve and what is known of it.

    needs
        The mechanisms that it goes through; `--without` tells whether it notices that one is missing.
    overhead_j, bound_j
        A plan that is known, and what is proven; 0 where the scope, and with it the proof, is left to the engine.
    gap
        To which it is solved, and held.
    wake_j, dma
        The device's, changed.
    options
        Further ones of `Options`.
    """

    network: str
    device: str
    ram: float
    scope: str
    needs: str
    overhead_j: float
    bound_j: float
    gap: float = 1e-3
    deadline: float | None = None
    wake_j: float = 0.0
    dma: bool | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """In one line."""
        changed = [
            f"{self.deadline}x" if self.deadline else "",
            "DMA" if self.dma else "",
            f"waking {self.wake_j} J" if self.wake_j else "",
            *(f"{key}={value}" for key, value in self.options.items()),
        ]
        return " ".join(filter(None, [self.network, self.device, f"{self.ram:.0%}", self.scope, *changed]))


CELLS = (
    Cell("resnet18-cifar", "m4", 0.3, "depth:8", "chain cuts, guided replays", 7.28719, 7.27044, gap=0.01),
    Cell("vgg16-cifar", "m4", 0.6, "depth:8", "chain cuts, rounded memory rows", 1.94406, 1.94406),
    Cell("resnet18-cifar", "m4", 0.5, "forward", "wide models", 0.812676, 0.800824, gap=0.03),
    Cell("resnet18-cifar", "a72", 0.5, "forward", "scope-difference cut", 0.192687, 0.192687, gap=0.01),
    Cell("mobilenetv2", "m4", 0.5, "forward", "replays", 0.18668, 0.186602, gap=0.02),
    Cell("bert-tiny", "m4", 0.4, "forward", "deep chains", 0.22117, 0.22117),
    Cell("bert-tiny", "a72", 0.4, "full", "recomputes of all operators", 0.103136, 0.103136),
    Cell("bert-tiny", "m4", 0.6, "auto", "deeper scopes by default", 0.108386, 0.0),
    Cell("vgg16-cifar", "m4", 0.6, "depth:8", "no paging", 3.61882, 3.61882, options={"paging": False}),
    Cell("resnet18-cifar", "m4", 0.4, "depth:4", "deadline beside DMA", 17.3981, 17.3827, deadline=1.0, dma=True),
    Cell("resnet18-cifar", "a72", 0.5, "depth:4", "storage activations", 0.307136, 0.306829, gap=0.07, wake_j=0.005),
    Cell("mlp", "a72", 0.95, "full", "poet", 0.00591924, 0.00591628, options={"formulation": "poet"}),
)


def problem_of(cell: Cell) -> Problem:
    """The network's training step on the device, as the cell changes it."""
    device = po.device(board(cell.device))
    if cell.dma is not None:
        device = replace(device, dma=cell.dma)
    return replace(po.load(cell.network).differentiate().cost(device, runtime="onnxruntime"), wake_j=cell.wake_j)


def solved(cell: Cell, limit_s: float) -> Solution:
    """By two threads, whatever the machine has."""
    problem = problem_of(cell)
    options = Options(
        ram_bytes=int(cell.ram * po.store_all_peak_bytes(problem)),
        deadline_s=None if cell.deadline is None else cell.deadline * problem.baseline_time_s,
        scope=cell.scope,
        gap=cell.gap,
        threads=2,
        time_limit_s=limit_s,
        **cell.options,
    )
    return solve_whole(problem, options)


def wrong(
    cell: Cell, overhead_j: float | None, bound_j: float | None, gap: float | None, *, outdone: bool = False
) -> str:
    """What a solve falls short of, or what it contradicts; empty where nothing is wrong.

    A plan from outside the scope may be less than all of it (`outdone`).
    """
    if overhead_j is None:
        return "no plan"
    if bound_j is None or gap is None or gap > cell.gap * (1 + 1e-9):
        return f"{'all' if gap is None else format(gap, '.3%')} is open, {cell.gap:.3%} is allowed"
    slack = ROUNDED * cell.overhead_j
    if overhead_j > cell.overhead_j + cell.gap * overhead_j + slack:
        return f"{overhead_j:.6g} J, {cell.overhead_j:.6g} J is known"
    if overhead_j < cell.bound_j - slack and not outdone:
        return f"{overhead_j:.6g} J, below {cell.bound_j:.6g} J, which were proven"
    if bound_j > cell.overhead_j + slack:
        return f"a bound of {bound_j:.6g} J, above the {cell.overhead_j:.6g} J of a known plan"
    return ""


def lines(cells: Iterable[Cell], limit_s: float) -> Iterator[tuple[str, str]]:
    """(a row for reading, what is wrong) of each cell, as it ends."""
    for cell in cells:
        begin, cpu = time.perf_counter(), time.process_time()
        solution = solved(cell, limit_s)
        overhead_j = None if solution.simulation is None else solution.simulation.overhead_j
        bound_j, gap = solution.scope_bound_j, solution.scope_gap  # the cells are of scopes
        fault = wrong(cell, overhead_j, bound_j, gap, outdone=solution.outdone)
        took = f"{time.perf_counter() - begin:.1f} s, {time.process_time() - cpu:.1f} s of processor"
        figures = f"{overhead_j} J, bound {bound_j} J, {solution.scope}{', outdone' if solution.outdone else ''}"
        yield f"{'FAILED' if fault else 'ok'}  {cell.name} ({cell.needs}): {fault or figures}; {took}", fault


def main() -> None:
    """Exit code 1 where a cell fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cells whose name or needs contain this; may be repeated")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="time limit of each solve in seconds")
    parser.add_argument("--without", action="append", default=[], help="leave out a mechanism, to see who notices")
    arguments = parser.parse_args()
    for mechanism in arguments.without:
        MECHANISMS[mechanism]()
    chosen = [
        cell
        for cell in CELLS
        if not arguments.only or any(text in f"{cell.name} {cell.needs}" for text in arguments.only)
    ]
    faults = 0
    for row, fault in lines(chosen, arguments.limit):
        print(row, flush=True)
        faults += bool(fault)
    sys.exit(f"{faults} of {len(chosen)} cells failed" if faults else 0)


if __name__ == "__main__":
    main()
