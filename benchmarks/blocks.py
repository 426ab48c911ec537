"""What the blocks static_power, energy_budget and flash_wear change about a schedule.

    .venv/bin/python -m benchmarks.blocks [--limit SECONDS] [--scope SCOPE] [--output FILE.md]

resnet18-cifar at 40 % of the store-all peak on a72, whose card is fast beside its CPU. `minimised` is what the
objective was, above one pass, with the bound proven for it within the scope; time, energy and bytes are the
simulator's.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import poetopt as po
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Action, Plan
from poetopt.search.solution import Objective, Solution
from poetopt.util.errors import InfeasibleError, NoScheduleError

NETWORK, DEVICE, SHARE = "resnet18-cifar", "a72", "40%"
ASKED = (
    "", "static-power=500mW", "static-power=2.7W", "static-power=20W", "energy-limit=1.015x", "energy-limit=1.02x",
    "energy-limit=1.03x", "energy-limit=1.1x", "flash-wear=5MB", "flash-wear=2MB", "flash-wear=0",
)  # fmt: skip
HEADING = (
    "| DMA | with | minimised | value | bound | status | makespan above one pass | overhead J | recomputes "
    "| written MB | s |"
)


def written_bytes(plan: Plan) -> int:
    """Bytes that a plan writes to storage."""
    tensors = plan.problem.tensors
    return sum(tensors[step.target].nbytes for step in plan.instructions if step.action is Action.PAGE_OUT)


def row(problem: Problem, asked: str, scope: str, limit_s: float) -> str:
    """One line of the table."""
    begin = time.monotonic()
    blocks = [asked] if asked else []
    head = f"| {'yes' if problem.dma else 'no'} | {asked or '-'} |"
    try:
        report = po.solve(problem, ram=SHARE, blocks=blocks, scope=scope, time_limit=limit_s, gap="1%")
    except (InfeasibleError, NoScheduleError) as error:
        status = (error.report or {}).get("status")
        return f"{head} - | - | - | {status} | - | - | - | - | {time.monotonic() - begin:.0f} |"
    solution: Solution = report.solution
    simulation, plan = solution.simulation, solution.plan
    assert simulation is not None
    assert plan is not None
    shown = solution.objective or Objective("energy", "J", 0.0, simulation.overhead_j, solution.overhead_bound_j)
    late = simulation.makespan_s - problem.baseline_time_s
    return (
        f"{head} {shown.name} | {shown.value:.4g} {shown.unit} | {shown.bound or 0:.4g} {shown.unit} "
        f"| {solution.status} | {late:.4g} s "
        f"| {simulation.overhead_j:.4g} | {simulation.recomputes} | {written_bytes(plan) / 1e6:.2f} "
        f"| {time.monotonic() - begin:.0f} |"
    )


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for each solve")
    parser.add_argument("--scope", default="depth:4")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    training = po.load(NETWORK).differentiate()
    lines = [HEADING, "|" + "---|" * (HEADING.count("|") - 1)]
    for dma in (False, True):
        problem = training.cost(replace(po.device(DEVICE), dma=dma), runtime="onnxruntime")
        for asked in ASKED:
            lines.append(row(problem, asked, given.scope, given.limit))
            print(lines[-1], flush=True)
    one_pass = f"One pass takes {problem.baseline_time_s:.4g} s and {problem.baseline_energy_j:.4g} J."
    command = f"python -m benchmarks.blocks --scope {given.scope} --limit {given.limit:g}"
    about = f"{NETWORK} on {DEVICE} at {SHARE} of store-all, gap 1 %, by `{command}`. {one_pass}"
    text = "\n".join(["# What three blocks change", "", about, "", *lines, ""])
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
