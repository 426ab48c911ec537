"""Random small problems, each solved and held against every plan that there is: no word may be false.

    python -m benchmarks.small_problems [--draw any|storage|poet] [--count 1000] [--first 0] [--time-limit 20s]
        [--backends ...] [--output FILE.md]

Four to six operators, with wakings, DMA, deadlines, results, flash, parameters on storage and carried RAM
(`tests.support.small`); with `--draw storage` their operators stream, too, on a storage that is full, nearly, or
just enough. The judge is `tests.support.every_plan`; with `--draw poet`, on such storages, it is Algorithm 1 by stages
(`tests.support.bruteforce`).
Seeds take turns among the backends; `--backends all` tries each.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from pathlib import Path

from poetopt.backends.solvers.solver import backend
from poetopt.util.errors import BackendUnavailableError, PoetError
from poetopt.util.units import parse_time
from tests.support.closed import in_scope
from tests.support.small import false_word, false_word_of_poet, judged, poet_storage, small_problem, small_storage

BACKENDS = ("highs", "gurobi", "cbc", "scip")
DRAWS = {
    "any": (small_problem, false_word, "retention"),
    "storage": (small_storage, false_word, "retention"),
    "poet": (poet_storage, false_word_of_poet, "poet"),
}


def main() -> None:
    """Make the table, and print what is wrong as it is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", choices=DRAWS, default="any")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--time-limit", default="20s")
    parser.add_argument("--backends", nargs="*", default=[])
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    limit_s = parse_time(args.time_limit, option="--time-limit")
    draw, false, formulation = DRAWS[args.draw]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, list[float]] = defaultdict(list)
    wrong: list[str] = []
    for seed in range(args.first, args.first + args.count):
        case = draw(seed)
        names = BACKENDS if args.backends == ["all"] else args.backends or [BACKENDS[seed % len(BACKENDS)]]
        for name in names:
            begin = time.process_time()
            try:
                backend(name)
                found = judged(case, name, limit_s, formulation)
            except BackendUnavailableError:
                counts[name]["not there"] += 1
                continue
            except PoetError as error:
                wrong.append(f"{seed} {name}: {error}")
                print(wrong[-1], flush=True)
                continue
            seconds[name].append(time.process_time() - begin)
            status = found.status if formulation == "retention" else in_scope(found)
            counts[name][status] += 1
            said = false(case, found)
            counts[name]["false" if said else "right"] += 1
            if said or status in ("feasible", "within-gap", "unknown"):
                wrong.append(f"{seed} {name}: {said or f'open: {status}'} ({found.solve_s:.1f} s)")
                print(wrong[-1], flush=True)
    asked = f"--draw {args.draw} --first {args.first} --count {args.count} --time-limit {args.time_limit}"
    text = table(counts, seconds, wrong, asked)
    if args.output is not None:
        args.output.write_text(text, encoding="utf-8")
    print(text)


def table(counts: dict[str, Counter[str]], seconds: dict[str, list[float]], wrong: list[str], asked: str) -> str:
    """The table of the results, in Markdown."""
    lines = [
        "# Small problems against every plan that there is",
        "",
        f"`python -m benchmarks.small_problems {asked}`",
        "",
        "| backend | problems | optimal | infeasible | open | false words | seconds of processor, median | most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, own in counts.items():
        taken = sorted(seconds[name]) or [0.0]
        still = own["feasible"] + own["within-gap"] + own["unknown"]
        lines.append(
            f"| {name} | {len(seconds[name])} | {own['optimal']} | {own['infeasible']} | {still} | {own['false']} | "
            f"{taken[len(taken) // 2]:.2f} | {taken[-1]:.1f} |"
        )
    return "\n".join([*lines, "", *(f"- {line}" for line in wrong), ""])


if __name__ == "__main__":
    main()
