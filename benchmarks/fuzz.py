"""Damaged and hostile inputs: each must end in an answer or in one message, and read nothing outside of its folder.

    python -m benchmarks.fuzz [--count 1000] [--seed 0] [--models | --commands] [--jobs N]
                               [--keep FOLDER] [--output FILE.md]

Models (seven small ones), external data, plans, devices, profiles, sweeps, archives and problem files are damaged
(`benchmarks.damage`, `benchmarks.mutants`), and read by the command that they are for, each in a process of its own,
which may take 10 s of a processor, a minute and 2 GB. A traceback, a signal, a limit, or the content of a file outside
of the folder in anything that is written is a failure; `--keep` keeps those inputs. A seed gives the same inputs.

`--commands`: what `lora`, `quantize`, `lora --merge`, `restore`, `show`, `run --meter`, `profile` and `sweep` read. A
network that is written and that `inspect` doesn't read, though it reads the one that it was made of, is a failure, too.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.damage import OPTIONS, adaptable, damaged, models
from benchmarks.mutants import COMMANDS, KINDS, SECRET, SWEEP_ALONE, Case, Sound, cases

SECONDS, WAITED = 10, 60
"""Of a processor, and on the clock: others may have the processor, and a pipe takes none."""
BYTES = 2 * 10**9
DEFECT = 70
"""Exit code of a child that ended in a traceback."""


@dataclass(frozen=True)
class Outcome:
    """How one input ended: the exit code, what stderr had, seconds, bytes. `failure` is empty where all is well."""

    code: int
    message: str
    seconds: float
    nbytes: int
    leaked: bool = False
    unread: str = ""

    @property
    def failure(self) -> str:
        """What is wrong with it, in a few words."""
        if self.leaked:
            return "a leak"
        if self.unread:
            return f"nobody reads what was written: {self.unread}"
        if self.seconds > SECONDS:
            return f"{self.seconds:.0f} s"
        if self.code < 0:
            return signal.Signals(-self.code).name
        if self.code == DEFECT or "Traceback" in self.message:
            return "a traceback"
        if self.nbytes > BYTES:
            return f"{self.nbytes / 1e9:.1f} GB"
        if self.code and len(self.message.strip().splitlines()) != 1:
            return "not one message"
        return "" if self.code in (0, 2, 3, 4, 5) else f"exit code {self.code}"


def tried(path: Path, *more: str) -> Outcome:
    """Inspect one model in a child process with limits; what this process has imported, the child has too."""
    return attempted(path.parent, ("inspect", str(path), *more, "--device", "a72"))


def attempted(folder: Path, command: Sequence[str]) -> Outcome:
    """One command line, in `folder`."""
    before = set(folder.rglob("*"))
    begin = time.monotonic()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            _child(folder, command, said.fileno(), told.fileno())
        code, status, used = None, 0, None
        while code is None:
            ended, status, used = os.wait4(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() - begin > WAITED:
                os.kill(child, signal.SIGKILL)
                _, status, used = os.wait4(child, 0)
                code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.002)
        waited = time.monotonic() - begin
        seconds = waited if waited > WAITED or used is None else used.ru_utime + used.ru_stime
        said.seek(0)
        told.seek(0)
        written = [said.read(), told.read()]
    message = written[1].decode(errors="replace")
    written += [path.read_bytes() for path in set(folder.rglob("*")) - before if path.is_file()]
    leaked = any(SECRET in content for content in written)
    return Outcome(code, message, seconds, (used.ru_maxrss if used else 0) * 1024, leaked)


def _child(folder: Path, command: Sequence[str], stdout: int, stderr: int) -> None:
    """Never returns."""
    code = DEFECT
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (2 * BYTES, 2 * BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        sys.stdout, sys.stderr = (
            os.fdopen(1, "w", errors="backslashreplace"),
            os.fdopen(2, "w", errors="backslashreplace"),
        )
        code = _run(list(command))
    except BaseException:  # noqa: BLE001 - whatever it is, it is a defect, and is told
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(command: list[str]) -> int:
    from poetopt.cli.app import invoke
    from poetopt.cli.console import guarded

    if command[0] != "sweep":
        return invoke(command)

    def points() -> int:
        from poetopt.api.sweeps import Swept, opened, read_sweep, rows_of
        from poetopt.cli.console import say, write_json

        found = read_sweep(command[1])
        if len(command) > 2:  # as of a sweep that is over: workers would take most of the time
            with opened(command[2], found) as connection:
                rows = tuple(rows_of(connection, found).values())
            swept = Swept(command[2], len(found), rows, 0, (), 0.0)
            write_json(swept.to_dict(), "told.json")
            say(str(swept), unless=[])
        return 0

    return guarded(points)


PLAIN = (
    "solve mlp --device a72 --ram 80% -o plan.json --time-limit 5s",
    "run plan.json --dump batch.npz",
    "profile mlp -o profile.toml",
)
OF_COMMANDS = (
    "solve net.onnx --device a72 --ram 95% -o plan.json --time-limit 5s",
    "run plan.json --dump batch.npz",
    "profile net.onnx --template table.csv",
    "lora net.onnx --targets * --rank 2 -o adapted.onnx",
    "quantize net.onnx --block 16 -o quantized.onnx",
    "lora quantized.onnx --targets * --rank 2 -o both.onnx",
    "solve net.onnx --device m4 --ram 100% --optimizer sgd -o device.json",
)
"""Commands that make sound inputs."""
_OWN = ("device.json", "storage.bin", "results.sqlite", "table.csv")


def make_files(lines: Sequence[str]) -> None:
    """Make the files of sound inputs in the current folder."""
    from poetopt.api.sweeps import evaluate, opened, put, read_sweep
    from poetopt.cli.app import invoke

    Path("net.onnx").write_bytes(adaptable().SerializeToString())
    for line in lines:
        if invoke(line.split()):
            sys.exit(f"{line}: refused")
    if lines is not OF_COMMANDS:
        return
    Path("sweep.toml").write_bytes(SWEEP_ALONE)
    Path("storage.bin").write_bytes(_storage())
    points = read_sweep("sweep.toml")
    with opened("results.sqlite", points) as connection:
        for point in points:
            put(connection, point, evaluate(point))
    with Path("table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with Path("table.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows({**row, "time_s": 0.25 + 1e-8 * float(row["bytes"] or 0)} for row in rows)
    if invoke(["profile", "net.onnx", "--from-csv", "table.csv", "--power", "3W", "-o", "p.toml"]):
        sys.exit("the table of measurements is refused")


def _storage() -> bytes:
    """What the storage holds before the first step, as a device has it."""
    from poetopt.api.plans import load_plan
    from poetopt.backends.c.generations import blocks, copy_at, first_copy
    from poetopt.backends.c.program import device_program
    from poetopt.backends.step.places import graph_of
    from poetopt.search.predicting import prediction_of

    plan = load_plan("device.json").plan
    graph = graph_of(plan)
    program = device_program(plan, graph, weights_on_storage=False, prediction=prediction_of(plan, graph))
    unit = program.storage.block_bytes
    copy = bytes(copy_at(program, 0) * unit) + first_copy(program)
    return copy.ljust(blocks(program) * unit, b"\0")


def sound_inputs(folder: Path, *, commands: bool) -> Sound:
    """What the damaged inputs are made of, by a process of its own: a solver's threads don't survive a fork."""
    lines = "OF_COMMANDS" if commands else "PLAIN"
    subprocess.run(
        [sys.executable, "-c", f"from benchmarks import fuzz; fuzz.make_files(fuzz.{lines})"],
        cwd=folder, text=True, check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])},
    )  # fmt: skip
    _load_everything(folder)
    from poetopt.devices.loading import CATALOGUE

    device = (CATALOGUE / "a72.toml").read_bytes()
    plan, data = ((folder / name).read_bytes() for name in ("plan.json", "batch.npz"))
    if not commands:
        return Sound(plan, device, (folder / "profile.toml").read_bytes(), _problem(), data)
    names = ("net.onnx", "adapted.onnx", "quantized.onnx", "both.onnx")
    networks = tuple((folder / name).read_bytes() for name in names)
    profile = (folder / "p.toml").read_bytes()
    return Sound(plan, device, profile, _problem(), data, networks, *((folder / name).read_bytes() for name in _OWN))


def _load_everything(folder: Path) -> None:
    """Import what a child needs, so that each starts in milliseconds."""
    import highspy  # noqa: F401

    import poetopt.api.solving
    import poetopt.backends.onnxruntime
    import poetopt.formulations
    import poetopt.search.run  # noqa: F401
    from poetopt.cli.app import invoke

    (folder / "sound.onnx").write_bytes(models()[0].SerializeToString())
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        for command in (
            ("inspect", str(folder / "sound.onnx"), "--device", "a72"),
            ("verify", str(folder / "plan.json")),
        ):
            if invoke(list(command)):
                raise SystemExit("a sound input is refused")
    finally:
        sys.stdout.flush()
        os.dup2(out, 1)


def _problem() -> bytes:
    import json

    nodes = [{"name": f"n{k}", "bytes": 1000 * (k % 3 + 1), "backward": k > 4} for k in range(9)]
    edges = [[k, k + 1] for k in range(8)] + [[k, 8 - k] for k in range(1, 4)]
    costs = {
        key: [0.01 * (k % 4) for k in range(9)]
        for key in ("compute_s", "compute_j", "page_in_s", "page_in_j", "page_out_s", "page_out_j")
    }
    return json.dumps({"name": "chain", "nodes": nodes, "edges": edges, "costs": {"a72": costs}}).encode()


def laid_out(case: Case, root: Path) -> Path:
    """The folder of a case, made anew inside `root`, where the secret lies."""
    shutil.rmtree(root, ignore_errors=True)
    folder = root / "inputs"
    folder.mkdir(parents=True)
    for name in ("secret.bin", "secret.onnx"):
        (root / name).write_bytes(SECRET * 200)
    for name, content in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for name, target in case.links.items():
        (folder / name).symlink_to(target)
    for name in case.pipes:
        os.mkfifo(folder / name)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", action="store_true", help="damaged models alone")
    parser.add_argument("--commands", action="store_true", help="what other commands read")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="so many at once")
    parser.add_argument("--keep", type=Path, help="keep inputs that fail there")
    parser.add_argument("--output", type=Path, help="write the table there")
    options = parser.parse_args()
    codes: dict[str, Counter[int]] = defaultdict(Counter)
    failed: Counter[str] = Counter()
    slowest: dict[str, float] = defaultdict(float)
    largest: dict[str, int] = defaultdict(int)
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        sound = sound_inputs(Path(name), commands=options.commands)
        kinds = COMMANDS if options.commands else KINDS
        made = _models(options) if options.models else cases(options.seed, options.count, sound, kinds)
        pool = stack.enter_context(multiprocessing.get_context("fork").Pool(options.jobs))
        for case, outcome in pool.imap_unordered(partial(_tried, Path(name)), made):
            kind = case.label.split(": ")[1].split(" of ")[0]
            codes[kind][outcome.code] += 1
            slowest[kind], largest[kind] = max(slowest[kind], outcome.seconds), max(largest[kind], outcome.nbytes)
            if outcome.failure:
                failed[kind] += 1
                lines = outcome.message.strip().splitlines() or [""]
                print(f"{case.label}: {outcome.failure}: {' / '.join(lines[-5:])[:600]}", flush=True)
                if options.keep:
                    kept = laid_out(case, options.keep / f"{options.seed}-{case.label.split(':')[0]}")
                    (kept / "command").write_text(" ".join(case.command), encoding="utf-8")
    told = ", ".join(f"{count} with code {code}" for code, count in sorted(sum(codes.values(), Counter()).items()))
    most = f"at most {max(slowest.values()):.1f} s and {max(largest.values()) / 1e6:.0f} MB"
    print(f"{options.count} inputs: {told}; {failed.total()} failures; {most}")
    if options.output:
        rows = [
            f"| {kind} | {found.total()} | {_codes(found)} | {failed[kind]} "
            f"| {slowest[kind]:.1f} | {largest[kind] / 1e6:.0f} |"
            for kind, found in sorted(codes.items())
        ]
        options.output.write_text("\n".join((*_title(options), *rows)) + "\n", encoding="utf-8")
    sys.exit(bool(failed))


def _tried(root: Path, case: Case) -> tuple[Case, Outcome]:
    """One case; where a network was written, it is looked at as the one that it was made of."""
    folder = laid_out(case, root / f"case-{os.getpid()}")
    outcome, written = attempted(folder, case.command), folder / "out.onnx"
    if outcome.code or not written.exists() or case.command[0] not in ("lora", "quantize"):
        return case, outcome
    ended = tried(written)
    unread = ended.code != 0 and tried(folder / "m.onnx").code == 0
    return case, replace(outcome, unread=ended.message) if unread else outcome


def _title(options: argparse.Namespace) -> tuple[str, ...]:
    more = " --commands" if options.commands else ""
    return (
        "# Damaged and hostile inputs",
        "",
        f"`python -m benchmarks.fuzz --count {options.count} --seed {options.seed}{more}`: each in a process of "
        f"its own, which may take {SECONDS} s of a processor, {WAITED} s and {BYTES / 1e9:.0f} GB. Failures are "
        "tracebacks, signals, limits, more than one message, and bytes of a file outside of the input's folder.",
        "",
        "| inputs | tried | exit codes | failures | slowest, s | largest, MB |",
        "|---|---|---|---|---|---|",
    )


def _codes(found: Counter[int]) -> str:
    return ", ".join(f"{code}: {count}" for code, count in sorted(found.items()))


def _models(options: argparse.Namespace) -> list[Case]:
    return [
        Case(made, ("inspect", "m.onnx", "--device", "a72", *OPTIONS.get(made.split()[-1], ())), {"m.onnx": data})
        for made, data in damaged(options.seed, options.count)
    ]


if __name__ == "__main__":
    main()
