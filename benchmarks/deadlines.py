"""Deadlines from one pass to two: what each costs, whether it is kept, and how much of the transfers is hidden.

    .venv/bin/python -m benchmarks.deadlines [--limit SECONDS] [--scope SCOPE] [--output FILE.md]

resnet18-cifar at 40 % of the store-all peak on m4 and a72, each with and without DMA. Deadlines are taken from the
tightest to the loosest, and each solve starts from the schedule before it, which the looser deadline allows: energy
never rises. `verdict` is what must hold of a row, `infeasible` is said only of a proof.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import poetopt as po
from poetopt.formulations.language import Formulation
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import schedule_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import RELATIVE_TOLERANCE, simulate
from poetopt.plan.transfers import Overlap, overlap
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import Options, Solution, Status

NETWORK, SHARE = "resnet18-cifar", 0.4
FACTORS = tuple(1 + k / 10 for k in range(11))
HEADING = (
    "| device | DMA | deadline | status | makespan | overhead J | overhead gap | recomputes | page-ins "
    "| transfers, of one pass | hidden | models solved | s | verdict |"
)


def problems() -> Iterator[Problem]:
    """The four columns of the sweep."""
    training = po.load(NETWORK).differentiate()
    for name in ("m4", "a72"):
        for dma in (False, True):
            yield training.cost(replace(po.device(name), dma=dma), runtime="onnxruntime")


def sweep(problem: Problem, scope: str, limit_s: float) -> Iterator[tuple[float, Solution, int]]:
    """(deadline factor, solution, models solved) from the tightest deadline on."""
    ram_bytes = int(SHARE * po.store_all_peak_bytes(problem))
    starts: list[Schedule] = []
    for factor in FACTORS:
        options = Options(
            ram_bytes=ram_bytes,
            deadline_s=factor * problem.baseline_time_s,
            scope=scope,
            time_limit_s=limit_s,
            gap=1e-3,
        )
        with _counted() as solved:
            solution = solve_whole(problem, options, starts=starts)
        if solution.plan is not None:
            starts = [schedule_of(solution.plan), *starts]
        yield factor, solution, len(solved)


@contextmanager
def _counted() -> Iterator[list[str]]:
    """An entry for each model that the solve loop builds: more than one is a repair."""
    found: list[str] = []
    build = Formulation.build

    def counted(self: Formulation, *arguments: Any, **named: Any) -> Any:
        found.append(self.name)
        return build(self, *arguments, **named)

    Formulation.build = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Formulation.build = build  # type: ignore[method-assign]


def verdict(solution: Solution, before_j: float | None) -> str:
    """`ok`, or what doesn't hold."""
    simulation, deadline_s = solution.simulation, solution.options.deadline_s
    if simulation is None or solution.plan is None or deadline_s is None:
        return "ok" if solution.status is Status.INFEASIBLE else "no proof"
    missing = []
    again = simulate(solution.plan, ram_bytes=solution.options.ram_bytes)
    if again.makespan_s > deadline_s * (1 + RELATIVE_TOLERANCE):
        missing.append("late")
    if before_j is not None and again.overhead_j > before_j * (1 + RELATIVE_TOLERANCE):
        missing.append("energy rises")
    return ", ".join(missing) or "ok"


def line(problem: Problem, factor: float, solution: Solution, solved: int, seconds: float, word: str) -> str:
    """The table's row."""
    cells = [problem.device, "yes" if problem.dma else "no", f"{factor:.1f}x", str(solution.status)]
    simulation = solution.simulation
    if simulation is None or solution.plan is None:
        cells += ["-"] * 7
    else:
        found: Overlap = overlap(solution.plan, simulation)
        cells += [
            f"{simulation.makespan_s / problem.baseline_time_s:.4f}x",
            f"{simulation.overhead_j:.6g}",
            "-" if solution.overhead_gap is None else f"{solution.overhead_gap:.3%}",
            str(simulation.recomputes),
            str(simulation.page_ins),
            f"{found.transfer_s / problem.baseline_time_s:.2%}",
            f"{found.share:.1%}" if found.transfer_s else "-",
        ]
    models = str(solved) if simulation is not None else "-"  # without a plan the remedies solve some as well
    return f"| {' | '.join([*cells, models, f'{seconds:.1f}', word])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=30.0, help="time limit of each solve in seconds")
    parser.add_argument("--scope", default="depth:4", help="which recomputations exist")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    arguments = parser.parse_args()
    command = f"python -m benchmarks.deadlines --limit {arguments.limit:g} --scope {arguments.scope}"
    lines = [
        f"# Deadlines: {NETWORK} at {SHARE:.0%}, scope {arguments.scope}, {arguments.limit:.0f} s a solve",
        "",
        f"Made by `{command}`. `hidden` is the part of the transfers' seconds",
        "during which the CPU computes; `models solved` is 1 where no repair was needed.",
        "",
        HEADING,
        "|---" * HEADING.count("| ") + "|",
    ]
    print("\n".join(lines), flush=True)
    for problem in problems():
        before_j: float | None = None
        begin = time.perf_counter()
        for factor, solution, solved in sweep(problem, arguments.scope, arguments.limit):
            word = verdict(solution, before_j)
            lines.append(line(problem, factor, solution, solved, time.perf_counter() - begin, word))
            print(lines[-1], flush=True)
            if solution.simulation is not None:
                before_j = solution.simulation.overhead_j
            if arguments.output:
                arguments.output.write_text("\n".join(lines) + "\n")
            begin = time.perf_counter()


if __name__ == "__main__":
    main()
