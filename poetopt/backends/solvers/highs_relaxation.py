"""A model's relaxation in HiGHS, by the fastest route from Pyomo: compile the form, pass arrays, keep the basis.

It lives in one Highs object, so that rows added to it re-solve from the last basis.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.attend import Attendant
from poetopt.backends.solvers.highs_interrupt import Interrupt
from poetopt.backends.solvers.highs_pool import Places, RowPool
from poetopt.backends.solvers.highs_present import PresentRows
from poetopt.backends.solvers.highs_rows import basic_rows, compressed
from poetopt.backends.solvers.highs_scheduler import NO_LIMIT, run, simplex_s
from poetopt.backends.solvers.matrix import Matrix
from poetopt.backends.solvers.session import MatrixSession, unbounded
from poetopt.backends.solvers.solver import NO_OPTIONS, Floats, Outcome, Relaxation
from poetopt.formulations.rows import Row
from poetopt.util.errors import OptionError, OutputError
from poetopt.util.suggest import closest

DEVEX = 1
"""Pricing of the dual simplex method. On a first relaxation of 15,000 columns it takes a quarter of the time of
steepest edge, whose weights cost more than the iterations that they save; on one of 1,000 both take the same."""
PARTLY = {"simplex_dual_edge_weight_strategy": 2, "dual_simplex_cost_perturbation_multiplier": 0.3}
"""Steepest edge, and less perturbation of costs, where a relaxation is solved again over part of its rows: half of the
iterations. Its weights are there then, from the solve before."""

LARGE = 20_000
"""With fewer rows of its own a model is always solved whole: what is saved then is less than further solves take. There
a row may come twice, too: it costs little, and trees begin a little better with it."""

WHOLE_ITERATIONS, HUGE = 60_000, 120_000
"""The first relaxation is solved whole, from presolve on, unless that takes more than so many iterations, or there are
HUGE rows: it would take half a minute, in which rows that come in get on with the cuts."""

_attendant = Attendant("highs")


class HighsRelaxation(MatrixSession):
    """The part of a session that holds the relaxation; `HighsSession` searches as well."""

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
        self._large = self._own >= LARGE
        self._rows = PresentRows(self._lp, RowPool(matrix), np.arange(self._own))
        self._found: list[Row] = []
        """The rows that were ever added, those of the pool from `_own` on; their terms are there."""
        self._broken: Places = np.zeros(0, dtype=np.int64)
        """Rows outside that the last point breaks: they come in before the next solve."""
        self._partly = False

    def _fresh(self, stop: Interrupt) -> highspy.Highs:
        """A Highs object with the session's options; `stop` ends its simplex method."""
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("simplex_dual_edge_weight_strategy", DEVEX)
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
                        f"--with log={path}: can't be written ({error.strerror}); give another path"
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
            if not found.broken:
                return found

    def relax_partly(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation over those rows that some point has broken so far; see the contract."""
        if not self._large:
            return self.relax(time_limit_s)
        if self._partly:
            return self._relax(time_limit_s)
        until = time.monotonic() + time_limit_s
        if self._last is None and self._own >= HUGE:
            self._begin_anew()
        elif self._last is None:
            self._lp.setOptionValue("simplex_iteration_limit", WHOLE_ITERATIONS)
            found = self.relax(time_limit_s)
            self._lp.setOptionValue("simplex_iteration_limit", NO_LIMIT)
            if found.outcome is not Outcome.STOPPED:
                return found
            self._begin_anew()
        else:
            self._set_unbinding_aside()
        self._partly = True
        for key, value in PARTLY.items():
            if key not in self._options:
                self._lp.setOptionValue(key, value)
        return self._relax(until - time.monotonic())

    def _begin_anew(self) -> None:
        """Leave in the LP what the cheapest point breaks, and what was added."""
        self._lp.clearSolver()
        cheapest = np.where(self._matrix.costs < 0, self._upper, self._lower)
        nothing = np.zeros(0, dtype=bool)
        broken = self._rows.pool.broken(np.where(np.isfinite(cheapest), cheapest, 0.0), nothing)
        here = self._rows.numbers
        self._rows.drop(np.flatnonzero((here < self._own) & ~np.isin(here, broken)))

    def _relax(self, time_limit_s: float) -> Relaxation:
        """One solve, with the rows that the last point broke."""
        trivial = self._nothing_to_solve()
        if trivial is not None:
            return trivial
        self._bring_in(self._broken)
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
            self._broken = self._outside(values)
            multipliers = np.zeros(self._own)
            multipliers[here[own]] = duals[own]
            return self._solved(
                solver.getInfo().objective_function_value,
                values,
                np.concatenate([activity, np.array(found.row_value)[~own]]),
                np.array(found.col_dual),
                np.concatenate([multipliers, duals[~own]]),
                broken=len(self._broken),
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

    def _outside(self, values: Floats) -> Places:
        """The rows outside that a point breaks. What was purged comes back where the model is solved partly."""
        broken = self._rows.broken(values)
        return broken if self._partly else broken[broken < self._own]

    def _bring_in(self, rows: Places) -> None:
        """Add those rows of the pool to the LP that aren't there."""
        self._broken = self._broken[:0]
        coming = self._rows.bring_in(rows)
        back = coming[coming >= self._own]
        if len(back):
            self._added += self._again(back)

    def _again(self, places: Places) -> list[Row]:
        """Added rows that were purged, with their terms."""
        found, names = self._rows.pool.rows(places), self._columns.variables
        return [
            replace(
                self._found[place - self._own],
                variables=[names[column] for column in found.indices[begin:end].tolist()],
                coefficients=found.values[begin:end].tolist(),
            )
            for place, (begin, end) in zip(places.tolist(), itertools.pairwise(found.ends.tolist()), strict=True)
        ]

    def _set_unbinding_aside(self) -> None:
        """Have those of the model's own rows wait outside that don't bind."""
        self._rows.drop(np.flatnonzero(basic_rows(self._lp.getBasis()) & (self._rows.numbers < self._own)))

    def purge(self) -> int:
        """Drop the added cuts that are slack; where rows may wait outside, all that don't bind go.

        There all wait outside, and of the cuts those go, too, that are basic without any slack: they are many, and come
        again where they are needed.
        """
        if not self._partly or self._activity is None:
            return super().purge()
        basic = basic_rows(self._lp.getBasis())[self._rows.numbers >= self._own]
        solved = len(self._activity) - self._own
        dropped = [x for x, row in enumerate(self._added[:solved]) if basic[x] and not row.core]
        self._forget(dropped)
        self._set_unbinding_aside()
        return len(dropped)

    def _which(self, solver: highspy.Highs, stop: Interrupt) -> highspy.HighsModelStatus:
        """Unbounded or infeasible: presolve can't tell, the simplex method can."""
        _, before = solver.getOptionValue("presolve")
        solver.setOptionValue("presolve", "off")
        if self._run(solver, stop):
            raise KeyboardInterrupt
        solver.setOptionValue("presolve", before)
        return solver.getModelStatus()

    def _append(self, rows: Sequence[Row]) -> Sequence[Row]:
        pool, before = self._rows.pool, len(self._rows.pool)
        numbers = pool.add(compressed(self._columns, rows), [row.core for row in rows], anew=not self._large)
        by_number = dict(zip(numbers.tolist(), rows, strict=True))
        fresh = (row for number, row in by_number.items() if number >= before)
        self._found += [replace(row, variables=(), coefficients=()) for row in fresh]
        return [by_number[number] for number in self._rows.bring_in(numbers).tolist()]

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
        raise OptionError(f"--with solver-option={key}={value}: HiGHS has no such option{hint}")
    if solver.setOptionValue(key, value) != highspy.HighsStatus.kOk:
        shown = str(kind).rpartition("k")[2].lower()
        raise OptionError(f"--with solver-option={key}={value}: not a value of HiGHS's {key} (a {shown})")
