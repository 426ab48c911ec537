"""What solving costs and reaches: one line for each network, device and budget.

make bench
.venv/bin/python benchmarks/solve.py --time-limit 20s mlp resnet18-cifar
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import poetopt as po
from poetopt.errors import InfeasibleError, NoScheduleError
from poetopt.units import show_share

MODELS = ("resnet18-cifar", "vgg16-cifar")
DEVICES = ("a72", "m4")
BUDGETS = ("80%", "60%", "40%", "25%")
HEADING = ("model", "device", "RAM", "status", "scope", "overhead_j", "overhead_gap", "build_s", "solve_s")


def lines(models: list[str], time_limit: str) -> Iterator[tuple[str, ...]]:
    """The table's rows; where a budget is infeasible, the row says so."""
    for model in models:
        training = po.load(model).differentiate()
        for device in DEVICES:
            problem = training.cost(device)
            for ram in BUDGETS:
                yield model, device, ram, *_solved(problem, ram, time_limit)


def _solved(problem: po.Problem, ram: str, time_limit: str) -> tuple[str, ...]:
    try:
        solution = po.solve(problem, ram=ram, time_limit=time_limit).solution
    except InfeasibleError as error:
        least = error.report["least_ram_bytes"] if error.report else None
        return "infeasible", f"least {least} B" if least else "", "", "", "", ""
    except NoScheduleError:
        return "unknown", "", "", "", "", ""
    assert solution.simulation is not None
    gap = solution.overhead_gap
    return (
        str(solution.status),
        solution.scope,
        f"{solution.simulation.overhead_j:.6g}",
        "" if gap is None else show_share(gap),
        f"{solution.build_s:.2f}",
        f"{solution.solve_s:.2f}",
    )


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--time-limit", default="60s")
    arguments = parser.parse_args()
    widths = (16, 7, 5, 11, 18, 12, 13, 8, 8)
    for row in itertools.chain([HEADING], lines(arguments.models, arguments.time_limit)):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip(), flush=True)


if __name__ == "__main__":
    main()
