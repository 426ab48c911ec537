"""What the process that takes a plan's steps has resident at most, beside the plan and what ordinary training takes.

Each figure is of a process of its own: the command `run --steps`, as it is; its steps as they were taken before a
process had nothing else to hold (model, graph and plan in it); and ordinary training of the same graph, node by node,
and as one session. Where memory cgroups can be made, the first one runs again in one of the plan's total and 100 MB.

    python -m benchmarks.process                            # the committed table
    python -m benchmarks.process resnet18-cifar --steps 5
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import poetopt as po
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.measure import Clock
from poetopt.backends.onnxruntime.reference import Fused, NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.onnxruntime.stepping import ScheduledStep
from poetopt.backends.step.places import graph_of
from poetopt.backends.step.region import Region
from poetopt.util.memory import peak_bytes
from poetopt.util.units import show_bytes, show_seconds

NETWORKS = ("mobilenetv2:8", "resnet18-cifar:8", "bert-tiny:8", "resnet50:8")
"""Network and batch."""
ROOM = 100_000_000
"""Bytes beside the plan's total that a process may take."""
COLUMNS = (
    "network", "batch", "plan's total", "process", "beside the plan", "in a cgroup of the total and 100 MB",
    "model and steps in one process", "ordinary, by nodes", "ordinary, one session", "step", "step by nodes",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
CGROUPS = Path("/sys/fs/cgroup")


def solved(model: str, batch: int, ram: str, time_limit: str, place: Path) -> None:
    """Write a plan, of the budget or of the least that is known where that is more."""
    problem = po.load(model, batch=batch).differentiate().cost("a72")
    least = problem.least_ram_bytes
    asked = int(po.store_all_peak_bytes(problem) * float(ram.rstrip("%")) / 100)
    po.solve(problem, ram=max(asked, least), time_limit=time_limit).save(place)


def stepped(place: Path, steps: int, group: Path | None = None) -> dict[str, float] | str:
    """The command's own report; a text where it didn't end well."""
    command = [
        sys.executable,
        "-m",
        "poetopt",
        "run",
        str(place),
        "--steps",
        str(steps),
        "--lr",
        "0.001",
        "--json",
        "-",
    ]

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=enter)
    return json.loads(done.stdout) if done.returncode == 0 else f"code {done.returncode}: {done.stderr.strip()[-200:]}"


@contextmanager
def cgroup(nbytes: int) -> Iterator[Path | None]:
    """A memory cgroup of so many bytes, without swap; None where none can be made."""
    old = CGROUPS / "memory"
    parent, limit = (old, "memory.limit_in_bytes") if old.is_dir() else (CGROUPS, "memory.max")
    made = parent / f"poetopt-{os.getpid()}"
    try:
        made.mkdir()
        (made / limit).write_text(str(nbytes))
    except OSError:
        yield None
        return
    try:
        yield made
    finally:
        made.rmdir()


def child(kind: str, place: Path, steps: int) -> None:
    """Take steps in this process, and print its peak and the median of their seconds."""
    plan = po.load_plan(place).plan
    graph = graph_of(plan)
    batch, times = random_batch(graph), []
    with Clock() as clock:
        if kind == "whole":
            with ScheduledStep(plan) as step:
                times = [clock.time(lambda: step.run(batch)) for _ in range(steps)]
        else:
            sessions, given = Sessions(graph), Region.of(graph).begun
            run = (NodeByNode if kind == "nodes" else Fused)(graph, sessions, given, graph.results).run
            times = [clock.time(lambda: run(batch)) for _ in range(steps)]
    print(json.dumps({"peak": peak_bytes(), "step_s": sorted(times)[len(times) // 2]}))


def apart(kind: str, place: Path, steps: int) -> dict[str, float]:
    """What `child` prints."""
    command = [sys.executable, "-m", "benchmarks.process", "--child", kind, "--plan", str(place), "--steps", str(steps)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def row(model: str, batch: int, place: Path, steps: int) -> str:
    """A line of the table."""
    found = stepped(place, steps)
    if isinstance(found, str):
        return f"| {model} | {batch} | {found} |"
    total, peak = int(found["total_ram_bytes"]), int(found["process_peak_bytes"])
    with cgroup(total + ROOM) as group:
        inside = "no cgroup" if group is None else stepped(place, steps, group)
    kept = inside if isinstance(inside, str) else f"yes, {show_bytes(int(inside['process_peak_bytes']))}"
    whole, nodes, session = (apart(kind, place, min(steps, 3)) for kind in ("whole", "nodes", "session"))
    return (
        f"| {model} | {batch} | {show_bytes(total)} | {show_bytes(peak)} | {show_bytes(peak - total)} | {kept} "
        f"| {show_bytes(int(whole['peak']))} | {show_bytes(int(nodes['peak']))} | {show_bytes(int(session['peak']))} "
        f"| {show_seconds(found['step_s'])} | {show_seconds(nodes['step_s'])} |"
    )


def main() -> None:
    """Print the table, and write it with --output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NAME:BATCH")
    parser.add_argument("--ram", default="40%")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--time-limit", default="60s")
    parser.add_argument("--plan", type=Path, help="a plan that is there, of the one network named")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.child, given.plan, given.steps)
        return
    lines = [HEADER]
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for entry in given.networks:
            model, _, batch = entry.partition(":")
            place = given.plan or Path(folder) / "plan.json"
            if given.plan is None:
                solved(model, int(batch or 8), given.ram, given.time_limit, place)
            lines.append(row(model, int(batch or 8), place, given.steps))
            print(lines[-1], flush=True)
    if given.output is not None:
        told = (
            f"`python -m benchmarks.process --ram {given.ram} --steps {given.steps} --time-limit {given.time_limit}`: "
            "VmHWM of processes of their own.\nThe budget is that share of store-all on a72, or the least that a "
            "schedule is known for where that is more.\n\n"
        )
        given.output.write_text(told + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
