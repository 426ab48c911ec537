"""Solvers beside HiGHS: whatever Pyomo's `SolverFactory` knows (CBC, GLPK, CPLEX, Xpress, ...), and SCIP.

Relaxations, cuts and multipliers are HiGHS's, which is always there; the integer search is theirs. A search is a model
out, and values with a bound back: a point is told at the end, and held against the model's rows before.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import shutil
import signal
import subprocess
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.common import Executable
from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.opt import SolverStatus
from pyomo.opt.solver import SystemCallSolver

from poetopt.backends.solvers.attend import Attendant
from poetopt.backends.solvers.highs import HighsSession
from poetopt.backends.solvers.matrix import Matrix
from poetopt.backends.solvers.session import option_error, refuse_reserved, unbounded
from poetopt.backends.solvers.solver import NO_OPTIONS, Capability, Frozen, Outcome, Point, Search, Session
from poetopt.formulations.rows import Floats
from poetopt.util.errors import BackendUnavailableError, PoetError
from poetopt.util.files import scratch_folder
from poetopt.util.text import closest

CAPABILITIES = frozenset({Capability.NODES})
GRACE_S = 3.0
"""The longest that a program may take to end after it has been asked to, before it is killed."""
TOLERANCE = 1e-5
"""The distance at which a value counts as whole, and, relative to its terms, a row as kept."""

_attendant = Attendant("programs", grace_s=0.7)  # what a program has found is told as it ends


@dataclass(frozen=True)
class Answer:
    """A solver's answer: OPTIMAL within the tolerance that was asked for, INFEASIBLE, or STOPPED.

    values, bound
        (n,) by column, None where there are none; what is proven, -inf where that is nothing.
    """

    outcome: Outcome
    values: Floats | None = None
    bound: float = -math.inf


@dataclass(frozen=True)
class Asked:
    """One search: the model, whose constant is 0, values to begin with (NaN: none), and a folder for files."""

    matrix: Matrix
    seconds: float
    gap: float
    start: Floats
    folder: Path


class _OtherSession(HighsSession):
    """One Pyomo model, open in HiGHS for its relaxation, and handed to another solver for each search."""

    def __init__(self, model: Any, capabilities: frozenset[Capability], **more: Any) -> None:
        super().__init__(model, **more)
        self.capabilities = capabilities

    @abstractmethod
    def _solve(self, asked: Asked) -> tuple[Callable[[], Answer], Callable[[], None]]:
        """Two functions: one solves it, the other ends that early, from another thread."""

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
        until = time.monotonic() + time_limit_s
        lower, upper = self._lower.copy(), self._upper.copy()
        held, fixed = self._columns.frozen(frozen)
        lower[held] = upper[held] = fixed
        whole = replace(self._matrix.extended(self._added), lower=lower, upper=upper)
        begin = np.full(len(lower), np.nan) if start is None else self._columns.spread(start)
        scaled = replace(whole, costs=whole.costs * self._scale, constant=0.0)
        with scratch_folder("model") as folder:
            asked = Asked(scaled, max(0.1, until - time.monotonic()), gap, begin, Path(folder))
            work, stop = self._solve(asked)
            answers: list[Answer] = []
            interrupted = _attendant.run(lambda: answers.append(work()), stop, until + GRACE_S)
        (answer,) = answers
        point, objective = None, math.inf
        values = None if answer.values is None else np.clip(answer.values, whole.lower, whole.upper)
        if values is not None and _holds(whole, values):
            values[whole.integer] = np.round(values[whole.integer])
            point, objective = self._point(values, True), float(whole.costs @ values) + whole.constant
            on_point(point)
        self._prove(answer, objective, frozen, on_bound)
        if interrupted:
            raise KeyboardInterrupt
        if answer.outcome is Outcome.INFEASIBLE:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if point is None and time.monotonic() < until:  # neither: it may be unbounded, or infeasible as a relaxation
            relaxed = self.relax(max(0.1, until - time.monotonic()))
            if relaxed.outcome is Outcome.INFEASIBLE:
                return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        finished = answer.outcome is Outcome.OPTIMAL and point is not None
        return Search(Outcome.OPTIMAL if finished else Outcome.STOPPED, point, objective, self._bound)

    def _prove(
        self, answer: Answer, objective: float, frozen: Sequence[Frozen], on_bound: Callable[[float], None]
    ) -> None:
        if frozen or answer.outcome is Outcome.INFEASIBLE:
            return
        if self._proven(min(self._objective(answer.bound), objective)):
            on_bound(self._bound)


def _holds(matrix: Matrix, values: Floats) -> bool:
    """Say whether a point within bounds is whole where it must be, and keeps the rows."""
    whole = values[matrix.integer]
    activity, room = matrix.rows @ values, TOLERANCE * (1.0 + np.abs(matrix.rows) @ np.abs(values))
    kept = np.all((activity >= matrix.row_lower - room) & (activity <= matrix.row_upper + room))
    return bool(kept and np.all(np.abs(whole - np.round(whole)) < TOLERANCE))


@dataclass(frozen=True)
class Known:
    """The facts about one of Pyomo's solvers.

    gap, threads, limit
        The options that set them; None: it has none, so that it solves to the end, in one thread, and to the time
        limit as Pyomo hands it over.
    start
        Whether it takes values to begin with.
    install
        How to get it.
    reserved
        Its options that poetopt sets itself, and which of ours does.
    """

    gap: str | None = None
    threads: str | None = None
    limit: str | None = None
    start: bool = False
    install: str = "install it, so that it is on the PATH"
    reserved: Mapping[str, str] = field(default_factory=dict)


KNOWN = {
    "cbc": Known(
        gap="ratioGap",
        threads="threads",
        start=True,
        install="install it with: pip install 'poetopt[cbc]' (or apt install coinor-cbc, brew install cbc)",
        reserved={
            **dict.fromkeys(("sec", "seconds", "timemode"), "--time-limit"),
            **dict.fromkeys(("ratiogap", "allowablegap"), "--gap"),
            **dict.fromkeys(("solution", "printingoptions"), "--log"),
            "threads": "--threads",
        },
    ),
    "cplex": Known("mipgap", "threads", reserved={"timelimit": "--time-limit", "mipgap": "--gap"}),
    "cplex_direct": Known("mip_tolerances_mipgap", "threads", "timelimit", start=True),
    "gurobi_direct": Known("MIPGap", "Threads", "TimeLimit", start=True),
    "xpress_direct": Known("miprelstop", "threads", "maxtime"),
    "glpk": Known(install="install it with: apt install glpk-utils, brew install glpk", reserved={"mipgap": "--gap"}),
}


class _PyomoSession(_OtherSession):
    """One Pyomo model, for a solver of Pyomo's."""

    def __init__(self, model: Any, solver: Any, known: Known, options: Mapping[str, str], **more: Any) -> None:
        super().__init__(model, **more)
        self._solver, self._known, self._given = solver, known, options

    def _solve(self, asked: Asked) -> tuple[Callable[[], Answer], Callable[[], None]]:
        run = _Run(self._log or str(asked.folder / "log"))
        options: dict[str, object] = dict(self._given)
        if self._known.gap is not None:
            options[self._known.gap] = asked.gap
        if self._known.limit is not None:
            options[self._known.limit] = asked.seconds
        if self._known.threads is not None and self._threads > 1:
            options[self._known.threads] = self._threads
        more = {"warmstart": True} if self._known.start and not np.all(np.isnan(asked.start)) else {}
        model, solver = _as_pyomo(asked.matrix, asked.start), self._solver
        if isinstance(solver, SystemCallSolver):
            solver._execute_command = run.execute  # Pyomo's own can't be ended early

        def work() -> Answer:
            try:
                found = solver.solve(
                    model, timelimit=math.ceil(asked.seconds), options=options, load_solutions=False, **more
                )
            except Exception as error:
                if run.wanted.is_set():
                    return Answer(Outcome.STOPPED)
                told = f"{error}\n{run.text}"
                for key, value in self._given.items():
                    if re.search(rf"(no match|invalid|unknown|no such).*{re.escape(key)}", told, re.IGNORECASE):
                        raise option_error(key, value, f"{self._solver.name} has no such option") from error
                raise error if isinstance(error, PoetError) else PoetError(f"{self._solver.name}: {error}") from error
            for key, value in self._given.items():
                if re.search(rf"no match for -?{re.escape(key)}\b", run.text, re.IGNORECASE):
                    raise option_error(key, value, f"{self._solver.name} has no such option")
            return _answer(model, found, stopped=run.wanted.is_set())

        return work, run.wanted.set


