"""Other solvers: the solvers of Pyomo's `SolverFactory` (CBC, GLPK, CPLEX, Xpress, ...), and SCIP.

HiGHS, which is always installed, solves relaxations and gives multipliers; the other solver does the integer search. A
search passes a model to the solver, which returns values and a bound. Its point is reported at the end, after a check
against the model's rows.
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
"""Seconds that a program has to end after an interrupt, before it is killed."""
TOLERANCE = 1e-5
"""Distance at which a value counts as an integer and, relative to its terms, a row as satisfied."""

_attendant = Attendant("programs", grace_s=0.7)  # a program reports its result as it ends


@dataclass(frozen=True)
class Answer:
    """Answer of a solver: OPTIMAL within the requested tolerance, INFEASIBLE, or STOPPED.

    Attributes
    ----------
    values
        (n,) by column, None where there are none.
    bound
        Proven bound, -inf where there is none.
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
    """One Pyomo model, open in HiGHS for its relaxation, and passed to another solver for each search."""

    def __init__(self, model: Any, capabilities: frozenset[Capability], **more: Any) -> None:
        super().__init__(model, **more)
        self.capabilities = capabilities

    @abstractmethod
    def _solve(self, call: Asked) -> tuple[Callable[[], Answer], Callable[[], None]]:
        """Return two functions: one solves the call, the other ends that early, from another thread."""

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
        """Solve to integrality within the relative `gap`, as `Session.search` says."""
        trivial = self._nothing_to_search()
        if trivial is not None:
            return trivial
        deadline = time.monotonic() + time_limit_s
        lower, upper = self._lower.copy(), self._upper.copy()
        fixed_columns, fixed = self._columns.frozen(frozen)
        lower[fixed_columns] = upper[fixed_columns] = fixed
        model = replace(self._matrix.extended(self._added), lower=lower, upper=upper)
        start_values = np.full(len(lower), np.nan) if start is None else self._columns.spread(start)
        scaled = replace(model, costs=model.costs * self._scale, constant=0.0)
        with scratch_folder("model") as folder:
            solver_call = Asked(scaled, max(0.1, deadline - time.monotonic()), gap, start_values, Path(folder))
            work, stop = self._solve(solver_call)
            answers: list[Answer] = []
            interrupted = _attendant.run(lambda: answers.append(work()), stop, deadline + GRACE_S)
        (answer,) = answers
        point, objective = None, math.inf
        values = None if answer.values is None else np.clip(answer.values, model.lower, model.upper)
        if values is not None and _is_feasible(model, values):
            values[model.integer] = np.round(values[model.integer])
            point, objective = self._point(values, True), float(model.costs @ values) + model.constant
            on_point(point)
        self._prove(answer, objective, frozen, on_bound)
        if interrupted:
            raise KeyboardInterrupt
        if answer.outcome is Outcome.INFEASIBLE:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if point is None and time.monotonic() < deadline:  # the model may be unbounded, or its relaxation infeasible
            relaxed = self.relax(max(0.1, deadline - time.monotonic()))
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


def _is_feasible(matrix: Matrix, values: Floats) -> bool:
    """Return whether a point within bounds has integers where it must, and satisfies the rows."""
    integers = values[matrix.integer]
    activity, tolerance = matrix.rows @ values, TOLERANCE * (1.0 + np.abs(matrix.rows) @ np.abs(values))
    satisfies_rows = np.all((activity >= matrix.row_lower - tolerance) & (activity <= matrix.row_upper + tolerance))
    return bool(satisfies_rows and np.all(np.abs(integers - np.round(integers)) < TOLERANCE))


