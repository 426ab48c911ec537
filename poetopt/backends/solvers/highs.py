"""HiGHS: a session on a model, and the backend that opens it.

The session compiles Pyomo's model to arrays, passes them to HiGHS and keeps the basis. The relaxation lives in one
Highs object, so that rows added to it re-solve from the last basis. Each integer search gets a fresh object, with the
rows that the relaxation has at that moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.attend import Attendant
from poetopt.backends.solvers.highs_interrupt import Interrupt, entries, run, simplex_s
from poetopt.backends.solvers.highs_nodes import HighsNodes, pass_integers
from poetopt.backends.solvers.highs_rows import Places, PresentRows, RowPool, basic_rows, compressed
from poetopt.backends.solvers.matrix import Matrix
from poetopt.backends.solvers.session import MatrixSession, option_error, refuse_reserved, unbounded
from poetopt.backends.solvers.solver import NO_OPTIONS, Capability, Frozen, Outcome, Point, Relaxation, Search
from poetopt.formulations.rows import Floats, Row
from poetopt.util.errors import OutputError
from poetopt.util.text import closest

_attendant = Attendant("highs")


class HighsSession(MatrixSession):
    """One Pyomo model, open in HiGHS."""

    capabilities = frozenset(Capability)

    def __init__(
        self,
        model: Any,
        *,
        threads: int,
        scale: float,
        options: Mapping[str, str] = NO_OPTIONS,
        log: str | None = None,
    ) -> None:
        super().__init__(model, threads=threads, scale=scale)
        self._options, self._log = options, log
        self._stop = Interrupt()
        matrix = self._matrix
        self._lp = self._new_solver(self._stop)
        self._lp.passModel(highs_model(matrix, matrix.lower, matrix.upper, scale))
        self._n_model_rows = len(matrix.row_lower)
        self._rows = PresentRows(self._lp, RowPool(matrix), np.arange(self._n_model_rows))
        self._broken: Places = np.zeros(0, dtype=np.int64)
        """Rows outside of the solver that the last point violates; they enter it before the next solve."""

    def _new_solver(self, stop: Interrupt) -> highspy.Highs:
        """Return a Highs object with the session's options; `stop` ends its simplex method."""
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        # Devex pricing of the dual simplex method. On a first relaxation of 15,000 columns it takes a quarter of the
        # time of steepest edge, whose weights cost more than the iterations that they save. On one of 1,000 columns
        # both take the same time.
        solver.setOptionValue("simplex_dual_edge_weight_strategy", 1)
        for key, value in self._options.items():
            _set(solver, key, value)
        if self._threads:
            solver.setOptionValue("threads", self._threads)
        stop.attach(solver)
        if self._log is not None:
            path = Path(self._log)

            def write(event: Any) -> None:
                try:
                    with path.open("a", encoding="utf-8") as file:
                        file.write(event.message)
                except OSError as error:
                    raise OutputError(
                        f"--log {path}: the file can't be written ({error.strerror}); give another path"
                    ) from error

            solver.setOptionValue("log_to_console", False)
            solver.setOptionValue("output_flag", True)
            solver.cbLogging += write
        return solver

    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""
        deadline = time.monotonic() + time_limit_s
        while True:
            relaxation = self._relax(deadline - time.monotonic())
            if not len(self._broken):
                return relaxation

    def _relax(self, time_limit_s: float) -> Relaxation:
        """Solve once, with the rows that the last point violates."""
        trivial = self._nothing_to_solve()
        if trivial is not None:
            return trivial
        self._rows.bring_in(self._broken)
        self._broken = self._broken[:0]
        solver = self._lp
        # HiGHS counts its run time over all runs of one object
        solver.setOptionValue("time_limit", solver.getRunTime() + max(0.05, time_limit_s))
        if self._run(solver, self._stop):
            raise KeyboardInterrupt
        self.work.compute(simplex_s(solver))
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kUnboundedOrInfeasible:
            status = self._unbounded_or_infeasible(solver, self._stop)
        if status == highspy.HighsModelStatus.kOptimal:
            solution = solver.getSolution()
            values, present = np.array(solution.col_value), self._rows.numbers
            is_model_row = present < self._n_model_rows
            activity, duals = self._matrix.rows @ values, np.array(solution.row_dual)
            violated = self._rows.broken(values)
            self._broken = violated[violated < self._n_model_rows]  # purged rows stay outside
            multipliers = np.zeros(self._n_model_rows)
            multipliers[present[is_model_row]] = duals[is_model_row]
            return self._solved(
                solver.getInfo().objective_function_value,
                values,
                np.concatenate([activity, np.array(solution.row_value)[~is_model_row]]),
                np.array(solution.col_dual),
                np.concatenate([multipliers, duals[~is_model_row]]),
            )
        if status == highspy.HighsModelStatus.kInfeasible:
            return Relaxation(Outcome.INFEASIBLE, math.inf, None)
        if status == highspy.HighsModelStatus.kUnbounded:
            outside = np.setdiff1d(np.arange(self._n_model_rows), self._rows.numbers)
            if not len(outside):
                raise unbounded()
            self._broken = outside  # rows outside of the solver may bound it
            return self._relax(time_limit_s)
        return Relaxation(Outcome.STOPPED, self._bound, None)

    def _unbounded_or_infeasible(self, solver: highspy.Highs, stop: Interrupt) -> highspy.HighsModelStatus:
        """Return whether the model is unbounded or infeasible: presolve can't tell, the simplex method can."""
        _, before = solver.getOptionValue("presolve")
        solver.setOptionValue("presolve", "off")
        if self._run(solver, stop):
            raise KeyboardInterrupt
        solver.setOptionValue("presolve", before)
        return solver.getModelStatus()

    def _append(self, rows: Sequence[Row]) -> Sequence[Row]:
        numbers = self._rows.pool.add(compressed(self._columns, rows), anew=True)
        self._rows.bring_in(numbers)
        return rows

    def _delete(self, places: NDArray[np.int32]) -> None:
        added = np.flatnonzero(self._rows.numbers >= self._n_model_rows)
        self._rows.drop(added[places - self._n_model_rows])

    def _fix(self, columns: NDArray[np.int32], values: Floats) -> None:
        self._lp.changeColsBounds(len(columns), columns, values, values)

    def _run(self, solver: highspy.Highs, stop: Interrupt, deadline: float | None = None) -> bool:
        """Run `solver`, which `stop` stops; return whether it was interrupted."""

        def work() -> None:
            stop.clear()  # not before: a run that was left behind has to see it
            run(solver)

        return _attendant.run(work, stop.set, deadline)

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
        stop = Interrupt()  # one for each search: a search that was left behind stays interrupted
        solver = self._new_solver(stop)
        solver.passModel(highs_model(self._matrix.extended(self._added), self._lower, self._upper, self._scale))
        pass_integers(solver, self._matrix.integer)
        solver.setOptionValue("time_limit", max(0.1, time_limit_s))
        solver.setOptionValue("mip_rel_gap", gap)
        solver.setOptionValue("mip_abs_gap", 1e-9)
        if cutoff is not None:
            solver.setOptionValue("objective_bound", (cutoff - self._matrix.constant) * self._scale)
        fixed, values = self._columns.frozen(frozen)
        if len(fixed):
            solver.changeColsBounds(len(fixed), fixed, values, values)
        if start is not None:
            self._set_start(solver, start)

        # HiGHS's work between two interrupt callbacks, in seconds per row, column and nonzero that isn't fixed. It is
        # the same in each run. Measured on resnet18_cifar, bert and exact_bert_base.
        interval_s = 7e-7 * entries(solver) * (1 - len(fixed) / max(1, len(self._lower)))

        def improving(event: Any) -> None:
            if stop.is_set():
                return
            on_point(self._point(np.array(event.data_out.mip_solution), True))

        def interrupt(event: Any) -> None:
            if stop.is_set():
                event.interrupt()
                return
            self.work.compute(interval_s)
            if not frozen and self._proven(self._objective(event.data_out.mip_dual_bound)):
                on_bound(self._bound)
            if enough is not None and enough():
                event.interrupt()

        solver.cbMipImprovingSolution += improving
        solver.cbMipInterrupt += interrupt
        self.work.compute(interval_s)
        interrupted = self._run(solver, stop, time.monotonic() + time_limit_s + 1.0)
        info, status = solver.getInfo(), solver.getModelStatus()
        if interrupted:  # its points were reported as they came
            if not frozen:
                self._proven(self._objective(info.mip_dual_bound))
            raise KeyboardInterrupt
        if status == highspy.HighsModelStatus.kUnboundedOrInfeasible:
            status = self._unbounded_or_infeasible(solver, stop)
        if status == highspy.HighsModelStatus.kUnbounded:
            raise unbounded()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if not frozen:
            self._proven(self._objective(info.mip_dual_bound))
        point = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            point = self._point(np.array(solver.getSolution().col_value), True)
            on_point(point)
        objective = self._objective(info.objective_function_value) if point is not None else math.inf
        outcome = Outcome.OPTIMAL if status == highspy.HighsModelStatus.kOptimal else Outcome.STOPPED
        if outcome is Outcome.OPTIMAL and cutoff is not None and not frozen:
            # HiGHS's own bound lacks what the cutoff closed. A solution that isn't better, and wasn't the start, shows
            # that the search is complete; otherwise it may have ended within the gap.
            is_complete = start is None and objective >= cutoff
            self._bound = max(self._bound, cutoff if is_complete else min(cutoff, objective - gap * abs(objective)))
        return Search(outcome, point, objective, self._bound)

    def _set_start(self, solver: highspy.Highs, start: Sequence[tuple[Any, Floats]]) -> None:
        values = self._columns.spread(start)
        known = np.flatnonzero(~np.isnan(values))
        solver.setSolution(len(known), known.astype(np.int32), values[known])

    def nodes(self) -> HighsNodes:
        """Return the current relaxation in other objects of HiGHS.

        They have their own interrupt: a search that overruns its time is no reason to end a tree.
        """
        # the model's rows that don't bind stay outside of the solver
        self._rows.drop(np.flatnonzero(basic_rows(self._lp.getBasis()) & (self._rows.numbers < self._n_model_rows)))
        pool, places = RowPool(self._matrix), self._rows.numbers.copy()  # without purged rows
        places[places >= self._n_model_rows] = pool.add(compressed(self._columns, self._added), anew=True)
        bounds = self._lower, self._upper
        return HighsNodes(self._new_solver, self._matrix, pool, places, self._lp.getBasis(), bounds, self._scale)


