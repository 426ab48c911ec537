"""HiGHS: a session on a model, and the backend that opens it.

Each integer search gets a fresh Highs object, with the rows that the relaxation has at that moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import highspy
import numpy as np

from poetopt.backends.solvers.highs_interrupt import Interrupt
from poetopt.backends.solvers.highs_nodes import HighsNodes, pass_integers
from poetopt.backends.solvers.highs_pool import RowPool
from poetopt.backends.solvers.highs_relaxation import HighsRelaxation, highs_model
from poetopt.backends.solvers.highs_rows import compressed
from poetopt.backends.solvers.highs_scheduler import entries
from poetopt.backends.solvers.session import refuse_reserved, unbounded
from poetopt.backends.solvers.solver import NO_OPTIONS, Capability, Floats, Frozen, Outcome, Point, Search
from poetopt.formulations.rows import Count

RESERVED = {
    "time_limit": "--time-limit",
    "mip_rel_gap": "--gap",
    "mip_abs_gap": "--gap",
    "threads": "--threads",
    "log_file": "--with log",
    "output_flag": "--with log",
    "log_to_console": "--with log",
}
"""HiGHS's options that poetopt sets itself, and which of ours does."""

TURN_S = 7e-7
"""What HiGHS does between two turns at which it may be interrupted, in seconds for each row, column and entry that
isn't held: the same turns in each run. Measured on resnet18_cifar, bert and exact_bert_base."""


class HighsSession(HighsRelaxation):
    """One Pyomo model, open in HiGHS."""

    capabilities = frozenset(Capability)

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

        turn_s = TURN_S * entries(solver) * (1 - len(held) / max(1, len(self._lower)))

        def improving(event: Any) -> None:
            if stop.is_set():
                return
            on_point(self._point(np.array(event.data_out.mip_solution), True))

        def interrupt(event: Any) -> None:
            if stop.is_set():
                event.interrupt()
                return
            self.work.compute(turn_s)
            if not frozen and self._proven(event.data_out.mip_dual_bound):
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
                self._proven(info.mip_dual_bound)
            raise KeyboardInterrupt
        if status == highspy.HighsModelStatus.kUnboundedOrInfeasible:
            status = self._which(solver, stop)
        if status == highspy.HighsModelStatus.kUnbounded:
            raise unbounded()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        if not frozen:
            self._proven(info.mip_dual_bound)
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

    def _proven(self, scaled: float) -> bool:
        """Take in a bound of HiGHS's on the whole model; whether it is the best so far."""
        bound = self._objective(scaled)
        if not math.isfinite(bound) or bound <= self._bound:
            return False
        self._bound = bound
        return True

    def _give(self, solver: highspy.Highs, start: Sequence[tuple[Any, Floats]]) -> None:
        values = self._columns.spread(start)
        known = np.flatnonzero(~np.isnan(values))
        solver.setSolution(len(known), known.astype(np.int32), values[known])

    def nodes(self, counts: Sequence[Count] = ()) -> HighsNodes:
        """The relaxation as it stands, in other objects of HiGHS.

        They have an event of their own: a search that overruns its time is no reason to end a tree.
        """
        self._set_unbinding_aside()
        pool, places = self._rows.pool.copy(), self._rows.numbers.copy()
        if not self._partly:  # without what was purged
            pool = RowPool(self._matrix)
            added = compressed(self._columns, self._added)
            places[places >= self._own] = pool.add(added, [row.core for row in self._added], anew=not self._large)
        bounds = self._lower, self._upper
        return HighsNodes.of(self._fresh, self._matrix, pool, places, self._lp.getBasis(), bounds, self._scale, counts)


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
