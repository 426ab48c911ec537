"""Gurobi, through gurobipy's array interface.

The relaxation lives in one gurobipy model, so that rows added to it re-solve from the last basis; an integer search
works on a copy of it. The licence that comes with gurobipy from PyPI solves models of at most 2000 rows and 2000
columns; the error for a larger model says so.
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
        lp: Any = gp.Model(env=env)  # the types of its arrays are too loose to help
        self._lp = lp
        if threads:
            lp.Params.Threads = threads
        self._x: Any = None
        if len(self._columns):
            self._x = lp.addMVar(len(self._columns), lb=matrix.lower, ub=matrix.upper, obj=matrix.costs * scale)
        self._constraints: list[list[Any]] = []
        self._add_rows(matrix.rows, matrix.row_lower, matrix.row_upper)

    def _add_rows(self, rows: Any, lower: Floats, upper: Floats) -> None:
        """Add rows; a row with two different sides becomes two constraints."""
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
        added = self._matrix.only(rows)
        self._add_rows(added.rows, added.row_lower, added.row_upper)
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
        """Solve to integrality within the relative `gap`, as `Session.search` says."""
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
        fixed, values = self._columns.frozen(frozen)
        if len(fixed):
            x[fixed].lb = values
            x[fixed].ub = values
        if start is not None:
            start_values = self._columns.spread(start)
            x.Start = np.where(np.isnan(start_values), GRB.UNDEFINED, start_values)

        def report_bound(scaled: float) -> None:
            if not frozen and abs(scaled) < GRB.INFINITY and self._proven(self._objective(scaled)):
                on_bound(self._bound)

        def callback(model: Any, where: int) -> None:
            if where == GRB.Callback.MIPSOL:
                on_point(self._point(np.array(model.cbGetSolution(model.getVars())), True))
                report_bound(model.cbGet(GRB.Callback.MIPSOL_OBJBND))
            elif where == GRB.Callback.MIP:
                report_bound(model.cbGet(GRB.Callback.MIP_OBJBND))
                if enough is not None and enough():
                    model.terminate()

        interrupted = self._optimize(mip, callback, time.monotonic() + time_limit_s + 1.0)
        if mip.Status in (GRB.INFEASIBLE, GRB.CUTOFF) and not interrupted:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if not frozen and abs(mip.ObjBound) < GRB.INFINITY:
            self._proven(self._objective(mip.ObjBound))
        point = None
        if mip.SolCount:
            point = self._point(np.array(x.X), True)
            on_point(point)
        if interrupted:
            raise KeyboardInterrupt
        objective = self._objective(mip.ObjVal) if point is not None else math.inf
        outcome = Outcome.OPTIMAL if mip.Status == GRB.OPTIMAL else Outcome.STOPPED
        return Search(outcome, point, objective, self._bound)

    def _optimize(
        self, model: Any, callback: Callable[[Any, int], None] | None = None, deadline: float | None = None
    ) -> bool:
        """Optimize and return whether it was interrupted. Solve again where presolve leaves infeasible or unbounded."""
        is_stopped = threading.Event()

        def stop() -> None:
            is_stopped.set()
            model.terminate()

        try:
            interrupted = _attendant.run(lambda: model.optimize(callback), stop, deadline)
            if model.Status == GRB.INF_OR_UNBD and not interrupted:
                model.Params.DualReductions = 0
                interrupted = _attendant.run(lambda: model.optimize(callback), stop, deadline)
        except gp.GurobiError as error:
            if error.errno == GRB.Error.SIZE_LIMIT_EXCEEDED:
                model.update()
                rows, columns = model.NumConstrs, model.NumVars
                raise BackendUnavailableError(
                    f"the model has {rows} rows and {columns} columns, more than the 2000 of each that gurobipy's "
                    f"size-limited licence allows; get a full licence from {LICENCES}, or use --backend highs"
                ) from error
            raise _failure(error) from error
        if model.Status == GRB.UNBOUNDED:
            raise unbounded()
        # Gurobi has its own handler for Ctrl-C while it runs, and reports it only in its status
        return interrupted or (model.Status == GRB.INTERRUPTED and not is_stopped.is_set())


def _failure(error: gp.GurobiError) -> PoetError:
    """Return poetopt's error for a failed call of Gurobi's."""
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
        """Compile `model` for Gurobi. Raise `BackendUnavailableError` where no valid licence is found."""
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
    """Set a parameter by its text. Raise `OptionError` for an unknown name or a bad value."""
    names = {name.lower(): name for name in dir(GRB.Param) if not name.startswith("_")}
    if key.lower() not in names:
        hint = closest(key, names.values()) or "; see the list of Gurobi's parameters"
        raise option_error(key, value, f"Gurobi has no such parameter{hint}")
    reason = ""
    for kind in (int, float, str):
        try:
            env.setParam(names[key.lower()], kind(value))
        except (gp.GurobiError, TypeError, ValueError) as error:
            reason = reason or str(error)
        else:
            return
    raise option_error(key, value, f"not a value of Gurobi's {key} ({reason})")


backend = _GurobiBackend()
