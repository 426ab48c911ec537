"""HiGHS, by the fastest route from Pyomo: compile the standard form, pass arrays, keep the basis.

The relaxation lives in one Highs object, so that rows added to it re-solve from the last basis; each
integer search gets a fresh one with the rows of that moment.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray
from pyomo.common.gc_manager import PauseGC
from pyomo.core.base import Objective
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler
from scipy.sparse import csc_matrix, csr_matrix

from poetopt.backends.solver import DualProof, Floats, Frozen, Outcome, Point, Relaxation, Search
from poetopt.errors import PoetError
from poetopt.formulations.language import Row

SLACK = 1e-6
"""A cut with more slack than this at the relaxation is purged."""

_worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="highs")
"""HiGHS keeps its scheduler per thread, and wants the same one for every run of a process."""


class HighsSession:
    """One Pyomo model, open in HiGHS."""

    def __init__(self, model: Any, *, threads: int, scale: float) -> None:
        with PauseGC():
            form = LinearStandardFormCompiler().write(model, mixed_form=True)
        self._column: dict[int, int] = {id(variable): x for x, variable in enumerate(form.columns)}
        self._variables = form.columns  # keeps the ids valid
        self._scale = scale
        self._constant = float(form.c_offset[0])
        self._threads = threads
        self._cache: dict[int, NDArray[np.int64]] = {}
        self._added: list[Row] = []
        self._bound = -math.inf
        self._last: Floats | None = None
        self._reduced: Floats | None = None
        self._relaxed = 0.0
        self._fixed = 0
        n, m = len(form.columns), form.A.shape[0]
        kinds = np.array([row.bound_type for row in form.rows], dtype=int)
        rhs = np.asarray(form.rhs, dtype=float)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = n, m
        self._costs = np.asarray(form.c.todense(), dtype=float).reshape(-1)[:n] if n else np.zeros(0)
        lp.col_cost_ = self._costs * scale
        lp.col_lower_ = np.array([-np.inf if v.lb is None else v.lb for v in form.columns], dtype=float)
        lp.col_upper_ = np.array([np.inf if v.ub is None else v.ub for v in form.columns], dtype=float)
        lp.row_lower_ = np.where(kinds <= 0, rhs, -np.inf)
        lp.row_upper_ = np.where(kinds >= 0, rhs, np.inf)
        matrix = form.A.tocsr()
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = matrix.indptr
        lp.a_matrix_.index_ = matrix.indices
        lp.a_matrix_.value_ = matrix.data
        self._integer = np.array([v.is_integer() or v.is_binary() for v in form.columns], dtype=bool)
        self._base_rows = m
        self._stop = threading.Event()
        self._lp = self._fresh()
        self._lp.passModel(lp)

    def _fresh(self) -> highspy.Highs:
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        if self._threads:
            solver.setOptionValue("threads", self._threads)
        solver.cbSimplexInterrupt += lambda event: event.interrupt() if self._stop.is_set() else None
        return solver

    @property
    def incumbent_bound(self) -> float:
        """The best bound proven in this session, also after an interrupt."""
        return self._bound

    def _columns_of(self, variable: Any) -> NDArray[np.int64]:
        key = id(variable)
        if key not in self._cache:
            self._cache[key] = np.array([self._column.get(id(v), -1) for v in variable.values()], dtype=np.int64)
        return self._cache[key]

    def _objective(self, value: float) -> float:
        return value / self._scale + self._constant

    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""
        if not self._variables:
            return Relaxation(Outcome.OPTIMAL, self._constant, Point(np.zeros(0), self._columns_of, False))
        solver = self._lp
        # HiGHS counts its run time over all runs of one object
        solver.setOptionValue("time_limit", solver.getRunTime() + max(0.05, time_limit_s))
        self._run(solver)
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kOptimal:
            solution = solver.getSolution()
            self._last = np.array(solution.col_value)
            self._reduced = np.array(solution.col_dual)
            self._relaxed = solver.getInfo().objective_function_value
            objective = self._objective(self._relaxed)
            self._bound = max(self._bound, objective)
            return Relaxation(Outcome.OPTIMAL, objective, Point(self._last, self._columns_of, False))
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return Relaxation(Outcome.INFEASIBLE, math.inf, None)
        return Relaxation(Outcome.STOPPED, self._bound, None)

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators."""
        if not rows:
            return
        starts: list[int] = []
        indices: list[int] = []
        values: list[float] = []
        for row in rows:
            starts.append(len(indices))
            merged: dict[int, float] = {}
            for variable, coefficient in zip(row.variables, row.coefficients, strict=True):
                column = self._column.get(id(variable))
                if column is None:
                    raise PoetError(
                        f"a separator's row ({row.kind}) uses the variable {variable.name}, which no other row or "
                        "cost of the model mentions; give it a cost or a constraint in its block"
                    )
                merged[column] = merged.get(column, 0.0) + coefficient
            indices += list(merged)
            values += list(merged.values())
        self._lp.addRows(
            len(rows),
            np.array([row.lower for row in rows], dtype=float),
            np.array([row.upper for row in rows], dtype=float),
            len(indices),
            np.array(starts, dtype=np.int32),
            np.array(indices, dtype=np.int32),
            np.array(values, dtype=float),
        )
        self._added += rows

    def dual_proof(self) -> DualProof:
        """The relaxation as it stands, with the multipliers of its last solve."""
        lp = self._lp.getLp()
        matrix = csr_matrix_of(lp)
        return DualProof(
            constant=self._constant,
            costs=self._costs.tolist(),
            lower=list(lp.col_lower_),
            upper=list(lp.col_upper_),
            starts=matrix.indptr.tolist(),
            columns=matrix.indices.tolist(),
            values=matrix.data.tolist(),
            row_lower=list(lp.row_lower_),
            row_upper=list(lp.row_upper_),
            multipliers=(np.array(self._lp.getSolution().row_dual) / self._scale).tolist(),
        )

    @property
    def added(self) -> Sequence[Row]:
        """The rows added and not purged."""
        return self._added

    def purge(self) -> int:
        """Drop the added cuts that are slack at the last relaxation (never a row of the model proper)."""
        activity = np.array(self._lp.getSolution().row_value)[self._base_rows :]
        slack = [
            x
            for x, (row, value) in enumerate(zip(self._added, activity, strict=False))
            if not row.core and min(value - row.lower, row.upper - value) > SLACK
        ]
        if slack:
            dropped = set(slack)
            self._lp.deleteRows(len(slack), np.array(slack, dtype=np.int32) + self._base_rows)
            self._added = [row for x, row in enumerate(self._added) if x not in dropped]
        return len(slack)

    @property
    def tightened(self) -> bool:
        """Whether `tighten` has fixed anything."""
        return bool(self._fixed)

    def tighten(self, cutoff: float) -> int:
        """Fix what no solution better than `cutoff` can change; see the contract."""
        if self._reduced is None or self._last is None:
            return 0
        slack = (cutoff - self._constant) * self._scale - self._relaxed
        slack += 1e-6 * max(1.0, abs(self._relaxed))  # the reduced costs are good to a tolerance
        down = self._integer & (self._last < 1e-9) & (self._reduced > slack)
        up = self._integer & (self._last > 1 - 1e-9) & (self._reduced < -slack)
        chosen = np.flatnonzero(down | up).astype(np.int32)
        if len(chosen):
            values = np.where(up[chosen], 1.0, 0.0)
            self._lp.changeColsBounds(len(chosen), chosen, values, values)
        self._fixed = max(self._fixed, len(chosen))
        return len(chosen)

    def search(
        self,
        *,
        time_limit_s: float,
        gap: float,
        start: Sequence[tuple[Any, Floats]] | None,
        on_point: Callable[[Point], None],
        on_bound: Callable[[float], None],
        frozen: Sequence[Frozen] = (),
    ) -> Search:
        """Solve to integrality within the relative `gap`; see the contract."""
        if not self._variables:
            point = Point(np.zeros(0), self._columns_of, True)
            return Search(Outcome.OPTIMAL, point, self._constant, self._constant)
        solver = self._fresh()
        solver.passModel(self._lp.getLp())
        integers = np.flatnonzero(self._integer).astype(np.int32)
        kind = int(highspy.HighsVarType.kInteger)
        solver.changeColsIntegrality(len(integers), integers, np.full(len(integers), kind, dtype=np.uint8))
        solver.setOptionValue("time_limit", max(0.1, time_limit_s))
        solver.setOptionValue("mip_rel_gap", gap)
        solver.setOptionValue("mip_abs_gap", 1e-9)
        for part in frozen:
            columns = self._columns_of(part.variable)
            held = part.mask & (columns >= 0)
            values = part.values[held]
            solver.changeColsBounds(len(values), columns[held].astype(np.int32), values, values)
        if start is not None:
            self._give(solver, start)

        def improving(event: Any) -> None:
            on_point(Point(np.array(event.data_out.mip_solution), self._columns_of, True))

        def interrupt(event: Any) -> None:
            bound = self._objective(event.data_out.mip_dual_bound)
            if not frozen and math.isfinite(bound) and bound > self._bound:
                self._bound = bound
                on_bound(bound)
            if self._stop.is_set():
                event.interrupt()

        solver.cbMipImprovingSolution += improving
        solver.cbMipInterrupt += interrupt
        interrupted = self._run(solver, deadline=time.monotonic() + time_limit_s + 1.0, raising=False)
        info, status = solver.getInfo(), solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if not frozen and math.isfinite(info.mip_dual_bound):
            self._bound = max(self._bound, self._objective(info.mip_dual_bound))
        found = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            found = Point(np.array(solver.getSolution().col_value), self._columns_of, True)
            on_point(found)
        if interrupted:
            raise KeyboardInterrupt
        objective = self._objective(info.objective_function_value) if found is not None else math.inf
        outcome = Outcome.OPTIMAL if status == highspy.HighsModelStatus.kOptimal else Outcome.STOPPED
        return Search(outcome, found, objective, self._bound)

    def _run(self, solver: highspy.Highs, deadline: float | None = None, raising: bool = True) -> bool:
        """Run `solver` in the worker, so that the main thread stays able to take Ctrl-C.

        Returns whether it was interrupted, or raises KeyboardInterrupt once the solver has stopped.
        """
        self._stop.clear()
        future: Future[object] | None = None
        interrupted = False
        while future is None or not future.done():
            # whatever line a Ctrl-C arrives at, the solver is told to stop, and waited for
            try:
                if future is None:
                    future = _worker.submit(solver.run)
                wait([future], timeout=0.1)
                if deadline is not None and time.monotonic() > deadline:
                    self._stop.set()  # HiGHS overruns its own limit inside long steps
            except KeyboardInterrupt:
                interrupted = True
                self._stop.set()
        future.result()
        if interrupted and raising:
            raise KeyboardInterrupt
        return interrupted

    def _give(self, solver: highspy.Highs, start: Sequence[tuple[Any, Floats]]) -> None:
        values = np.full(len(self._variables), np.nan)
        for variable, array in start:
            columns = self._columns_of(variable)
            values[columns[columns >= 0]] = array[columns >= 0]
        known = np.flatnonzero(~np.isnan(values))
        solver.setSolution(len(known), known.astype(np.int32), values[known])


def csr_matrix_of(lp: highspy.HighsLp) -> csr_matrix:
    """The constraint matrix by rows, whichever way HiGHS holds it."""
    held = lp.a_matrix_
    shape = (lp.num_row_, lp.num_col_)
    parts = (np.array(held.value_), np.array(held.index_), np.array(held.start_))
    if held.format_ == highspy.MatrixFormat.kColwise:
        return csc_matrix(parts, shape=shape).tocsr()
    return csr_matrix(parts, shape=shape)


class HighsBackend:
    """HiGHS (Huangfu & Hall), the default backend."""

    name = "highs"

    def open(self, model: Any, *, threads: int, scale: float) -> HighsSession:
        """Compile `model` for HiGHS."""
        if not any(True for _ in model.component_data_objects(Objective, active=True)):
            raise PoetError("the model has no active objective")
        return HighsSession(model, threads=threads, scale=scale)


backend = HighsBackend()
