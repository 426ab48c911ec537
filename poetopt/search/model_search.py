"""The search of one model: relaxation with cuts, integer search, simulation; again while plans break lazy constraints.

It knows no formulation: rows come from the blocks' separators, and schedules from the formulation's own reading of
a point. Whatever it finds counts only after simulation.
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
    """The way in which a model is searched.

    exact
        Whether the model is what was asked: the bounds of a restriction prove nothing.
    no_goods
        Whether a schedule that layout or clock refuse is left out, and the search goes on.
    known
        Rows that leave out what was proven before.
    relaxed_only
        Whether the relaxation is all that is wanted.
    """

    exact: bool = True
    no_goods: bool = False
    known: tuple[Row, ...] = ()
    relaxed_only: bool = False


class ModelSearch:
    """One model, open in a solver.

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
        """Until a schedule is left out that isn't proven to be late."""
        self._unsearched = False
        """True where schedules were left out that nobody looked at, and that may be in time."""
        self._thrifty = False
        """True where the rows of `SearchAdapter.thrift` are there."""

    def search(self) -> Ending:
        """Cut, search, simulate, repeat. Says how it ended."""
        if self._cut():
            return Ending.INFEASIBLE
        if self._closed():
            return Ending.FINISHED
        if self.mode.relaxed_only:
            return Ending.STOPPED
        if self._exact and not self.mode.no_goods:
            self.run.proving.root = self.run.work.seconds, self.run.bound
        with self.run.timed("search"):
            return self._integer()

    def _cut(self) -> bool:
        """Cut the relaxation, and replay its points. Says whether it is infeasible."""
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
                on_bound=self._relaxed,
                on_point=replays.follow_some,
            )
        self.binding = tuple((row.block, row.key) for row in session.binding if row.key is not None)
        return cutting.infeasible

    @property
    def sources(self) -> frozenset[str]:
        """The blocks whose lazy constraints the bound may rest on."""
        return self.session.sources

    @property
    def _over(self) -> bool:
        """Say whether searching ends: proven, or out of time."""
        return self._closed() or self.run.remaining_s(self.budget) <= 0

    def _bound(self, value: float, phase: str) -> None:
        if self._exact:
            self.run.raise_bound(value, phase)

    def _relaxed(self, value: float) -> bool:
        self._bound(value, "relaxation")
        return self.run.closed(self.budget.gap)

    def _closed(self) -> bool:
        return self._exact and self.run.closed(self.budget.gap)

    def _integer(self) -> Ending:
        """The integer search, again for as long as its answer breaks lazy constraints.

        A point that breaks some of them becomes the solver's cutoff, and prunes schedules that keep them all. So a
        search ends early where its best points have broken some for as long as it took to find the first one.
        """
        run, chosen, model, session = self.run, self.run.chosen, self.model, self.session
        began = run.work.seconds
        broken_s: float | None = None
        found_late: list[Row] = []
        lates = 0

        def improving(point: Point) -> None:
            nonlocal broken_s
            schedule = chosen.search.schedule(model, point)
            run.offer(schedule, "search")
            rows = [row for row in run.separate(model, point) if row.core]
            found_late.extend(rows)
            row = run.left_out(model, schedule)
            if row is not None:
                found_late.append(row)
            broken_s = (broken_s or run.work.seconds) if rows or run.incumbent.refused(schedule) is not None else None

        def enough() -> bool:
            waited = broken_s is not None and run.work.seconds - broken_s > max(WAIT_S, broken_s - began)
            return waited or self._over

        while not self._over:
            best = run.incumbent.best
            began, broken_s = run.work.seconds, None
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
                on_point=improving,
                on_bound=lambda value: self._bound(min(value, run.incumbent.value or value), "search"),
                cutoff=cutoff,
                enough=enough,
            )
            if found.outcome is Outcome.INFEASIBLE:
                if self.mode.no_goods and not self._exact:
                    return Ending.REFUSED if self._unsearched else Ending.EXHAUSTED
                if best is None or not (session.tightened or cutoff):
                    return Ending.INFEASIBLE
                self._bound(best.value, "search")  # nothing that is left is better
                return Ending.FINISHED
            self._bound(found.bound if best is None else _proven(found.bound, cutoff, best.value), "search")
            if found.point is None or self._closed():
                break
            rows = [row for row in run.separate(model, found.point) if row.core]
            schedule = chosen.search.schedule(model, found.point)
            refusal = run.incumbent.refused(schedule)
            lates += refusal is not None and refusal.late_s > 0
            if rows and (self.mode.no_goods or lates < LATE):
                session.add(found_late)
                found_late.clear()
                continue
            if refusal is None:
                return Ending.FINISHED if found.outcome is Outcome.OPTIMAL else Ending.STOPPED
            left_out = run.left_out(model, schedule)
            if left_out is not None:
                self._leave_out([*found_late, left_out])
                found_late.clear()
                continue
            values = chosen.search.values(model, schedule) if self.mode.no_goods else None
            if values is None or chosen.search.no_good is None:
                return Ending.REFUSED
            late = not (refusal.arena_excess or refusal.rule)
            if not late or not run.incumbent.hopeless(schedule):
                self._exact = False
                self._unsearched |= late  # the row leaves out others as well
            self._leave_out([chosen.search.no_good(model, schedule, values, late=late)])
        return Ending.FINISHED if self._closed() else Ending.STOPPED

    def _leave_out(self, rows: list[Row]) -> None:
        """Add rows that leave schedules out, and before the first ones those of points that waste nothing."""
        if not self._thrifty and self.run.chosen.search.thrift is not None:
            rows = [*self.run.chosen.search.thrift(self.model), *rows]
        self._thrifty = True
        self.session.add(rows)

    def _start(self) -> Values | None:
        """Values of the best schedule known that lies in the model."""
        best = self.run.incumbent.best
        for schedule in [*([] if best is None else [best.schedule]), *self.run.starts]:
            values = self.run.chosen.search.values(self.model, schedule)
            if values is not None and all(_keeps(row, values) for row in self.mode.known):
                return values
        return None


def _proven(bound: float, cutoff: float | None, value: float) -> float:
    """The bound that a search from a solution of `value` proves: the margin of the cutoff is a tolerance."""
    return value if cutoff is not None and bound >= cutoff else min(bound, value)


def _keeps(row: Row, values: Values) -> bool:
    known = {id(one): x for variable, array in values for one, x in zip(variable.values(), array, strict=True)}
    pairs = zip(row.variables, row.coefficients, strict=True)
    return bool(row.lower <= sum(known.get(id(one), 0.0) * coefficient for one, coefficient in pairs) <= row.upper)