@dataclass(frozen=True)
class Known:
    """Options of one of Pyomo's solvers.

    Attributes
    ----------
    gap, threads, limit
        Names of the options that set them. None: the solver has none. It then solves to the end, in one thread, and
        Pyomo passes the time limit.
    start
        Whether it takes values to begin with.
    install
        How to install it.
    reserved
        Its options that poetopt sets itself, with poetopt's option.
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
        self._solver, self._known, self._user_options = solver, known, options

    def _solve(self, call: Asked) -> tuple[Callable[[], Answer], Callable[[], None]]:
        run = _ProgramRun(self._log or str(call.folder / "log"))
        options: dict[str, object] = dict(self._user_options)
        if self._known.gap is not None:
            options[self._known.gap] = call.gap
        if self._known.limit is not None:
            options[self._known.limit] = call.seconds
        if self._known.threads is not None and self._threads > 1:
            options[self._known.threads] = self._threads
        warm_start = {"warmstart": True} if self._known.start and not np.all(np.isnan(call.start)) else {}
        model, solver = _to_pyomo(call.matrix, call.start), self._solver
        if isinstance(solver, SystemCallSolver):
            solver._execute_command = run.execute  # Pyomo's own method can't be ended early

        def work() -> Answer:
            try:
                results = solver.solve(
                    model, timelimit=math.ceil(call.seconds), options=options, load_solutions=False, **warm_start
                )
            except Exception as error:
                if run.stop_requested.is_set():
                    return Answer(Outcome.STOPPED)
                output = f"{error}\n{run.text}"
                for key, value in self._user_options.items():
                    if re.search(rf"(no match|invalid|unknown|no such).*{re.escape(key)}", output, re.IGNORECASE):
                        raise option_error(key, value, f"{self._solver.name} has no such option") from error
                raise error if isinstance(error, PoetError) else PoetError(f"{self._solver.name}: {error}") from error
            for key, value in self._user_options.items():
                if re.search(rf"no match for -?{re.escape(key)}\b", run.text, re.IGNORECASE):
                    raise option_error(key, value, f"{self._solver.name} has no such option")
            return _read_answer(model, results, stopped=run.stop_requested.is_set())

        return work, run.stop_requested.set


def _to_pyomo(matrix: Matrix, start: Floats) -> Any:
    """Return the arrays as a Pyomo model, whose variable `x[column]` has the start's value."""
    model: Any = pyo.ConcreteModel()
    bounds = [
        (None if low == -math.inf else low, None if high == math.inf else high)
        for low, high in zip(matrix.lower.tolist(), matrix.upper.tolist(), strict=True)
    ]
    is_integer = matrix.integer.tolist()
    model.x = pyo.Var(
        range(len(bounds)),
        domain=lambda _, column: pyo.Integers if is_integer[column] else pyo.Reals,
        bounds=lambda _, column: bounds[column],
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


def _read_answer(model: Any, results: Any, *, stopped: bool) -> Answer:
    condition = str(results.solver.termination_condition)
    if condition == "infeasible" and not stopped:
        return Answer(Outcome.INFEASIBLE)
    if condition == "unbounded":
        raise unbounded()
    values = None
    if len(results.solution) and condition != "intermediateNonInteger":
        results.solver.status = SolverStatus.ok  # otherwise Pyomo warns of stopped solvers
        model.solutions.load_from(results, default_variable_value=0.0)
        values = np.array([variable.value or 0.0 for variable in model.x.values()], dtype=float)
    try:
        bound = float(results.problem.lower_bound)
    except (TypeError, ValueError):
        bound = -math.inf
    optimal = condition == "optimal" and not stopped
    return Answer(Outcome.OPTIMAL if optimal else Outcome.STOPPED, values, bound)


class _ProgramRun:
    """One run of a program, in its own process session: poetopt passes a Ctrl-C of the terminal on to it."""

    def __init__(self, log: str) -> None:
        self._log = log
        self.stop_requested = threading.Event()
        self.text = ""

    @property
    def last(self) -> str:
        """Last line that the program printed."""
        return next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")

    def execute(self, command: Any) -> list[Any]:
        """Run the command to its end; return its exit code and its output, as Pyomo expects."""
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
                if self.stop_requested.wait(0.02):
                    process.send_signal(signal.SIGINT)
                    try:
                        process.wait(GRACE_S)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()
            log.seek(begin)
            self.text = log.read()
        if process.returncode and not self.stop_requested.is_set():
            raise PoetError(f"the solver ended with code {process.returncode}: {self.last or 'it printed nothing'}")
        return [0, self.text]


class PyomoBackend:
    """Solver of Pyomo's `SolverFactory`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._known = KNOWN.get(name, Known())
        start_capability = {Capability.WARM_START} if self._known.start else set()
        self.capabilities = CAPABILITIES | start_capability | ({Capability.THREADS} if self._known.threads else set())

    def solver(self) -> Any:
        """Return Pyomo's solver. Raise `BackendUnavailableError` where it isn't installed."""
        logging.getLogger("pyomo.solvers").setLevel(logging.CRITICAL)
        logging.getLogger("pyomo.opt").setLevel(logging.CRITICAL)
        Executable.rehash()  # Pyomo caches an older PATH
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
        solver, arguments = self.solver(), {"threads": threads, "scale": scale, "log": log}
        return _PyomoSession(model, solver, self._known, options, capabilities=self.capabilities, **arguments)


SCIP_RESERVED = {
    "limits/time": "--time-limit",
    "limits/gap": "--gap",
    "limits/absgap": "--gap",
    "parallel/maxnthreads": "--threads",
    "display/verblevel": "--log",
}


class _ScipSession(_OtherSession):
    """One Pyomo model, for SCIP by pyscipopt, which has no program."""

    def __init__(self, model: Any, scip_options: Mapping[str, str], **more: Any) -> None:
        super().__init__(model, **more)
        self._scip_options = scip_options

    def _solve(self, call: Asked) -> tuple[Callable[[], Answer], Callable[[], None]]:
        from pyscipopt import Model

        scip: Any = Model()
        scip.hideOutput()
        variables = _pass_to_scip(scip, call.matrix)
        for key, value in self._scip_options.items():
            _set_scip(scip, key, value)
        for key, number in {"limits/time": call.seconds, "limits/gap": call.gap, "timing/clocktype": 2}.items():
            scip.setParam(key, number)
        start = scip.createPartialSol()
        for column in np.flatnonzero(~np.isnan(call.start)).tolist():
            scip.setSolVal(start, variables[column], float(call.start[column]))
        scip.addSol(start, free=True)

        def work() -> Answer:
            scip.optimizeNogil()
            if self._log is not None:
                # SCIP's running output can't be logged: SCIP would write it without Python's lock
                statistics = call.folder / "statistics"
                scip.writeStatistics(str(statistics))
                with open(self._log, "a", encoding="utf-8") as file:
                    file.write(statistics.read_text(encoding="utf-8", errors="replace"))
            if scip.getStatus() == "unbounded":
                raise unbounded()
            best = scip.getBestSol() if scip.getNSols() else None
            values = None if best is None else np.array([scip.getSolVal(best, variable) for variable in variables])
            bound = scip.getDualbound()
            proven = -math.inf if scip.isInfinity(abs(bound)) else bound
            outcomes = {"infeasible": Outcome.INFEASIBLE} | dict.fromkeys(("optimal", "gaplimit"), Outcome.OPTIMAL)
            return Answer(outcomes.get(scip.getStatus(), Outcome.STOPPED), values, proven)

        return work, scip.interruptSolve


def _pass_to_scip(scip: Any, matrix: Matrix) -> list[Any]:
    """Add `matrix` to SCIP's model, and return its variables by column."""
    from pyscipopt import quicksum
    from pyscipopt.scip import ExprCons

    variables = [
        scip.addVar(vtype="I" if is_integer else "C", lb=low, ub=high, obj=cost)
        for is_integer, low, high, cost in zip(
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
    """Set a parameter by its text. Raise `OptionError` for an unknown name or a bad value."""
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
    """SCIP (Zuse Institute Berlin). It searches faster than HiGHS on the formulation `poet`."""

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
        """Compile `model` for HiGHS and SCIP. Raise `BackendUnavailableError` without pyscipopt."""
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
