"""CBC, as a program: `cbc` on the PATH (Debian's package coinor-cbc), or the one that PuLP brings (the extra `cbc`).

It keeps nothing between two calls, so that each is a model file out and a solution file in. Its log says how the bound
rises; better solutions show only at the end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from poetopt.backends.solvers.attend import Attendant
from poetopt.backends.solvers.model_file import mps_lines
from poetopt.backends.solvers.session import MatrixSession, refuse_reserved, unbounded
from poetopt.backends.solvers.solver import NO_OPTIONS, Capability, Floats, Frozen, Outcome, Point, Relaxation, Search
from poetopt.util.errors import BackendUnavailableError, OptionError, PoetError
from poetopt.util.scratch import scratch_folder

RESERVED = {
    "sec": "--time-limit",
    "seconds": "--time-limit",
    "timemode": "--time-limit",
    "ratiogap": "--gap",
    "allowablegap": "--gap",
    "threads": "--threads",
    "solution": "--with log",
    "printingoptions": "--with log",
}
GRACE_S = 3.0
"""How long CBC may take to end after it has been asked to, before it is killed."""
BOUND = re.compile(r"best possible (\S+)|^Lower bound:\s+(\S+)|^Continuous objective value is (\S+)")
UNKNOWN_OPTION = re.compile(r"^No match for (\S+) - \?")

_attendant = Attendant("cbc", grace_s=0.7)  # what CBC has found is told as it ends


@dataclass(frozen=True)
class Answer:
    """CBC's solution file.

    status
        Its first line's words before the dash, as `Optimal` or `Stopped on time`.
    values, reduced
        (n,) by column; `activity`, `multipliers` (m,) by row, where rows were printed.
    """

    status: str
    objective: float
    values: Floats
    reduced: Floats
    activity: Floats
    multipliers: Floats


def executable() -> str:
    """The path of CBC's program. Raises BackendUnavailableError where there is none."""
    found = shutil.which("cbc")
    if found is not None:
        return found
    spec = importlib.util.find_spec("pulp")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for bundled in _bundled(Path(folder, "solverdir", "cbc")):
            if os.access(bundled, os.X_OK):
                return str(bundled)
    raise BackendUnavailableError(
        "backend 'cbc' is not installed: there is no program `cbc` on the PATH; install it with: "
        "pip install 'poetopt[cbc]' (or apt install coinor-cbc, brew install cbc)"
    )


def _bundled(folder: Path) -> list[Path]:
    """Where PuLP keeps the program for this machine."""
    system = {"darwin": "osx", "win32": "win"}.get(sys.platform, "linux")
    machine = "arm64" if platform.machine().lower() in ("arm64", "aarch64") else "i64"
    return [folder / system / machine / ("cbc.exe" if system == "win" else "cbc")]


