"""How much room the arena takes beside the peak: every network of the zoo at 30, 50 and 70 % of the store-all peak.

    .venv/bin/python -m benchmarks.arena [--device NAME] [--limit SECONDS] [--output FILE.md]

The arena must take at most 1.02 times the bytes that are live at the plan's peak, and never more than the budget. Where
no schedule has so little RAM (a large working set), the row says so.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import poetopt as po
from poetopt import zoo
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import Options, Status

SHARES = (0.3, 0.5, 0.7)
MOST = 1.02
HEADING = "| network | RAM | budget B | status | peak B | arena B | arena / peak | s | verdict |"


def line(problem: Problem, name: str, share: float, limit_s: float) -> str:
    """The table's row of one solve."""
    begin = time.perf_counter()
    budget = int(share * po.store_all_peak_bytes(problem))
    solution = solve_whole(problem, Options(ram_bytes=budget, scope="depth:4", time_limit_s=limit_s, gap=0.01))
    seconds = time.perf_counter() - begin
    head = f"| {name} | {share:.0%} | {budget:,} | {solution.status}"
    simulation, arena = solution.simulation, solution.arena_bytes
    if simulation is None or arena is None:
        why = "no schedule" if solution.status is Status.INFEASIBLE else "none found in time"
        return f"{head} | - | - | - | {seconds:.0f} | {why} |"
    # what kernels allocate is beside the arena, and counts in the peak
    peak = simulation.peak_bytes - problem.reserve_bytes
    ratio = arena / peak
    missing = [] if ratio <= MOST else ["arena"]
    if arena + problem.reserve_bytes > budget or simulation.peak_bytes > budget:
        missing.append("over budget")
    word = ", ".join(missing) or "ok"
    return f"{head} | {peak:,} | {arena:,} | {ratio:.4f} | {seconds:.0f} | {word} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="a72", help="bytes don't depend on it, the schedule does")
    parser.add_argument("--limit", type=float, default=20.0, help="time limit of each solve in seconds")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    arguments = parser.parse_args()
    command = f"python -m benchmarks.arena --device {arguments.device} --limit {arguments.limit:g}"
    lines = [
        f"# The arena against the peak, on {arguments.device}, {arguments.limit:.0f} s a solve",
        "",
        f"Made by `{command}`.",
        "Peak and arena are without what kernels allocate beside the arena.",
        "",
        HEADING,
        "|---" * (HEADING.count("|") - 1) + "|",
    ]
    print("\n".join(lines), flush=True)
    for name in zoo.names():
        problem = po.load(name).differentiate().cost(arguments.device, runtime="onnxruntime")
        for share in SHARES:
            lines.append(line(problem, name, share, arguments.limit))
            print(lines[-1], flush=True)
            if arguments.output:
                arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
