"""Sweeps that are killed, and sweeps on a cluster: the same rows as one that nobody disturbed.

    python -m benchmarks.sweep_kill [--kills 5] [--seed 1] [--output benchmarks/results/sweep.md]

Sixty points, four times: undisturbed; with SIGKILL at random moments (drawn with the seed, in parts of what the
undisturbed sweep took), each time started again; with a worker killed in the middle; and on a scheduler and workers
that were started by hand. Rows are compared in all columns but those of the run (seconds, reasons, dates).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.output import put
from poetopt.api.sweeps.points import read_sweep
from poetopt.api.sweeps.store import POINT, RESULT

SWEEP = """\
models = ["mlp", "vgg16-cifar"]
devices = ["m4", "a72", "tx2"]
ram = "72%..96%/5"
methods = ["poet", "dtr"]
scope = "depth:4"
gap = "1%"
time_limit = "120s"
"""
WORKERS = 2
GONE_S = 20.0
"""So long the workers of a killed sweep have to end by themselves."""


@dataclass(frozen=True)
class Ended:
    """What a results file holds: rows without the columns of the run, and how often points were begun."""

    rows: tuple[tuple[object, ...], ...]
    starts: int
    twice: int

    @classmethod
    def of(cls, path: Path) -> Ended:
        names = ", ".join(name for name in (*POINT, *RESULT) if name != "point")
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute(f"SELECT {names} FROM rows ORDER BY key").fetchall()
            (starts,) = connection.execute("SELECT count(*) FROM starts").fetchone()
            # A start of a point that had its row already.
            query = "SELECT count(*) FROM starts JOIN rows USING (key) WHERE at > finished"
            (twice,) = connection.execute(query).fetchone()
        return cls(tuple(rows), starts, twice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [
        "# Sweeps that are killed",
        "",
        f"`python -m benchmarks.sweep_kill --kills {options.kills} --seed {options.seed}`: 2 networks x 3 devices x "
        f"5 budgets x 2 methods, {WORKERS} workers. Rows are compared in all columns but those of the run.",
        "",
        "| sweep | rows | same rows as undisturbed | points begun | begun though they had a row | seconds |",
        "|---|---|---|---|---|---|",
    ]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder) / "sweep.toml"
        sweep.write_text(SWEEP, encoding="utf-8")
        points = len(read_sweep(sweep))
        plain: Ended | None = None
        whole_s = 0.0
        for name in ("undisturbed", "killed", "a worker killed", "scheduler and workers by hand"):
            out = Path(folder) / f"{name.replace(' ', '-')}.sqlite"
            begin = time.monotonic()
            said = name
            if name == "killed":
                moments = _killed(sweep, out, options.kills, random.Random(options.seed), whole_s)
                said = f"SIGKILL after {', '.join(f'{moment:.1f}' for moment in moments)} s"
            elif name == "a worker killed":
                _worker_killed(sweep, out, 0.5 * whole_s)
            elif name.startswith("scheduler"):
                with _cluster(Path(folder)) as address:
                    _wait(_start(sweep, out, "--scheduler", address))
            else:
                _wait(_start(sweep, out, "--workers", str(WORKERS)))
            took_s = time.monotonic() - begin
            ended = Ended.of(out)
            if plain is None:
                plain, whole_s = ended, took_s
            same = ended.rows == plain.rows and len(ended.rows) == points
            failed = failed or not same or ended.twice > 0
            cells = [said, f"{len(ended.rows)} of {points}", "yes" if same else "NO", ended.starts, ended.twice]
            lines.append(f"| {' | '.join(map(str, cells))} | {took_s:.0f} |")
            print(lines[-1], file=sys.stderr, flush=True)
    lines += [
        "",
        "A point that was at work when its sweep was killed is begun again (at most one a worker and kill); none",
        "that had its row is. No process of a killed sweep was left after it.",
    ]
    put(lines, options.output)
    sys.exit(failed)


def _start(sweep: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-c", "from poetopt.cli.app import main; main()"]
    command = [*program, "sweep", str(sweep), "-o", str(out), *more]
    # The tracker of a killed process warns of what that left.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, env=environment)


def _wait(process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        raise SystemExit(f"a sweep ended with code {process.returncode}")


def _killed(sweep: Path, out: Path, kills: int, rng: random.Random, whole_s: float) -> list[float]:
    """Start, kill at a random moment, start again; after the last kill to the end. The moments, from each start."""
    moments = []
    for _ in range(kills):
        moment = rng.uniform(0.02, 0.35) * whole_s
        process = _start(sweep, out, "--workers", str(WORKERS))
        time.sleep(moment)
        if process.poll() is not None:
            raise SystemExit("a sweep ended before its kill; there is nothing left to disturb")
        process.kill()
        process.wait()
        moments.append(moment)
        deadline = time.monotonic() + GONE_S
        while _group(process.pid):
            if time.monotonic() > deadline:
                raise SystemExit(f"workers of a killed sweep are still there after {GONE_S:.0f} s")
            time.sleep(0.2)
    _wait(_start(sweep, out, "--workers", str(WORKERS)))
    return moments


def _worker_killed(sweep: Path, out: Path, moment: float) -> None:
    process = _start(sweep, out, "--workers", str(WORKERS))
    time.sleep(moment)
    workers = [pid for pid in _group(process.pid) if pid != process.pid and "spawn_main" in _command(pid)]
    os.kill(workers[0], signal.SIGKILL)
    _wait(process)


def _group(leader: int) -> list[int]:
    """The processes of a session, from /proc; the dead that nobody waited for are none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """A scheduler and two workers, each a process of its own, on loopback."""
    found = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    at = ["--scheduler-file", str(found)]
    scheduler = [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", *at]
    worker = [*dask, "worker", "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard", *at]
    processes = [subprocess.Popen(scheduler, stderr=subprocess.DEVNULL)]
    try:
        while not found.exists():
            time.sleep(0.2)
        processes += [subprocess.Popen(worker, cwd=folder, stderr=subprocess.DEVNULL) for _ in range(WORKERS)]
        yield json.loads(found.read_text(encoding="utf-8"))["address"]
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
