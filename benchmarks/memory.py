"""What a process holds beside the arena while it takes scheduled steps, for the networks of the zoo.

    .venv/bin/python -m benchmarks.memory [--ram 40%] [--device a72] [--time-limit 20s] [--output FILE.md] [MODEL ...]

Each network is solved at the budget, or at the least that a schedule is known for where that is more. Its plan is then
run in a process of its own, which does nothing else: no unscheduled step beside it, no comparison. Three figures are of
an ordinary step, beside what the process had before it with its arena in RAM: what is live at once; the untrimmed
high-water mark, counted page by page with an allocator that gives nothing back of itself; and the system's VmHWM, reset
before the step, which is kept roughly (to some 250 kB). The last column is the untrimmed mark of a step that gives
nothing back either.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import poetopt as po
from poetopt.backends.onnxruntime import measure
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.measure import high_water_bytes, peak_beside_bytes
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.places import graph_of
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import ResidentRegion, slots
from poetopt.backends.step.storage import PageFile
from poetopt.plan.layout import arena_bytes
from poetopt.util.errors import InfeasibleError
from poetopt.util.units import show_bytes

HEADER = """| network | budget | arena | live | high-water | arena + it, of the budget | VmHWM | nothing given back |
|---|---|---|---|---|---|---|---|"""


def solved(model: str, device: str, ram: str, time_limit: str, place: Path) -> None:
    """Write a plan for the budget, or for the least that is known where that is more."""
    problem = po.load(model).differentiate().cost(device, runtime="onnxruntime")
    try:
        report = po.solve(problem, ram=ram, time_limit=time_limit)
    except InfeasibleError as error:
        least = (error.report or {}).get("least_ram_bytes")
        if not isinstance(least, int):
            raise
        report = po.solve(problem, ram=least, time_limit=time_limit)
    report.save(place)


@contextmanager
def program(place: Path) -> Iterator[tuple[Program, Callable[[], None]]]:
    """The plan's step, ready to run, and what loads its batch."""
    plan = po.load_plan(place).plan
    graph = graph_of(plan, None)
    batch = random_batch(graph, 0)
    with PageFile(slots(plan), None) as pages:
        arena, region = MappedBlock(arena_bytes(plan)), ResidentRegion.of(graph)
        made = Program(plan, graph, arena, region, Sessions(graph), pages)
        arena.bytes.fill(0)
        region.block.bytes.fill(0)

        def load() -> None:
            made.load(batch)

        for _ in range(2):  # what sessions make at their first run stays
            load()
            made.run()
        gc.collect()
        yield made, load


def marked(step: Callable[[], object], load: Callable[[], None]) -> int:
    """The least of five rises of VmHWM over a step."""
    found = []
    give_back = measure.give_back()
    for _ in range(5):
        load()
        if give_back is not None:
            give_back()
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS:")
        step()
        found.append(_status("VmHWM:") - before)
    return min(found)


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(field)[1].split()[0]) * 1024


def child(place: Path) -> None:
    """Measure, and print one JSON object."""
    with program(place) as (made, load):
        found = {
            "vm_hwm": marked(made.run, load),
            "high_water": high_water_bytes(made.acts, load),
            "live": peak_beside_bytes(made.acts, load, expected=made.plan.problem.reserve_bytes),
        }
    with mock.patch.object(Sessions, "give_back", return_value=None), program(place) as (made, load):
        found["kept"] = high_water_bytes(made.acts, load)
    print(json.dumps(found))


def row(model: str, place: Path) -> str:
    """A line of the table."""
    command = [sys.executable, "-m", "benchmarks.memory", "--child", str(place)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    loaded = po.load_plan(place)
    arena, budget = arena_bytes(loaded.plan), loaded.ram_bytes or 0
    share = (arena + found["high_water"]) / budget
    figures = [budget, arena, found["live"], found["high_water"]]
    shown = " | ".join(f"{figure:,} B" for figure in figures)
    return f"| {model} | {shown} | {share:.2%} | {show_bytes(found['vm_hwm'])} | {show_bytes(found['kept'])} |"


def main() -> None:
    """Print the table, and write it with --output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--ram", default="40%")
    parser.add_argument("--device", default="a72")
    parser.add_argument("--time-limit", default="20s")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.child)
        return
    from poetopt import zoo

    lines = [HEADER]
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for model in given.models or zoo.names():
            place = Path(folder) / "plan.json"
            solved(model, given.device, given.ram, given.time_limit, place)
            lines.append(row(model, place))
            print(lines[-1], flush=True)
    if given.output is not None:
        asked = f"--ram {given.ram} --device {given.device} --time-limit {given.time_limit}"
        told = (
            "Beside the arena in an ordinary step, in a process that does nothing else: "
            f"`python -m benchmarks.memory {asked}`.\nThe budget is that share of store-all, or the least that a "
            "schedule is known for where that is more. VmHWM is kept roughly,\nto some 250 kB.\n\n"
        )
        given.output.write_text(told + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