def _as_pyomo(matrix: Matrix, start: Floats) -> Any:
    """The arrays as a model of Pyomo's, whose variable `x[column]` has the start's value."""
    model: Any = pyo.ConcreteModel()
    finite = [
        (None if low == -math.inf else low, None if high == math.inf else high)
        for low, high in zip(matrix.lower.tolist(), matrix.upper.tolist(), strict=True)
    ]
    whole = matrix.integer.tolist()
    model.x = pyo.Var(
        range(len(finite)),
        domain=lambda _, column: pyo.Integers if whole[column] else pyo.Reals,
        bounds=lambda _, column: finite[column],
    )
    for column in np.flatnonzero(~np.isnan(start)).tolist():
        model.x[column].set_value(float(start[column]), skip_validation=True)
    variables = list(model.x.values())
    starts, columns, values = matrix.rows.indptr.tolist(), matrix.rows.indices.tolist(), matrix.rows.data.tolist()
    sides = list(zip(matrix.row_lower.tolist(), matrix.row_upper.tolist(), strict=True))

    def row(_: Any, place: int) -> Any:
        begin, end = starts[place], starts[place + 1]
        body = LinearExpression(
            linear_coefs=values[begin:end], linear_vars=[variables[column] for column in columns[begin:end]]
        )
        low, high = sides[place]
        return (
            body == low
            if low == high
            else (None if low == -math.inf else low, body, None if high == math.inf else high)
        )

    model.row = pyo.Constraint(range(len(sides)), rule=row)
    used = np.flatnonzero(matrix.costs).tolist()
    costs = LinearExpression(linear_coefs=matrix.costs[used].tolist(), linear_vars=[variables[x] for x in used])
    model.cost = pyo.Objective(expr=costs)
    return model


