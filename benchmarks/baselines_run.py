"""Every baseline's plan, executed on onnxruntime: bit-identical, and within its budget.

    python -m benchmarks.baselines_run [--model resnet18-cifar] [--device a72] [--output FILE.md]

Each method schedules at the first of a few budgets at which it finds a plan below store-all; that plan trains one step,
beside ordinary training, and every gradient is compared bit by bit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import poetopt as po
from benchmarks.output import put
from poetopt.comparison.baselines import METHODS
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.rows import in_bytes, parse_budgets
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.util.errors import InfeasibleError, NoScheduleError

HEADING = (
    "| method | RAM | budget | arena + kernels | peak of ordinary training | gradients | bit-identical "
    "| recomputes | page-ins |"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18-cifar")
    parser.add_argument("--device", default="a72")
    parser.add_argument("--ram", default="40%,60%,80%,100%")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of one solve")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    problem = po.load(options.model).differentiate().cost(options.device, runtime="onnxruntime")
    budgets = in_bytes(parse_budgets(options.ram), po.store_all_peak_bytes(problem))
    settings = Settings(time_limit_s=options.limit, gap=1e-2, threads=1)
    lines = [
        "# Baselines, executed",
        "",
        f"`python -m benchmarks.baselines_run --model {options.model} --device {options.device}`: one step on",
        f"onnxruntime for each method, at the first of the budgets {options.ram} of store-all where it has a plan.",
        "",
        HEADING,
        "|---" * (HEADING.count("|") - 1) + "|",
    ]
    failed = False
    for name in METHODS:
        found = first_plan(problem, name, budgets, settings)
        if found is None:
            failed = True
            lines.append(f"| {name} | no plan |" + " |" * (HEADING.count("|") - 3))
            continue
        budget, plan = found
        simulation = po.simulate(plan, ram_bytes=budget)
        execution = po.execute(plan)
        document = execution.to_dict()
        fits = int(str(document["measured_peak_bytes"])) <= budget
        good = execution.ok and document["bit_identical"] is True and fits
        failed = failed or not good
        cells = (
            name,
            f"{100 * budget / budgets[-1]:.0f} %",
            f"{budget:,} B",
            f"{document['measured_peak_bytes']:,} B",
            f"{document['store_all_peak_bytes']:,} B",
            document["gradients"],
            "yes" if good else f"NO: {execution.message}",
            simulation.recomputes,
            simulation.page_ins,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
        print(lines[-1], file=sys.stderr, flush=True)
    put(lines, options.output)
    sys.exit(failed)


def first_plan(problem: Problem, name: str, budgets: tuple[int, ...], settings: Settings) -> tuple[int, Plan] | None:
    """The first budget at which a method has a plan, and that plan."""
    for budget in budgets:
        try:
            return budget, METHODS[name].schedule(problem, budget, settings)
        except (NoScheduleError, InfeasibleError):
            continue
    return None


if __name__ == "__main__":
    main()
