"""HiGHS: a session on a model, and the backend that opens it.

The relaxation goes the fastest way from Pyomo: compile the form, pass arrays, keep the basis. It lives in one Highs
object, so that rows added to it re-solve from the last basis; each integer search gets a fresh one, with the rows that
the relaxation has at that moment.
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
        self._lp = self._fresh(self._stop)
        self._lp.passModel(highs_model(matrix, matrix.lower, matrix.upper, scale))
        self._own = len(matrix.row_lower)
        self._rows = PresentRows(self._lp, RowPool(matrix), np.arange(self._own))
        self._broken: Places = np.zeros(0, dtype=np.int64)
        """Rows outside that the last point breaks: they come in before the next solve."""

    def _fresh(self, stop: Interrupt) -> highspy.Highs:
        """A Highs object with the session's options; `stop` ends its simplex method."""
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        # pricing of the dual simplex method. On a first relaxation of 15,000 columns it takes a quarter of the time of
        # steepest edge, whose weights cost more than the iterations that they save; on one of 1,000 both take the same.
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
                        f"--log {path}: can't be written ({error.strerror}); give another path"
                    ) from error

            solver.setOptionValue("log_to_console", False)
            solver.setOptionValue("output_flag", True)
            solver.cbLogging += write
        return solver

    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""
        until = time.monotonic() + time_limit_s
        while True:
            found = self._relax(until - time.monotonic())
            if not len(self._broken):
                return found

    def _relax(self, time_limit_s: float) -> Relaxation:
        """One solve, with the rows that the last point broke."""
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
            status = self._which(solver, self._stop)
        if status == highspy.HighsModelStatus.kOptimal:
            found = solver.getSolution()
            values, here = np.array(found.col_value), self._rows.numbers
            own = here < self._own
            activity, duals = self._matrix.rows @ values, np.array(found.row_dual)
            broken = self._rows.broken(values)
            self._broken = broken[broken < self._own]  # what was purged stays away
            multipliers = np.zeros(self._own)
            multipliers[here[own]] = duals[own]
            return self._solved(
                solver.getInfo().objective_function_value,
                values,
                np.concatenate([activity, np.array(found.row_value)[~own]]),
                np.array(found.col_dual),
                np.concatenate([multipliers, duals[~own]]),
            )
        if status == highspy.HighsModelStatus.kInfeasible:
            return Relaxation(Outcome.INFEASIBLE, math.inf, None)
        if status == highspy.HighsModelStatus.kUnbounded:
            outside = np.setdiff1d(np.arange(self._own), self._rows.numbers)
            if not len(outside):
                raise unbounded()
            self._broken = outside  # what is outside may bound it
            return self._relax(time_limit_s)
        return Relaxation(Outcome.STOPPED, self._bound, None)

    def _which(self, solver: highspy.Highs, stop: Interrupt) -> highspy.HighsModelStatus:
        """Unbounded or infeasible: presolve can't tell, the simplex method can."""
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
        added = np.flatnonzero(self._rows.numbers >= self._own)
        self._rows.drop(added[places - self._own])

    def _fix(self, columns: NDArray[np.int32], values: Floats) -> None:
        self._lp.changeColsBounds(len(columns), columns, values, values)

    def _run(self, solver: highspy.Highs, stop: Interrupt, deadline: float | None = None) -> bool:
        """Run `solver`, which `stop` stops; whether it was interrupted."""

        def work() -> None:
            stop.clear()  # not before: one that was left behind has to see it
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
        """Solve to integrality within the relative `gap`; see the contract."""
        trivial = self._nothing_to_search()
        if trivial is not None:
            return trivial
        stop = Interrupt()  # of its own: a search that was left behind stays told
        solver = self._fresh(stop)
        solver.passModel(highs_model(self._matrix.extended(self._added), self._lower, self._upper, self._scale))
        pass_integers(solver, self._matrix.integer)
        solver.setOptionValue("time_limit", max(0.1, time_limit_s))
        solver.setOptionValue("mip_rel_gap", gap)
        solver.setOptionValue("mip_abs_gap", 1e-9)
        if cutoff is not None:
            solver.setOptionValue("objective_bound", (cutoff - self._matrix.constant) * self._scale)
        held, values = self._columns.frozen(frozen)
        if len(held):
            solver.changeColsBounds(len(held), held, values, values)
        if start is not None:
            self._give(solver, start)

        # the work of HiGHS between two turns at which it may be interrupted, in seconds for each row, column and entry
        # that isn't held: the same turns in each run. Measured on resnet18_cifar, bert and exact_bert_base.
        turn_s = 7e-7 * entries(solver) * (1 - len(held) / max(1, len(self._lower)))

        def improving(event: Any) -> None:
            if stop.is_set():
                return
            on_point(self._point(np.array(event.data_out.mip_solution), True))

        def interrupt(event: Any) -> None:
            if stop.is_set():
                event.interrupt()
                return
            self.work.compute(turn_s)
            if not frozen and self._proven(self._objective(event.data_out.mip_dual_bound)):
                on_bound(self._bound)
            if enough is not None and enough():
                event.interrupt()

        solver.cbMipImprovingSolution += improving
        solver.cbMipInterrupt += interrupt
        self.work.compute(turn_s)
        interrupted = self._run(solver, stop, time.monotonic() + time_limit_s + 1.0)
        info, status = solver.getInfo(), solver.getModelStatus()
        if interrupted:  # its points were told as they came
            if not frozen:
                self._proven(self._objective(info.mip_dual_bound))
            raise KeyboardInterrupt
        if status == highspy.HighsModelStatus.kUnboundedOrInfeasible:
            status = self._which(solver, stop)
        if status == highspy.HighsModelStatus.kUnbounded:
            raise unbounded()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if not frozen:
            self._proven(self._objective(info.mip_dual_bound))
        found = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            found = self._point(np.array(solver.getSolution().col_value), True)
            on_point(found)
        objective = self._objective(info.objective_function_value) if found is not None else math.inf
        outcome = Outcome.OPTIMAL if status == highspy.HighsModelStatus.kOptimal else Outcome.STOPPED
        if outcome is Outcome.OPTIMAL and cutoff is not None and not frozen:
            # What the cutoff closed isn't in HiGHS's own bound. A solution that isn't better, and wasn't given, says
            # that the search came to its end; else it may have ended within the gap.
            ended = start is None and objective >= cutoff
            self._bound = max(self._bound, cutoff if ended else min(cutoff, objective - gap * abs(objective)))
        return Search(outcome, found, objective, self._bound)

    def _give(self, solver: highspy.Highs, start: Sequence[tuple[Any, Floats]]) -> None:
        values = self._columns.spread(start)
        known = np.flatnonzero(~np.isnan(values))
        solver.setSolution(len(known), known.astype(np.int32), values[known])

    def nodes(self) -> HighsNodes:
        """The relaxation as it stands, in other objects of HiGHS.

        They have an event of their own: a search that overruns its time is no reason to end a tree.
        """
        # those of the model's own rows that don't bind wait outside
        self._rows.drop(np.flatnonzero(basic_rows(self._lp.getBasis()) & (self._rows.numbers < self._own)))
        pool, places = RowPool(self._matrix), self._rows.numbers.copy()  # without what was purged
        places[places >= self._own] = pool.add(compressed(self._columns, self._added), anew=True)
        bounds = self._lower, self._upper
        return HighsNodes(self._fresh, self._matrix, pool, places, self._lp.getBasis(), bounds, self._scale)


def highs_model(matrix: Matrix, lower: Floats, upper: Floats, scale: float) -> highspy.HighsLp:
    """The relaxation of `matrix` within these bounds of its columns, (n,) each."""
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
    """Set an option by its text. Raises OptionError where there is none of that name, or it can't have that value."""
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
"""HiGHS's options that poetopt sets itself, and which of ours does."""


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
