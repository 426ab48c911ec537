"""Kills at random moments: nothing half-written, nothing left.

    python -m benchmarks.kills [--kills 100] [--seed 0] [--only solve,steps,sweep] [--output FILE.md]

Each command is started, and killed (SIGKILL, every third time SIGTERM, or SIGINT) at a moment that is drawn with the
seed from what it takes undisturbed, imports left out: it is at work then. Kills that come too late don't count. After
each kill its outputs are as before or whole, and what SIGTERM or SIGINT ended has left nothing. Then the command runs
to its end once: what SIGKILL left is gone with it.
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
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.output import put

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGINT)
GONE_S = 30.0
"""So long the processes of a killed command have to end."""
SWEEP = (
    'models = ["mlp"]\ndevices = ["a72", "m4"]\nram = "90%..100%/3"\nmethods = ["poet", "dtr"]\ntime_limit = "10s"\n'
)


@dataclass
class Command:
    """A command line, the outputs that it writes, and how to tell whether one is whole."""

    name: str
    arguments: tuple[str, ...]
    outputs: dict[str, Callable[[Path], None]]
    grows: bool = False
    """Whether a killed one leaves its output, to be gone on with."""
    began_s: float = 0.0
    took_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="solve,steps,sweep")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [
        "# Kills at random moments",
        "",
        f"`python -m benchmarks.kills --kills {options.kills} --seed {options.seed}`: SIGKILL, every "
        "third time SIGTERM or SIGINT, while the command is at work. Its outputs are looked at after each kill; "
        "temporary files and folders, beside the outputs and in the temporary folder, after SIGTERM and SIGINT, and "
        "after the run to the end that follows all kills.",
        "",
        "| command | kills | ended by them | had ended before | seconds undisturbed | half-written | left |",
        "|---|---|---|---|---|---|---|",
    ]
    failed = False
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            command = _COMMANDS[name](Path(folder))
            _killed(command, Path(folder), options.kills, random.Random(f"{options.seed}/{name}"))
        half = [problem for problem in command.problems if "half" in problem]
        left = [problem for problem in command.problems if "half" not in problem]
        failed = failed or bool(command.problems)
        by = ", ".join(f"{count} {what}" for what, count in sorted(command.ended.items()) if what != "before")
        cells = [
            f"`{' '.join(command.arguments)}`",
            options.kills,
            by,
            command.ended["before"],
            f"{command.took_s:.1f}",
        ]
        lines.append(
            f"| {' | '.join(map(str, [*cells, '; '.join(half[:3]) or 'none', '; '.join(left[:3]) or 'nothing']))} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    put(lines, options.output)
    sys.exit(failed)


def _json(path: Path) -> None:
    json.loads(path.read_text(encoding="utf-8"))


def _plan(path: Path) -> None:
    from poetopt.plan.codec import load

    load(path)


def _arrays(path: Path) -> None:
    with np.load(path) as archive:
        for name in archive.files:
            archive[name]


def _rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise ValueError("damaged")


def _solve(folder: Path) -> Command:
    line = "solve lenet --device a72 --ram 97% --time-limit 1s -o plan.json --json told.json"
    return Command("solve", tuple(line.split()), {"plan.json": _plan, "told.json": _json})


def _steps(folder: Path) -> Command:
    _end(folder, ("solve", "lenet", "--device", "a72", "--ram", "98%", "--time-limit", "5s", "-o", "given.json"))
    line = "run given.json --steps 100 --lr 0.01 --dump step.npz --json told.json --workdir pages"
    (folder / "pages").mkdir()
    return Command("steps", tuple(line.split()), {"step.npz": _arrays, "told.json": _json})


def _sweep(folder: Path) -> Command:
    (folder / "sweep.toml").write_text(SWEEP, encoding="utf-8")
    line = "sweep sweep.toml -o rows.sqlite --workers 1 --json told.json"
    return Command("sweep", tuple(line.split()), {"rows.sqlite": _rows, "told.json": _json}, grows=True)


_COMMANDS: dict[str, Callable[[Path], Command]] = {"solve": _solve, "steps": _steps, "sweep": _sweep}


def start(folder: Path, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """A command line of the program, in `folder`, in a session of its own."""
    program = [sys.executable, "-c", "from poetopt.cli.app import main; main()"]
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {
        **os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    return subprocess.Popen(
        [*program, *arguments], cwd=folder, env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _end(folder: Path, arguments: tuple[str, ...]) -> float:
    begin = time.monotonic()
    code = start(folder, arguments).wait()
    if code:
        raise SystemExit(f"{' '.join(arguments)}: ended with code {code}")
    return time.monotonic() - begin


def _killed(command: Command, folder: Path, kills: int, rng: random.Random) -> None:
    known = {path.name for path in folder.iterdir()} | {"tmp", *command.outputs}
    command.began_s = _end(folder, (command.arguments[0], "--help"))
    command.took_s = _end(folder, command.arguments)
    before = {name: (folder / name).read_bytes() for name in command.outputs}
    hits = 0
    for number in range(2 * kills):
        # Half of them begin with the outputs of an earlier run, half without any.
        there = before if number % 2 and not command.grows else {}
        for name in command.outputs:
            (folder / name).unlink(missing_ok=True)
        for name, content in there.items():
            (folder / name).write_bytes(content)
        hits += _kill(command, folder, SIGNALS[hits % len(SIGNALS)], rng, known, there)
        if hits == kills:
            break
    _end(folder, command.arguments)
    command.problems += [f"left after the next run: {name}" for name in _strangers(folder, known)]


def _kill(
    command: Command, folder: Path, sign: signal.Signals, rng: random.Random, known: set[str], before: dict[str, bytes]
) -> bool:
    """Whether the command was still there."""
    old = set(_strangers(folder, known))
    process = start(folder, command.arguments)
    # The last moments, where outputs are written, are as likely as all others together.
    low = command.began_s if rng.random() < 0.5 else 0.85 * command.took_s
    time.sleep(rng.uniform(low, 1.02 * command.took_s))
    if process.poll() is not None:
        command.ended["before"] += 1
        return False
    os.kill(process.pid, sign)
    process.wait()
    command.ended[sign.name] += 1
    limit = time.monotonic() + GONE_S
    while _group(process.pid):
        if time.monotonic() > limit:
            command.problems.append(f"a process is left after {sign.name}")
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.1)
    for name, whole in command.outputs.items():
        path = folder / name
        if not path.exists() or path.read_bytes() == before.get(name):
            continue
        try:
            whole(path)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it isn't whole
            command.problems.append(f"half-written after {sign.name}: {name} ({error})")
    if sign != signal.SIGKILL:
        left = [name for name in _strangers(folder, known) if name not in old]
        command.problems += [f"left after {sign.name}: {name}" for name in left]
    return True


def _strangers(folder: Path, known: set[str]) -> list[str]:
    """What is in the folder, or in its temporary one, and belongs to nobody."""
    beside = [path.name for path in folder.iterdir() if path.name not in known]
    pages = [path.name for path in (folder / "pages").glob("*")]
    return beside + pages + [f"tmp/{path.name}" for path in (folder / "tmp").iterdir()]


def _group(leader: int) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main()