def highs_model(matrix: Matrix, lower: Floats, upper: Floats, scale: float) -> highspy.HighsLp:
    """Return the relaxation of `matrix` within these bounds of its columns, (n,) each."""
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_ = matrix.costs * scale
    lp.col_lower_, lp.col_upper_ = lower, upper
    lp.row_lower_, lp.row_upper_ = matrix.row_lower, matrix.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = matrix.rows.indptr
    lp.a_matrix_.index_ = matrix.rows.indices
    lp.a_matrix_.value_ = matrix.rows.data
    return lp


def _set(solver: highspy.Highs, key: str, value: str) -> None:
    """Set an option by its text. Raise `OptionError` for an unknown name or a bad value."""
    _, kind = solver.getOptionType(key)
    names = [name for name in dir(solver.getOptions()) if not name.startswith("_")]
    if key not in names:
        hint = closest(key, names) or "; see the list of HiGHS's options"
        raise option_error(key, value, f"HiGHS has no such option{hint}")
    if solver.setOptionValue(key, value) != highspy.HighsStatus.kOk:
        shown = str(kind).rpartition("k")[2].lower()
        raise option_error(key, value, f"not a value of HiGHS's {key} (a {shown})")


RESERVED = {
    "time_limit": "--time-limit",
    "mip_rel_gap": "--gap",
    "mip_abs_gap": "--gap",
    "threads": "--threads",
    "log_file": "--log",
    "output_flag": "--log",
    "log_to_console": "--log",
}
"""HiGHS's options that poetopt sets itself, with poetopt's option."""


class _HighsBackend:
    """HiGHS (Huangfu & Hall), the default backend."""

    name = "highs"
    capabilities = HighsSession.capabilities

    def open(
        self,
        model: Any,
        *,
        threads: int,
        scale: float,
        options: Mapping[str, str] = NO_OPTIONS,
        log: str | None = None,
    ) -> HighsSession:
        """Compile `model` for HiGHS."""
        refuse_reserved("HiGHS", options, RESERVED)
        return HighsSession(model, threads=threads, scale=scale, options=options, log=log)


backend = _HighsBackend()