class CbcSession(MatrixSession):
    """One Pyomo model, for CBC."""

    capabilities = frozenset({Capability.WARM_START, Capability.BOUND, Capability.DUALS, Capability.THREADS})

    def __init__(
        self, model: Any, program: str, *, threads: int, scale: float, options: Mapping[str, str], log: str | None
    ) -> None:
        super().__init__(model, threads=threads, scale=scale)
        self._program, self._options, self._log = program, options, log

    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""
        trivial = self._nothing_to_solve()
        if trivial is not None:
            return trivial
        arguments = ["-initialSolve", "-printingOptions", "all"]
        answer, interrupted = self._solve(arguments, time_limit_s, relaxed=True)
        if interrupted:
            raise KeyboardInterrupt
        if answer is None or answer.status.startswith("Stopped"):
            return Relaxation(Outcome.STOPPED, self._bound, None)
        if _infeasible(answer.status):
            return Relaxation(Outcome.INFEASIBLE, math.inf, None)
        if answer.status.startswith("Unbounded"):
            raise unbounded()
        if not answer.status.startswith("Optimal"):
            return Relaxation(Outcome.STOPPED, self._bound, None)
        return self._solved(answer.objective, answer.values, answer.activity, answer.reduced, answer.multipliers)

    def search(
        self,
        *,
        time_limit_s: float,
        gap: float,
        start: Sequence[tuple[Any, Floats]] | None,
        on_point: Callable[[Point], None],
        on_bound: Callable[[float], None],
        frozen: Sequence[Frozen] = (),
        cutoff: float | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> Search:
        """Solve to integrality within the relative `gap`; see the contract."""
        trivial = self._nothing_to_search()
        if trivial is not None:
            return trivial
        proven = [-math.inf]

        def watch(line: str) -> None:
            match = BOUND.search(line)
            if match is None:
                return
            bound = self._objective(_number(next(group for group in match.groups() if group)))
            if math.isfinite(bound) and abs(bound) < 1e40 and bound > proven[0]:
                proven[0] = bound
                if not frozen and bound > self._bound:
                    self._bound = bound
                    on_bound(bound)

        arguments = ["-ratioGap", repr(gap), "-solve"]
        answer, interrupted = self._solve(arguments, time_limit_s, start=start, frozen=frozen, watch=watch)
        if answer is None:
            if interrupted:
                raise KeyboardInterrupt
            return Search(Outcome.STOPPED, None, math.inf, self._bound)
        if _infeasible(answer.status) and not interrupted:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if answer.status.startswith("Unbounded"):
            raise unbounded()
        found = None
        if "no integer solution" not in answer.status and self._whole(answer.values):
            found = self._point(answer.values, True)
            on_point(found)
        if interrupted:
            raise KeyboardInterrupt
        objective = self._objective(answer.objective) if found is not None else math.inf
        finished = answer.status.startswith("Optimal") and found is not None
        if finished and not frozen and self._finished_exactly:
            self._bound = max(self._bound, objective)
        return Search(Outcome.OPTIMAL if finished else Outcome.STOPPED, found, objective, self._bound)

    def _whole(self, values: Floats) -> bool:
        integers = values[self._matrix.integer]
        return bool(np.all(np.abs(integers - np.round(integers)) < 1e-5))

    def _solve(
        self,
        arguments: Sequence[str],
        time_limit_s: float,
        *,
        relaxed: bool = False,
        start: Sequence[tuple[Any, Floats]] | None = None,
        frozen: Sequence[Frozen] = (),
        watch: Callable[[str], None] | None = None,
    ) -> tuple[Answer | None, bool]:
        """Run CBC once: its answer, or None where it wrote none; and whether it was interrupted."""
        lower, upper = self._lower.copy(), self._upper.copy()
        held, values = self._columns.frozen(frozen)
        lower[held] = upper[held] = values
        whole = replace(self._matrix.extended(self._added), lower=lower, upper=upper)
        m, n = whole.shape
        until = time.monotonic() + time_limit_s
        with scratch_folder("cbc") as folder:
            model, begin, solution = (str(Path(folder, name)) for name in ("model.mps", "start.sol", "found.sol"))
            with open(model, "w", encoding="ascii") as file:
                columns, rows = [f"c{x}" for x in range(n)], [f"r{x}" for x in range(m)]
                file.writelines(mps_lines(whole, columns, rows, scale=self._scale, relaxed=relaxed))
            left_s = max(0.1, until - time.monotonic())
            command = [self._program, model, "-timeMode", "elapsed", "-sec", f"{left_s:.3f}"]
            if self._threads > 1:
                command += ["-threads", str(self._threads)]
            if start is not None:
                with open(begin, "w", encoding="ascii") as file:
                    file.writelines(self._start_lines(start))
                command += ["-mips", begin]
            for key, value in self._options.items():
                command += [f"-{key}", value]
            process = Process([*command, *arguments, "-solution", solution], folder, self._log, watch)
            try:
                interrupted = _attendant.run(process.run, process.stop, time.monotonic() + left_s + GRACE_S)
            except KeyboardInterrupt:
                process.kill()
                raise
            self._check_options(process.unknown)
            self._finished_exactly = not process.gapped
            if not os.path.exists(solution):
                if process.code and not process.stopped:
                    raise PoetError(f"CBC ended with code {process.code}: {process.last or 'it said nothing'}")
                return None, interrupted
            with open(solution, encoding="ascii", errors="replace") as file:
                return _read(file.read(), m, n), interrupted

    def _start_lines(self, start: Sequence[tuple[Any, Floats]]) -> list[str]:
        values = self._columns.spread(start)
        known = np.flatnonzero(~np.isnan(values) & self._matrix.integer)
        return ["Stopped on time - objective value 0\n", *(f"{x} c{x} {values[x]:.0f} 0\n" for x in known.tolist())]

    def _check_options(self, unknown: Sequence[str]) -> None:
        for key, value in self._options.items():
            if {key, f"-{key}", value} & set(unknown):
                raise OptionError(f"--with solver-option={key}={value}: CBC knows no such option; `cbc -?` lists them")


class Process:
    """One run of the program. It has a session of its own: a Ctrl-C in the terminal is for us to pass on."""

    def __init__(
        self, command: Sequence[str], folder: str, log: str | None, watch: Callable[[str], None] | None
    ) -> None:
        self._command, self._folder, self._log, self._watch = command, folder, log, watch
        self._wanted = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.code: int | None = None
        self.unknown: list[str] = []
        self.gapped = False
        self.last = ""

    def stop(self) -> None:
        """Ask it to end."""
        self._wanted.set()

    def kill(self) -> None:
        """End it now, without an answer. May be called from any thread."""
        self.stop()
        if self._process is not None:
            self._process.kill()

    def run(self) -> None:
        """Run it to its end, and read its log line by line meanwhile."""
        process = self._process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        while process.poll() is None:
            if self._wanted.wait(0.02):
                self.stopped = True
                self._end(process)
        reader.join()
        self.code = process.returncode

    def _end(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with contextlib.ExitStack() as stack:
            log = (
                None if self._log is None else stack.enter_context(open(self._log, "a", buffering=1, encoding="utf-8"))
            )
            for line in process.stdout:
                if log is not None:
                    log.write(line)
                if line.strip():
                    self.last = line.strip()
                match = UNKNOWN_OPTION.match(line)
                if match is not None:
                    self.unknown.append(match[1])
                self.gapped |= "within gap tolerance" in line
                if self._watch is not None:
                    self._watch(line)


def _number(text: str) -> float:
    try:
        return float(text.rstrip(",)"))
    except ValueError:
        return math.nan


def _infeasible(status: str) -> bool:
    return status.startswith(("Infeasible", "Integer infeasible"))


def _read(text: str, m: int, n: int) -> Answer | None:
    """CBC's solution file: a line of status, then `index name value dual`, marked ** where a bound is broken."""
    head, _, body = text.partition("\n")
    status, dash, rest = head.partition(" - objective value")
    if not dash:
        return None
    values, reduced, activity, multipliers = np.zeros(n), np.zeros(n), np.zeros(m), np.zeros(m)
    for line in body.splitlines():
        fields = line.replace("**", " ").split()
        if len(fields) != 4:
            continue
        place = int(fields[1][1:])
        first, second = (values, reduced) if fields[1][0] == "c" else (activity, multipliers)
        first[place], second[place] = float(fields[2]), float(fields[3])
    return Answer(status.strip(), _number(rest.strip() or "nan"), values, reduced, activity, multipliers)


class CbcBackend:
    """CBC (COIN-OR branch and cut)."""

    name = "cbc"
    capabilities = CbcSession.capabilities

    def open(
        self,
        model: Any,
        *,
        threads: int,
        scale: float,
        options: Mapping[str, str] = NO_OPTIONS,
        log: str | None = None,
    ) -> CbcSession:
        """Compile `model` for CBC."""
        refuse_reserved("CBC", options, RESERVED)
        return CbcSession(model, executable(), threads=threads, scale=scale, options=options, log=log)


backend = CbcBackend()
