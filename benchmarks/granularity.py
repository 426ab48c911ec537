"""What `--with granularity=block` loses and what it saves: the same networks and budgets at both granularities.

    .venv/bin/python -m benchmarks.granularity [--only NAME] [--time-limit 30s] [--output FILE.md]

Budgets are shares of the store-all peak at the default granularity, in bytes, for both. `energy +` is the block
schedule's energy over the default's; `bound` says how much of it is the problem's (its proven least over the default
schedule's energy), whatever a solver does. Bytes are those of the plan's compact encoding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import poetopt as po
from poetopt.api import store_all_peak_bytes
from poetopt.util.errors import InfeasibleError, NoScheduleError

HEADING = (
    "| network | RAM | operators | blocks | overhead | overhead, blocks | energy + | bound | plan B | plan B, blocks "
    "| solve s | solve s, blocks |"
)
CASES = (
    ("resnet18-cifar", 0.5),
    ("resnet18-cifar", 0.3),
    ("mobilenetv2", 0.5),
    ("bert-tiny", 0.5),
    ("bert-base", 0.5),
    ("bert-base", 0.3),
)


def row(name: str, ram: float, device: str, time_limit: str) -> str:
    """One line of the table."""
    model = po.load(name)
    assert isinstance(model, po.Model)
    problems = [
        model.differentiate(granularity=kind).cost(device, runtime="onnxruntime") for kind in ("operator", "block")
    ]
    budget = int(ram * store_all_peak_bytes(problems[0]))
    found = []
    for problem in problems:
        try:
            found.append(po.solve(problem, ram=budget, time_limit=time_limit).to_dict())
        except (InfeasibleError, NoScheduleError) as error:
            return f"| {name} | {ram:.0%} | {' | '.join(str(len(p.operators)) for p in problems)} | {error} |"

    def number(k: int, key: str) -> float:
        value = found[k][key]
        return float(value) if isinstance(value, int | float) else float("nan")

    energy, overhead = [number(k, "energy_j") for k in (0, 1)], [number(k, "overhead_j") for k in (0, 1)]
    cells = (
        name, f"{ram:.0%}", *(str(len(problem.operators)) for problem in problems),
        *(f"{value / problems[0].baseline_energy_j:.3%}" for value in overhead),
        f"{energy[1] / energy[0] - 1:+.3%}", f"{number(1, 'energy_bound_j') / energy[0] - 1:+.3%}",
        *(f"{number(k, 'plan_bytes'):.0f}" for k in (0, 1)), *(f"{number(k, 'total_s'):.1f}" for k in (0, 1)),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--device", default="a72")
    parser.add_argument("--time-limit", default="30s", help="of each solve")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    parser.add_argument("--note", default="", help="a line above the table")
    options = parser.parse_args()
    lines = [HEADING, "|---" * HEADING.count("| ") + "|"]
    print("\n".join(lines), flush=True)
    for name, ram in CASES:
        if options.only in name:
            lines.append(row(name, ram, options.device, options.time_limit))
            print(lines[-1], flush=True)
            if options.output:
                head = f"{options.note}\n\n" if options.note else ""
                options.output.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
