"""Search of one model: relaxation with cuts, integer search, simulation; again while plans break lazy constraints.

It is independent of the formulation: rows come from the blocks' separators, and the formulation turns points into
schedules. A schedule counts only after its simulation.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from poetopt.backends.solvers.solver import Capability, Outcome, Point, Session
from poetopt.formulations.rows import Row
from poetopt.formulations.search_adapter import Values
from poetopt.search.cutting import cut
from poetopt.search.replays import Replays
from poetopt.search.run import Budget, Ending, Run
from poetopt.search.tuning import CUT_SHARE, CUTOFF_MARGIN, LATE, WAIT_S


@dataclass(frozen=True)
class Mode:
    """Options for the search of a model.

    Attributes
    ----------
    exact
        Whether the model is the requested one. The bounds of a restriction prove nothing.
    no_goods
        Whether the search excludes a schedule that layout or clock reject, and goes on.
    known
        Rows that exclude schedules for which a proof exists.
    relaxed_only
        Whether to solve only the relaxation.
    """

    exact: bool = True
    no_goods: bool = False
    known: tuple[Row, ...] = ()
    relaxed_only: bool = False


class ModelSearch:
    """Search of one model that is open in a solver.

    Attributes
    ----------
    binding
        Cuts to begin with, by block and key; after the search those that were tight at the root.
    """

    def __init__(
        self,
        run: Run,
        budget: Budget,
        model: Any,
        session: Session,
        mode: Mode,
        binding: tuple[tuple[str, Hashable], ...] = (),
    ) -> None:
        self.run, self.budget, self.model, self.session, self.mode = run, budget, model, session, mode
        self.binding = binding
        self._exact = mode.exact
        """True until a schedule is excluded that isn't proven to be late: bounds count that long."""
        self._unsearched = False
        """True once schedules are excluded that were not examined, and may be in time."""
        self._thrifty = False
        """True once the rows of `SearchAdapter.thrift` are added."""

    def search(self) -> Ending:
        """Cut, search, simulate, repeat; return the outcome."""
        if self._cut():
            return Ending.INFEASIBLE
        if self._is_closed():
            return Ending.FINISHED
        if self.mode.relaxed_only:
            return Ending.STOPPED
        if self._exact and not self.mode.no_goods:
            self.run.proving.root = self.run.work.seconds, self.run.bound
        with self.run.timed("search"):
            return self._search_integer()

    def _cut(self) -> bool:
        """Cut the relaxation, and replay its points; return whether it is infeasible."""
        run, session = self.run, self.session
        replays = Replays(run, self.budget, self.model, run.work)

        with run.timed("relaxation"):
            session.add(self.mode.known)
            session.add(run.chosen.revive(self.model, self.binding))
            cutting = cut(
                run.chosen,
                self.model,
                session,
                until=self.budget.part(CUT_SHARE[0]),
                latest=self.budget.part(CUT_SHARE[1]),
                overhead_j=run.incumbent.value,
                on_bound=self._note_relaxation,
                on_point=replays.follow_some,
            )
        self.binding = tuple((row.block, row.key) for row in session.binding if row.key is not None)
        return cutting.infeasible

    @property
    def sources(self) -> frozenset[str]:
        """Blocks whose lazy constraints the bound may rest on."""
        return self.session.sources

    @property
    def _is_over(self) -> bool:
        """Return whether the search ends: the plan is proven, or the time is over."""
        return self._is_closed() or self.run.remaining_s(self.budget) <= 0

    def _raise_bound(self, value: float, phase: str) -> None:
        if self._exact:
            self.run.raise_bound(value, phase)

    def _note_relaxation(self, value: float) -> bool:
        self._raise_bound(value, "relaxation")
        return self.run.closed(self.budget.gap)

    def _is_closed(self) -> bool:
        return self._exact and self.run.closed(self.budget.gap)

    def _search_integer(self) -> Ending:
        """Search for integer points, again as long as the answer breaks lazy constraints.

        A point that breaks some of them becomes the solver's cutoff, and prunes schedules that satisfy them all. So a
        search ends early if its best points have broken some for as long as the first one took to be found.
        """
        run, chosen, model, session = self.run, self.run.chosen, self.model, self.session
        begin_s = run.work.seconds
        broken_s: float | None = None
        late_rows: list[Row] = []
        n_late = 0

        def on_point(point: Point) -> None:
            nonlocal broken_s
            schedule = chosen.search.schedule(model, point)
            run.offer(schedule, "search")
            rows = [row for row in run.separate(model, point) if row.core]
            late_rows.extend(rows)
            row = run.row_excluding(model, schedule)
            if row is not None:
                late_rows.append(row)
            broken_s = (
                (broken_s or run.work.seconds) if rows or run.incumbent.rejection_of(schedule) is not None else None
            )

        def enough() -> bool:
            has_waited = broken_s is not None and run.work.seconds - broken_s > max(WAIT_S, broken_s - begin_s)
            return has_waited or self._is_over

        while not self._is_over:
            best = run.incumbent.best
            begin_s, broken_s = run.work.seconds, None
            if self._exact and best is not None:
                session.tighten(best.value)
            start = self._start() if Capability.WARM_START in session.capabilities else None
            cutoff = None
            if best is not None and start is None and Capability.CUTOFF in session.capabilities:
                cutoff = best.value * (1 - CUTOFF_MARGIN)
            found = session.search(
                time_limit_s=self.budget.limit_s,
                gap=self.budget.gap / 2,
                start=start,
                on_point=on_point,
                on_bound=lambda value: self._raise_bound(min(value, run.incumbent.value or value), "search"),
                cutoff=cutoff,
                enough=enough,
            )
            if found.outcome is Outcome.INFEASIBLE:
                if self.mode.no_goods and not self._exact:
                    return Ending.REFUSED if self._unsearched else Ending.EXHAUSTED
                if best is None or not (session.tightened or cutoff):
                    return Ending.INFEASIBLE
                self._raise_bound(best.value, "search")  # no remaining schedule is better
                return Ending.FINISHED
            self._raise_bound(found.bound if best is None else _proven_bound(found.bound, cutoff, best.value), "search")
            if found.point is None or self._is_closed():
                break
            rows = [row for row in run.separate(model, found.point) if row.core]
            schedule = chosen.search.schedule(model, found.point)
            refusal = run.incumbent.rejection_of(schedule)
            n_late += refusal is not None and refusal.late_s > 0
            if rows and (self.mode.no_goods or n_late < LATE):
                session.add(late_rows)
                late_rows.clear()
                continue
            if refusal is None:
                return Ending.FINISHED if found.outcome is Outcome.OPTIMAL else Ending.STOPPED
            left_out = run.row_excluding(model, schedule)
            if left_out is not None:
                self._leave_out([*late_rows, left_out])
                late_rows.clear()
                continue
            values = chosen.search.values(model, schedule) if self.mode.no_goods else None
            if values is None or chosen.search.no_good is None:
                return Ending.REFUSED
            late = not (refusal.arena_excess or refusal.rule)
            if not late or not run.incumbent.is_proven_late(schedule):
                self._exact = False
                self._unsearched |= late  # the row leaves out others as well
            self._leave_out([chosen.search.no_good(model, schedule, values, late=late)])
        return Ending.FINISHED if self._is_closed() else Ending.STOPPED

    def _leave_out(self, rows: list[Row]) -> None:
        """Add rows that exclude schedules, after the rows of points that waste nothing (once)."""
        if not self._thrifty and self.run.chosen.search.thrift is not None:
            rows = [*self.run.chosen.search.thrift(self.model), *rows]
        self._thrifty = True
        self.session.add(rows)

    def _start(self) -> Values | None:
        """Return the values of the best known schedule that lies in the model."""
        best = self.run.incumbent.best
        for schedule in [*([] if best is None else [best.schedule]), *self.run.starts]:
            values = self.run.chosen.search.values(self.model, schedule)
            if values is not None and all(_satisfies(row, values) for row in self.mode.known):
                return values
        return None


def _proven_bound(bound: float, cutoff: float | None, value: float) -> float:
    """Return the bound that a search from a solution of `value` proves, up to the margin of the cutoff."""
    return value if cutoff is not None and bound >= cutoff else min(bound, value)


def _satisfies(row: Row, values: Values) -> bool:
    x_of = {id(entry): x for variable, array in values for entry, x in zip(variable.values(), array, strict=True)}
    pairs = zip(row.variables, row.coefficients, strict=True)
    return bool(row.lower <= sum(x_of.get(id(entry), 0.0) * coefficient for entry, coefficient in pairs) <= row.upper)