def _answer(model: Any, found: Any, *, stopped: bool) -> Answer:
    condition = str(found.solver.termination_condition)
    if condition == "infeasible" and not stopped:
        return Answer(Outcome.INFEASIBLE)
    if condition == "unbounded":
        raise unbounded()
    values = None
    if len(found.solution) and condition != "intermediateNonInteger":
        found.solver.status = SolverStatus.ok  # else it warns of those that were stopped
        model.solutions.load_from(found, default_variable_value=0.0)
        values = np.array([variable.value or 0.0 for variable in model.x.values()], dtype=float)
    try:
        bound = float(found.problem.lower_bound)
    except (TypeError, ValueError):
        bound = -math.inf
    optimal = condition == "optimal" and not stopped
    return Answer(Outcome.OPTIMAL if optimal else Outcome.STOPPED, values, bound)


class _Run:
    """One run of a program, in a session of its own: a Ctrl-C in the terminal is for us to pass on."""

    def __init__(self, log: str) -> None:
        self._log = log
        self.wanted = threading.Event()
        self.text = ""

    @property
    def last(self) -> str:
        """The last line that it printed."""
        return next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")

    def execute(self, command: Any) -> list[Any]:
        """Run the command to its end, as Pyomo asks for: its code, and what it printed."""
        with open(self._log, "a+", encoding="utf-8", errors="replace") as log:
            log.seek(0, 2)
            begin = log.tell()
            process = subprocess.Popen(
                command.cmd,
                stdin=subprocess.PIPE if "script" in command else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=command.env,
                cwd=command.cwd if "cwd" in command else None,
                text=True,
                start_new_session=True,
            )
            if process.stdin is not None:
                process.stdin.write(command.script)
                process.stdin.close()
            while process.poll() is None:
                if self.wanted.wait(0.02):
                    process.send_signal(signal.SIGINT)
                    try:
                        process.wait(GRACE_S)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()
            log.seek(begin)
            self.text = log.read()
        if process.returncode and not self.wanted.is_set():
            raise PoetError(f"the solver ended with code {process.returncode}: {self.last or 'it said nothing'}")
        return [0, self.text]


