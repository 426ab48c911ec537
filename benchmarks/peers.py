"""Other systems' own instances: a memory budget without paging, and static allocation.

    .venv/bin/python -m benchmarks.peers [--only SUBSTRING]... [--limit SECONDS] [--output FILE.md]

Graphs are Checkmate's and Moccasin's, arenas MiniMalloc's; they are looked for in the shared instances. `by peak` is
the schedule of recomputes along the memory profile alone, as the peers count; `laid out` is what `solve` gives, whose
arena keeps the budget. Each cell runs in a process of its own, so that `MB` is its own; seconds are of the processor,
imports left out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT.parent / "shared" / "instances" / "peers"
GRAPHS = {
    ("checkmate_fcn8", 90): "0.0", ("checkmate_fcn8", 80): "0.1", ("checkmate_resnet50", 90): "0.2",
    ("checkmate_resnet50", 80): "0.3", ("random_layered_100", 90): "-", ("random_layered_100", 80): "-",
    ("random_layered_250", 90): "0.9", ("random_layered_250", 80): "4.9", ("random_layered_1000", 90): "0.7",
    ("random_layered_1000", 80): "3.4",
}  # fmt: skip
"""Network and share of the store-all peak: Moccasin's published increase of the duration in percent."""
ARENAS = {"A": 357, "B": 258, "C": 45, "D": 190, "F": 343, "H": 100, "J": 0}
"""MiniMalloc's problems: its published seconds, 0 where none are."""
ARENA_BYTES, PLACEMENTS = 2**20, 1_500_000
DEVICE = "u"


def graph(name: str, percent: int, limit_s: float) -> dict[str, Any]:
    """The increase of the duration in percent, by peak and laid out, with seconds."""
    from poetopt.api.solving import solve
    from poetopt.frontends.problem_file import load_problem_file
    from poetopt.plan.assemble import plan_of, store_all
    from poetopt.plan.simulate import simulate
    from poetopt.search.heuristics.profile import ProfileSearch
    from poetopt.search.tuning import PROFILE_MOST, PROFILE_WORK
    from poetopt.util.errors import PoetError
    from poetopt.util.work import Work

    problem = load_problem_file(PEERS / f"{name}.json").cost(DEVICE)
    ram_bytes = simulate(store_all(problem)).peak_bytes * percent // 100
    found: dict[str, Any] = {}
    begin = time.process_time()
    work = Work(min(PROFILE_WORK * len(problem.operators), PROFILE_MOST))
    for schedule in ProfileSearch(problem, ram_bytes, work).schedules():
        simulation = simulate(plan_of(problem, schedule), ram_bytes=ram_bytes)
        found["by_peak"] = 100 * (simulation.energy_j / problem.baseline_energy_j - 1)
        found.setdefault("first_s", time.process_time() - begin)
    begin = time.process_time()
    try:
        report = solve(problem, ram=ram_bytes, paging=False, time_limit=limit_s).to_dict()
        found["laid_out"] = 100 * float(report["overhead_j"]) / problem.baseline_energy_j  # type: ignore[arg-type]
        found |= {key: report[key] for key in ("status", "scope", "scope_gap")}
    except PoetError as error:
        found["status"] = str(error).partition(": ")[2][:60]
    return found | {"solve_s": time.process_time() - begin}


def arena(name: str) -> dict[str, Any]:
    """The arena as a share of what fits, with seconds."""
    import numpy as np

    from poetopt.graph.arena import pack

    rows = np.loadtxt(
        PEERS / "minimalloc" / f"{name}.{ARENA_BYTES}.csv", delimiter=",", skiprows=1, usecols=(1, 2, 3), dtype=np.int64
    )
    starts, ends, sizes = (column.tolist() for column in rows.T)
    begin = time.process_time()
    _, found = pack(sizes, starts, ends, target=ARENA_BYTES, placements=PLACEMENTS)
    return {"buffers": len(sizes), "share": found / ARENA_BYTES, "s": time.process_time() - begin}


def _apart(*asked: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.peers", "--cell", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _shown(value: object, form: str) -> str:
    return "-" if value is None else format(value, form)


def _rows(only: list[str], limit_s: float) -> Iterator[str]:
    yield "| graph | budget | by peak | first s | laid out | scope gap | s | MB | Moccasin, published |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (name, percent), theirs in GRAPHS.items():
        if not only or any(word in f"{name} {percent}" for word in only):
            c = _apart(name, percent, limit_s)
            laid_out = c["status"] if c.get("laid_out") is None else f"{c['laid_out']:.3f} %, {c['scope']}"
            yield (
                f"| {name} | {percent} % | {_shown(c.get('by_peak'), '.3f')} % | {_shown(c.get('first_s'), '.2f')} "
                f"| {laid_out} | {_shown(c.get('scope_gap'), '.2%')} | {c['solve_s']:.0f} "
                f"| {c['mb']:.0f} | {theirs} % |"
            )
    yield "\n| MiniMalloc | buffers | arena / 1,048,576 | s | MiniMalloc, published s |"
    yield "|---|---|---|---|---|"
    for name, seconds in ARENAS.items():
        if not only or any(word in f"minimalloc {name}" for word in only):
            c = _apart(name)
            yield f"| {name} | {c['buffers']} | {c['share']:.4f} | {c['s']:.1f} | {seconds or '-'} |"


def main() -> None:
    """Run the cells, or one of them where `--cell` asks for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="cells whose name contains this; may be repeated")
    parser.add_argument("--limit", type=float, default=120.0, help="time limit of each solve in seconds")
    parser.add_argument("--output", type=Path, help="write the tables here (Markdown)")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        asked = json.loads(options.cell)
        found = arena(*asked) if len(asked) == 1 else graph(*asked)
        print(json.dumps({**found, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    lines = []
    for line in _rows(options.only, options.limit):
        print(line, flush=True)
        lines.append(line)
    if options.output:
        text = "# Peers' own instances\n\n`python -m benchmarks.peers`\n\n" + "\n".join(lines) + "\n"
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
