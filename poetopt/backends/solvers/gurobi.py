"""Gurobi, through gurobipy's array interface.

The relaxation lives in one gurobipy model, so that rows added to it re-solve from the last basis; an integer search
works on a copy of it. The licence that comes with gurobipy from PyPI solves models of at most 2000 rows and 2000
columns: what exceeds it is told as what it is.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gurobipy as gp
import numpy as np
from gurobipy import GRB
from numpy.typing import NDArray

from poetopt.backends.solvers.attend import Attendant
from poetopt.backends.solvers.session import MatrixSession, option_error, refuse_reserved, unbounded
from poetopt.backends.solvers.solver import NO_OPTIONS, Capability, Frozen, Outcome, Point, Relaxation, Search
from poetopt.formulations.rows import Floats, Row
from poetopt.util.errors import BackendUnavailableError, PoetError
from poetopt.util.text import closest

RESERVED = {
    "timelimit": "--time-limit",
    "mipgap": "--gap",
    "mipgapabs": "--gap",
    "threads": "--threads",
    "logfile": "--log",
    "outputflag": "--log",
    "logtoconsole": "--log",
}
LICENCES = "https://www.gurobi.com/downloads (free for academic use)"

_attendant = Attendant("gurobi")


class _GurobiSession(MatrixSession):
    """One Pyomo model, open in Gurobi."""

    capabilities = frozenset(Capability) - {Capability.NODES, Capability.WORK}

    def __init__(self, model: Any, env: gp.Env, *, threads: int, scale: float) -> None:
        super().__init__(model, threads=threads, scale=scale)
        matrix = self._matrix
        lp: Any = gp.Model(env=env)  # its arrays are typed too loosely to be of use
        self._lp = lp
        if threads:
            lp.Params.Threads = threads
        self._x: Any = None
        if len(self._columns):
            self._x = lp.addMVar(len(self._columns), lb=matrix.lower, ub=matrix.upper, obj=matrix.costs * scale)
        self._constraints: list[list[Any]] = []
        self._rows(matrix.rows, matrix.row_lower, matrix.row_upper)

    def _rows(self, rows: Any, lower: Floats, upper: Floats) -> None:
        """Add rows, those with two different sides as two constraints."""
        if not rows.shape[0]:
            return
        equal = lower == upper
        parts: list[list[Any]] = [[] for _ in range(rows.shape[0])]
        for chosen, side, sense in (
            (np.isfinite(lower) & ~equal, lower, GRB.GREATER_EQUAL),
            (np.isfinite(upper) & ~equal, upper, GRB.LESS_EQUAL),
            (equal, lower, GRB.EQUAL),
        ):
            places = np.flatnonzero(chosen)
            if len(places):
                added = self._lp.addMConstr(rows[places], self._x, sense, side[places]).tolist()
                for place, constraint in zip(places.tolist(), added, strict=True):
                    parts[place].append(constraint)
        self._constraints += parts

    def _append(self, rows: Sequence[Row]) -> Sequence[Row]:
        whole = self._matrix.only(rows)
        self._rows(whole.rows, whole.row_lower, whole.row_upper)
        return rows

    def _delete(self, places: NDArray[np.int32]) -> None:
        dropped = set(places.tolist())
        self._lp.remove([part for place in sorted(dropped) for part in self._constraints[place]])
        self._constraints = [parts for x, parts in enumerate(self._constraints) if x not in dropped]

    def _fix(self, columns: NDArray[np.int32], values: Floats) -> None:
        self._x[columns].lb = values
        self._x[columns].ub = values

    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""
        trivial = self._nothing_to_solve()
        if trivial is not None:
            return trivial
        lp = self._lp
        lp.Params.TimeLimit = max(0.05, time_limit_s)
        if self._optimize(lp):
            raise KeyboardInterrupt
        if lp.Status == GRB.OPTIMAL:
            values = np.array(self._x.X)
            pi = np.array([sum(part.Pi for part in parts) for parts in self._constraints])
            activity = self._matrix.extended(self._added).rows @ values
            return self._solved(lp.ObjVal, values, activity, np.array(self._x.RC), pi)
        if lp.Status == GRB.INFEASIBLE:
            return Relaxation(Outcome.INFEASIBLE, math.inf, None)
        return Relaxation(Outcome.STOPPED, self._bound, None)

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
        self._lp.update()
        mip = self._lp.copy()
        x: Any = gp.MVar.fromlist(mip.getVars())
        x[np.flatnonzero(self._matrix.integer)].VType = GRB.INTEGER
        mip.Params.TimeLimit = max(0.1, time_limit_s)
        mip.Params.MIPGap = gap
        mip.Params.MIPGapAbs = 1e-9
        if cutoff is not None:
            mip.Params.Cutoff = (cutoff - self._matrix.constant) * self._scale
        held, values = self._columns.frozen(frozen)
        if len(held):
            x[held].lb = values
            x[held].ub = values
        if start is not None:
            given = self._columns.spread(start)
            x.Start = np.where(np.isnan(given), GRB.UNDEFINED, given)

        def rise(scaled: float) -> None:
            if not frozen and abs(scaled) < GRB.INFINITY and self._proven(self._objective(scaled)):
                on_bound(self._bound)

        def watch(model: Any, where: int) -> None:
            if where == GRB.Callback.MIPSOL:
                on_point(self._point(np.array(model.cbGetSolution(model.getVars())), True))
                rise(model.cbGet(GRB.Callback.MIPSOL_OBJBND))
            elif where == GRB.Callback.MIP:
                rise(model.cbGet(GRB.Callback.MIP_OBJBND))
                if enough is not None and enough():
                    model.terminate()

        interrupted = self._optimize(mip, watch, time.monotonic() + time_limit_s + 1.0)
        if mip.Status in (GRB.INFEASIBLE, GRB.CUTOFF) and not interrupted:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if not frozen and abs(mip.ObjBound) < GRB.INFINITY:
            self._proven(self._objective(mip.ObjBound))
        found = None
        if mip.SolCount:
            found = self._point(np.array(x.X), True)
            on_point(found)
        if interrupted:
            raise KeyboardInterrupt
        objective = self._objective(mip.ObjVal) if found is not None else math.inf
        outcome = Outcome.OPTIMAL if mip.Status == GRB.OPTIMAL else Outcome.STOPPED
        return Search(outcome, found, objective, self._bound)

    def _optimize(
        self, model: Any, watch: Callable[[Any, int], None] | None = None, deadline: float | None = None
    ) -> bool:
        """Optimize; whether it was interrupted. Says which it is, where presolve leaves infeasible or unbounded."""
        asked = threading.Event()

        def stop() -> None:
            asked.set()
            model.terminate()

        try:
            interrupted = _attendant.run(lambda: model.optimize(watch), stop, deadline)
            if model.Status == GRB.INF_OR_UNBD and not interrupted:
                model.Params.DualReductions = 0
                interrupted = _attendant.run(lambda: model.optimize(watch), stop, deadline)
        except gp.GurobiError as error:
            if error.errno == GRB.Error.SIZE_LIMIT_EXCEEDED:
                model.update()
                rows, columns = model.NumConstrs, model.NumVars
                raise BackendUnavailableError(
                    f"this model has {rows} rows and {columns} columns, and the size-limited licence that comes with "
                    f"gurobipy allows 2000 of each; get a full licence from {LICENCES}, or use --backend highs"
                ) from error
            raise _failure(error) from error
        if model.Status == GRB.UNBOUNDED:
            raise unbounded()
        # Gurobi has a handler of its own for Ctrl-C while it runs, and tells of it by its status alone
        return interrupted or (model.Status == GRB.INTERRUPTED and not asked.is_set())


def _failure(error: gp.GurobiError) -> PoetError:
    """The failure of a call of Gurobi's, as one of our errors."""
    if error.errno in (GRB.Error.NO_LICENSE, GRB.Error.NETWORK, GRB.Error.JOB_REJECTED, GRB.Error.CLOUD):
        return BackendUnavailableError(
            f"backend 'gurobi' has no valid licence ({error}); get or renew one from {LICENCES}, unset "
            "GRB_LICENSE_FILE for the size-limited one that comes with gurobipy, or use --backend highs"
        )
    return PoetError(f"Gurobi: {error}")


