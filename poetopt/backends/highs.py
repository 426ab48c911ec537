"""HiGHS, by the fastest route from Pyomo: compile the standard form, pass arrays, keep the basis.

The relaxation lives in one Highs object, so that rows added to it re-solve from the last basis; each
integer search gets a fresh one with the rows of that moment.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.attend import Attendant
from poetopt.backends.highs_nodes import HighsNodes, append_rows, pass_integers
from poetopt.backends.session import MatrixSession, refuse_reserved, unbounded
from poetopt.backends.solver import NO_OPTIONS, Capability, Floats, Frozen, Outcome, Point, Relaxation, Search
from poetopt.closest import closest
from poetopt.errors import OptionError
from poetopt.formulations.language import Row

RESERVED = {
    "time_limit": "--time-limit",
    "mip_rel_gap": "--gap",
    "mip_abs_gap": "--gap",
    "threads": "--threads",
    "log_file": "--log",
    "output_flag": "--log",
    "log_to_console": "--log",
}

DEVEX = 1
"""Pricing of the dual simplex method. On a first relaxation of 15,000 columns it takes a quarter of the time of
steepest edge, whose weights cost more than the iterations that they save; on one of 1,000 both take the same."""

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
        self._stop = threading.Event()
        matrix = self._matrix
        lp = highspy.HighsLp()
        lp.num_row_, lp.num_col_ = matrix.shape
        lp.col_cost_ = matrix.costs * scale
        lp.col_lower_, lp.col_upper_ = matrix.lower, matrix.upper
        lp.row_lower_, lp.row_upper_ = matrix.row_lower, matrix.row_upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = matrix.rows.indptr
        lp.a_matrix_.index_ = matrix.rows.indices
        lp.a_matrix_.value_ = matrix.rows.data
        self._lp = self._fresh(self._stop)
        self._lp.passModel(lp)

    def _fresh(self, stop: threading.Event) -> highspy.Highs:
        """A Highs object with the session's options; `stop` interrupts its simplex method."""
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("simplex_dual_edge_weight_strategy", DEVEX)
        for key, value in self._options.items():
            _set(solver, key, value)
        if self._threads:
            solver.setOptionValue("threads", self._threads)
        solver.cbSimplexInterrupt += lambda event: event.interrupt() if stop.is_set() else None
        if self._log is not None:
            path = Path(self._log)

            def write(event: Any) -> None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(event.message)

            solver.setOptionValue("log_to_console", False)
            solver.setOptionValue("output_flag", True)
            solver.cbLogging += write
        return solver

    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""
        trivial = self._nothing_to_solve()
        if trivial is not None:
            return trivial
        solver = self._lp
        # HiGHS counts its run time over all runs of one object
        solver.setOptionValue("time_limit", solver.getRunTime() + max(0.05, time_limit_s))
        if self._run(solver, self._stop):
            raise KeyboardInterrupt
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kUnboundedOrInfeasible:
            status = self._which(solver, self._stop)
        if status == highspy.HighsModelStatus.kOptimal:
            found = solver.getSolution()
            return self._solved(
                solver.getInfo().objective_function_value,
                np.array(found.col_value),
                np.array(found.row_value),
                np.array(found.col_dual),
                np.array(found.row_dual),
            )
        if status == highspy.HighsModelStatus.kInfeasible:
            return Relaxation(Outcome.INFEASIBLE, math.inf, None)
        if status == highspy.HighsModelStatus.kUnbounded:
            raise unbounded()
        return Relaxation(Outcome.STOPPED, self._bound, None)

    def _which(self, solver: highspy.Highs, stop: threading.Event) -> highspy.HighsModelStatus:
        """Unbounded or infeasible: presolve can't tell, the simplex method can."""
        _, before = solver.getOptionValue("presolve")
        solver.setOptionValue("presolve", "off")
        if self._run(solver, stop):
            raise KeyboardInterrupt
        solver.setOptionValue("presolve", before)
        return solver.getModelStatus()

    def _append(self, rows: Sequence[Row]) -> None:
        append_rows(self._lp, self._columns, rows)

    def _delete(self, places: NDArray[np.int32]) -> None:
        self._lp.deleteRows(len(places), places)

    def _fix(self, columns: NDArray[np.int32], values: Floats) -> None:
        self._lp.changeColsBounds(len(columns), columns, values, values)

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
        stop = threading.Event()  # of its own: a search that was left behind stays told
        solver = self._fresh(stop)
        solver.passModel(self._lp.getLp())
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

        def improving(event: Any) -> None:
            if stop.is_set():
                return
            on_point(self._point(np.array(event.data_out.mip_solution), True))

        def interrupt(event: Any) -> None:
            if stop.is_set():
                event.interrupt()
                return
            bound = self._objective(event.data_out.mip_dual_bound)
            if not frozen and math.isfinite(bound) and bound > self._bound:
                self._bound = bound
                on_bound(bound)
            if enough is not None and enough():
                event.interrupt()

        solver.cbMipImprovingSolution += improving
        solver.cbMipInterrupt += interrupt
        interrupted = self._run(solver, stop, time.monotonic() + time_limit_s + 1.0)
        info, status = solver.getInfo(), solver.getModelStatus()
        if interrupted:  # its points were told as they came
            if not frozen and math.isfinite(info.mip_dual_bound):
                self._bound = max(self._bound, self._objective(info.mip_dual_bound))
            raise KeyboardInterrupt
        if status == highspy.HighsModelStatus.kUnboundedOrInfeasible:
            status = self._which(solver, stop)
        if status == highspy.HighsModelStatus.kUnbounded:
            raise unbounded()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if not frozen and math.isfinite(info.mip_dual_bound):
            self._bound = max(self._bound, self._objective(info.mip_dual_bound))
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

    def nodes(self) -> HighsNodes:
        """The relaxation as it stands, in other objects of HiGHS.

        They have an event of their own: a search that overruns its time is no reason to end a tree.
        """
        bounds = self._lower, self._upper
        return HighsNodes.of(self._fresh, self._lp.getLp(), self._lp.getBasis(), self._matrix, bounds, self._scale)

    def _run(self, solver: highspy.Highs, stop: threading.Event, deadline: float | None = None) -> bool:
        """Run `solver`, which `stop` stops; whether it was interrupted."""

        def work() -> None:
            stop.clear()  # not before: one that was left behind has to see it
            solver.run()

        return _attendant.run(work, stop.set, deadline)

    def _give(self, solver: highspy.Highs, start: Sequence[tuple[Any, Floats]]) -> None:
        values = self._columns.spread(start)
        known = np.flatnonzero(~np.isnan(values))
        solver.setSolution(len(known), known.astype(np.int32), values[known])


def _set(solver: highspy.Highs, key: str, value: str) -> None:
    """Set an option by its text. Raises OptionError where there is none of that name, or it can't have that value."""
    _, kind = solver.getOptionType(key)
    names = [name for name in dir(solver.getOptions()) if not name.startswith("_")]
    if key not in names:
        hint = closest(key, names) or "; see the list of HiGHS's options"
        raise OptionError(f"--solver-option {key}={value}: HiGHS has no such option{hint}")
    if solver.setOptionValue(key, value) != highspy.HighsStatus.kOk:
        shown = str(kind).rpartition("k")[2].lower()
        raise OptionError(f"--solver-option {key}={value}: not a value of HiGHS's {key} (a {shown})")


class HighsBackend:
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


backend = HighsBackend()