class PyomoBackend:
    """A solver of Pyomo's `SolverFactory`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._known = KNOWN.get(name, Known())
        more = {Capability.WARM_START} if self._known.start else set()
        self.capabilities = CAPABILITIES | more | ({Capability.THREADS} if self._known.threads else set())

    def solver(self) -> Any:
        """Pyomo's object. Raises BackendUnavailableError where the solver isn't there."""
        logging.getLogger("pyomo.solvers").setLevel(logging.CRITICAL)
        logging.getLogger("pyomo.opt").setLevel(logging.CRITICAL)
        Executable.rehash()  # Pyomo remembers another PATH
        solver = pyo.SolverFactory(self.name)
        if self.name == "cbc" and shutil.which("cbc") is None:
            with suppress(ImportError):
                from pulp.apis.coin_api import pulp_cbc_path

                solver.set_executable(pulp_cbc_path, validate=False)
        if not solver.available(exception_flag=False):
            raise BackendUnavailableError(f"backend '{self.name}' is not installed; {self._known.install}")
        return solver

    def open(
        self,
        model: Any,
        *,
        threads: int,
        scale: float,
        options: Mapping[str, str] = NO_OPTIONS,
        log: str | None = None,
    ) -> Session:
        """Compile `model` for HiGHS and the solver."""
        refuse_reserved(self.name, options, self._known.reserved)
        solver, more = self.solver(), {"threads": threads, "scale": scale, "log": log}
        return _PyomoSession(model, solver, self._known, options, capabilities=self.capabilities, **more)


SCIP_RESERVED = {
    "limits/time": "--time-limit",
    "limits/gap": "--gap",
    "limits/absgap": "--gap",
    "parallel/maxnthreads": "--threads",
    "display/verblevel": "--log",
}


class _ScipSession(_OtherSession):
    """One Pyomo model, for SCIP by pyscipopt: it brings no program."""

    def __init__(self, model: Any, scip_options: Mapping[str, str], **more: Any) -> None:
        super().__init__(model, **more)
        self._scip_options = scip_options

    def _solve(self, asked: Asked) -> tuple[Callable[[], Answer], Callable[[], None]]:
        from pyscipopt import Model

        scip: Any = Model()
        scip.hideOutput()
        variables = _pass_to_scip(scip, asked.matrix)
        for key, value in self._scip_options.items():
            _set_scip(scip, key, value)
        for key, number in {"limits/time": asked.seconds, "limits/gap": asked.gap, "timing/clocktype": 2}.items():
            scip.setParam(key, number)
        begin = scip.createPartialSol()
        for column in np.flatnonzero(~np.isnan(asked.start)).tolist():
            scip.setSolVal(begin, variables[column], float(asked.start[column]))
        scip.addSol(begin, free=True)

        def work() -> Answer:
            scip.optimizeNogil()
            if self._log is not None:
                # its running output can't be had: it would be written without Python's lock
                account = asked.folder / "statistics"
                scip.writeStatistics(str(account))
                with open(self._log, "a", encoding="utf-8") as file:
                    file.write(account.read_text(encoding="utf-8", errors="replace"))
            if scip.getStatus() == "unbounded":
                raise unbounded()
            best = scip.getBestSol() if scip.getNSols() else None
            values = None if best is None else np.array([scip.getSolVal(best, one) for one in variables])
            bound = scip.getDualbound()
            proven = -math.inf if scip.isInfinity(abs(bound)) else bound
            ended = {"infeasible": Outcome.INFEASIBLE} | dict.fromkeys(("optimal", "gaplimit"), Outcome.OPTIMAL)
            return Answer(ended.get(scip.getStatus(), Outcome.STOPPED), values, proven)

        return work, scip.interruptSolve


def _pass_to_scip(scip: Any, matrix: Matrix) -> list[Any]:
    """Make `matrix` the model of SCIP; its variables, by column."""
    from pyscipopt import quicksum
    from pyscipopt.scip import ExprCons

    variables = [
        scip.addVar(vtype="I" if whole else "C", lb=low, ub=high, obj=cost)
        for whole, low, high, cost in zip(
            matrix.integer.tolist(), matrix.lower.tolist(), matrix.upper.tolist(), matrix.costs.tolist(), strict=True
        )
    ]
    starts, columns, values = matrix.rows.indptr.tolist(), matrix.rows.indices.tolist(), matrix.rows.data.tolist()
    sides = zip(matrix.row_lower.tolist(), matrix.row_upper.tolist(), strict=True)
    for (begin, end), (low, high) in zip(itertools.pairwise(starts), sides, strict=True):
        terms = zip(values[begin:end], columns[begin:end], strict=True)
        body = quicksum(value * variables[column] for value, column in terms)
        scip.addCons(ExprCons(body, None if low == -math.inf else low, None if high == math.inf else high))
    return variables


def _set_scip(scip: Any, key: str, value: str) -> None:
    """Set a parameter by its text. Raises OptionError where there is none of that name, or it can't have that value."""
    known = scip.getParams()
    if key not in known:
        hint = closest(key, known) or "; see the list of SCIP's parameters"
        raise option_error(key, value, f"SCIP has no such option{hint}")
    try:
        kind = type(known[key])
        scip.setParam(key, value.lower() in ("true", "1") if kind is bool else kind(value))
    except (ValueError, TypeError, KeyError, LookupError) as error:
        raise option_error(key, value, f"not a value of SCIP's {key} ({error})") from error


class _ScipBackend:
    """SCIP (Zuse Institute Berlin). Where its search is faster than HiGHS's is the formulation `poet`."""

    name = "scip"
    capabilities = CAPABILITIES | {Capability.WARM_START, Capability.BOUND}

    def open(
        self,
        model: Any,
        *,
        threads: int,
        scale: float,
        options: Mapping[str, str] = NO_OPTIONS,
        log: str | None = None,
    ) -> Session:
        """Compile `model` for HiGHS and SCIP. Raises BackendUnavailableError without pyscipopt."""
        try:
            from pyscipopt import Model
        except ImportError as error:
            raise BackendUnavailableError(
                f"backend 'scip' is not installed ({error}); install it with: pip install 'poetopt[scip]'"
            ) from error
        refuse_reserved("SCIP", options, SCIP_RESERVED)
        probe = Model()
        for key, value in options.items():
            _set_scip(probe, key, value)
        return _ScipSession(model, options, capabilities=self.capabilities, threads=1, scale=scale, log=log)


cbc = PyomoBackend("cbc")
scip = _ScipBackend()