class _GurobiBackend:
    """Gurobi (commercial)."""

    name = "gurobi"
    capabilities = _GurobiSession.capabilities

    def open(
        self,
        model: Any,
        *,
        threads: int,
        scale: float,
        options: Mapping[str, str] = NO_OPTIONS,
        log: str | None = None,
    ) -> _GurobiSession:
        """Compile `model` for Gurobi. Raises BackendUnavailableError where no licence is found or it has expired."""
        refuse_reserved("Gurobi", options, RESERVED)
        try:
            env = gp.Env(empty=True)
            env.setParam("LogToConsole", 0)
            env.setParam("OutputFlag", 0 if log is None else 1)
            if log is not None:
                env.setParam("LogFile", log)
            for key, value in options.items():
                _set(env, key, value)
            env.start()
        except gp.GurobiError as error:
            raise _failure(error) from error
        return _GurobiSession(model, env, threads=threads, scale=scale)


def _set(env: gp.Env, key: str, value: str) -> None:
    """Set a parameter by its text. Raises OptionError where there is none of that name, or it can't have that value."""
    names = {name.lower(): name for name in dir(GRB.Param) if not name.startswith("_")}
    if key.lower() not in names:
        hint = closest(key, names.values()) or "; see the list of Gurobi's parameters"
        raise option_error(key, value, f"Gurobi has no such parameter{hint}")
    told = ""
    for kind in (int, float, str):
        try:
            env.setParam(names[key.lower()], kind(value))
        except (gp.GurobiError, TypeError, ValueError) as error:
            told = told or str(error)
        else:
            return
    raise option_error(key, value, f"not a value of Gurobi's {key} ({told})")


backend = _GurobiBackend()
