"""The search of one model: relaxation with cuts, integer search, simulation, and again while plans break late rows.

It knows no formulation: rows come from the blocks' separators, and schedules from the formulation's own reading of
a point. Whatever it finds counts only after simulation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from poetopt.backends.solver import Capability, Outcome, Point, Session
from poetopt.engine.beside import Beside
from poetopt.engine.cutting import ANEW, cut
from poetopt.engine.guide import Guide
from poetopt.engine.neighbourhood import improve, near_relaxation
from poetopt.engine.proof import Ending
from poetopt.engine.run import Run
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import Floats, PointLike, Row

CUT_SHARE = (0.5, 0.8)
"""Share of the remaining time that cutting may take before the integer search, and where the bound still rises."""
WAIT_S = 1.0
"""A search whose best point breaks rows that come late goes on for this long at least."""
IMPROVE_GAP = 0.03
"""Where the relaxation leaves no more than this open, the whole is searched at once."""
NEAR_GAP = 0.01
"""Where it leaves no more than this, the optimum is looked for near the relaxation first, in an inner scope or not."""
IMPROVE_SHARE = 0.3
"""Share of the remaining time that neighbourhoods of the incumbent may take before the whole is searched."""
CUTOFF_MARGIN = 1e-7
"""Solutions have to be better than the best one by this fraction."""
AHEAD_GAP, AHEAD_S, AHEAD_SHARE = 0.01, 1.5, 0.1
"""Where more than AHEAD_GAP is open after cutting that took AHEAD_S seconds, replays included, the search is dear: a
deeper scope's relaxation is looked at first. That may take AHEAD_SHARE of the remaining time, and replays as much."""
LATE = 3
"""Searches whose best point is late before the model is tightened: rows alone don't tell what the planner can order."""


@dataclass
class ModelSearch:
    """One model, open in a solver, and how it is to be searched.

    beyond
        The row over what an inner scope, proven before, lacks; None where the whole is searched.
    exact
        Whether the model is what was asked: once it is tighter, its bounds prove nothing.
    patient
        Whether a schedule that layout or clock refuse is left out, and the search goes on.
    rare
        Whether a better schedule than the best is hardly to be found here: all that is done is to prove it.
    ahead
        Looks at a deeper scope, where better schedules may be: one that is better than anything here ends the search.
    """

    run: Run
    chosen: Formulation
    model: Any
    session: Session
    beyond: Row | None
    exact: bool
    patient: bool
    rare: bool = False
    ahead: Callable[[], None] | None = None
    tree: Beside | None = None
    """What grows beside the integer search, where the model is what was asked."""
    whole_s: float = 0.0
    """How long the relaxation took that was solved as a whole."""
    relaxed: PointLike | None = None
    """The point to which it came."""

    def search(self) -> Ending:
        """Cut, search, simulate, repeat. Says how it ended."""
        run, begin = self.run, time.monotonic()
        if self._cut(CUT_SHARE):
            return Ending.INFEASIBLE
        dear = time.monotonic() - begin > AHEAD_S and not run.closed(AHEAD_GAP)
        if self.ahead is not None and dear and not self.rare:
            self.ahead()
        if self._closed():
            return Ending.FINISHED
        if not self.exact or self.patient:
            return self._whole()
        with Beside(run, self.chosen, self.model, self.session, self.relaxed, self.rare) as self.tree:
            ending = self._whole()
        return Ending.INFEASIBLE if self.tree.infeasible else ending

    def look(self) -> None:
        """Cut for a moment, for the schedules that its points lead to; nothing is proven."""
        self._cut((AHEAD_SHARE, AHEAD_SHARE))

    def _cut(self, share: tuple[float, float]) -> bool:
        """Cut the relaxation, and replay its points. Says whether it is infeasible.

        share
            Of the remaining time: see `CUT_SHARE`.
        """
        run, session = self.run, self.session
        guide = Guide(run, self.chosen, self.model)

        def seen(point: PointLike) -> None:
            self.relaxed = point
            guide.follow_some(point)
            guide.perturb(point)

        now, remaining_s = time.monotonic(), max(run.remaining_s, 0.0)
        with run.timed("relaxation"), guide.beside():
            if self.beyond is not None:
                session.add([self.beyond])
            session.add(self.chosen.revive(self.model, run.pool))
            cutting = cut(
                self.chosen,
                self.model,
                session,
                until=now + share[0] * remaining_s,
                latest=now + share[1] * remaining_s,
                overhead_j=run.incumbent.value,
                on_bound=self._relaxed,
                on_point=seen,
                solving=guide.solving,
            )
        run.pool = [(row.block, row.key) for row in session.binding if row.key is not None]
        self.whole_s = cutting.whole_s
        if not cutting.infeasible and not self._closed() and not self.rare:
            with run.timed("replays"):
                guide.dwell(time.monotonic() - now)
        return cutting.infeasible

    @property
    def sources(self) -> frozenset[str]:
        """The blocks whose late rows the bound may rest on."""
        return self.session.sources | (self.tree.sources if self.tree is not None else frozenset())

    @property
    def over(self) -> bool:
        """Whether searching ends: proven, out of time, or by an error in the tree beside it."""
        return self._closed() or self.run.remaining_s <= 0 or (self.tree is not None and self.tree.failed)

    def _whole(self) -> Ending:
        """Neighbourhoods first where that may pay, then the integer search."""
        run, session = self.run, self.session
        # What lies beyond a proven scope is seldom better: there the whole is searched at once.
        wide = self.beyond is None and not self.rare and not run.closed(max(run.gap, IMPROVE_GAP))
        near = wide or (not self.rare and run.closed(NEAR_GAP))
        if near or self.patient:
            with run.timed("neighbourhoods"):
                until = time.monotonic() + IMPROVE_SHARE * max(run.remaining_s, 0.0)
                if self.exact and not self.patient:
                    near_relaxation(run, self.chosen, self.model, session, until)
                if wide or self.patient:
                    improve(run, self.chosen, self.model, session, until)
            if self._closed():
                return Ending.FINISHED
        with run.timed("search"):
            return self._integer()

    def _bound(self, value: float, phase: str) -> None:
        if self.exact:
            self.run.raise_bound(value, phase)

    def _relaxed(self, value: float) -> bool:
        self._bound(value, "relaxation")
        return self.run.closed(self.run.gap)

    def _closed(self) -> bool:
        infeasible = self.tree is not None and self.tree.infeasible
        return self.exact and (infeasible or self.run.closed(self.run.gap))

    def _integer(self) -> Ending:
        """The integer search, again for as long as its answer breaks rows that come late.

        A point that breaks one is better than what keeps them all, and would have the search give up all that lies
        between. So a search ends early where its best points have been of those for as long as it took to find the
        first one.
        """
        run, chosen, model, session = self.run, self.chosen, self.model, self.session
        first = found_at = began = time.monotonic()
        broken_s: float | None = None
        found_late: list[Row] = []
        late, behind = 0, False

        def improving(point: Point) -> None:
            nonlocal broken_s, found_at
            schedule = chosen.schedule(model, point)
            if run.offer(schedule, "search"):
                found_at = time.monotonic()
            rows = [row for row in run.separate(model, point) if row.core]
            found_late.extend(rows)
            broken_s = (broken_s or time.monotonic()) if rows or run.incumbent.refused(schedule) is not None else None

        def enough() -> bool:
            nonlocal behind
            waited = broken_s is not None and time.monotonic() - broken_s > max(WAIT_S, broken_s - began)
            times = found_at - first, time.monotonic() - first
            behind = behind or (self.tree is not None and self.tree.leads(session.incumbent_bound, *times))
            return waited or behind or self.over

        while not self.over:
            best = run.incumbent.best
            if self.tree is not None and self.tree.grows:
                if run.remaining_s < ANEW * self.whole_s:
                    self.tree.take_over()
                    break
                if (self.beyond is not None or self.rare) and best is not None and not self.tree.wide:
                    self.tree.take_over(unless_wide=True)
                    continue
            began, broken_s = time.monotonic(), None
            if self.exact and best is not None:
                session.tighten(best.value)
            start = self._start() if Capability.WARM_START in session.capabilities else None
            cutoff = None
            if best is not None and start is None and Capability.CUTOFF in session.capabilities:
                cutoff = best.value * (1 - CUTOFF_MARGIN)
            found = session.search(
                time_limit_s=run.remaining_s,
                gap=run.gap / 2,
                start=start,
                on_point=improving,
                on_bound=lambda value: self._bound(min(value, run.incumbent.value or value), "search"),
                cutoff=cutoff,
                enough=enough,
            )
            if found.outcome is Outcome.INFEASIBLE:
                if self.patient and not self.exact:
                    return Ending.REFUSED  # what is left was never searched
                if best is None or not (session.tightened or cutoff):
                    return Ending.INFEASIBLE
                self._bound(best.value, "search")  # nothing that is left is better
                return Ending.FINISHED
            self._bound(found.bound if best is None else _proven(found.bound, cutoff, best.value), "search")
            if self.tree is not None and behind:
                behind = False
                self.tree.take_over()
                continue
            if found.point is None or self._closed():
                break
            rows = [row for row in run.separate(model, found.point) if row.core]
            schedule = chosen.schedule(model, found.point)
            refusal = run.incumbent.refused(schedule)
            late += refusal is not None and refusal.late_s > 0
            if rows and (self.patient or late < LATE):
                session.add(found_late)
                found_late.clear()
                continue
            if refusal is None:
                return Ending.FINISHED if found.outcome is Outcome.OPTIMAL else Ending.STOPPED
            values = chosen.start(model, schedule) if self.patient else None
            if values is None or chosen.gives_up is None:
                return Ending.REFUSED
            if refusal.arena_excess or not run.incumbent.hopeless(schedule):
                self.exact = False
            session.add([chosen.gives_up(model, schedule, values, late=not refusal.arena_excess)])
        return Ending.FINISHED if self._closed() else Ending.STOPPED

    def _start(self) -> list[tuple[Any, Floats]] | None:
        """Values of the best schedule known that lies in the model."""
        best = self.run.incumbent.best
        for schedule in [*([] if best is None else [best.schedule]), *self.run.starts]:
            values = self.chosen.start(self.model, schedule)
            if values is not None and (self.beyond is None or _keeps(self.beyond, values)):
                return values
        return None


def _proven(bound: float, cutoff: float | None, value: float) -> float:
    """What a search proves that began with a solution of `value`: the margin of the cutoff is a tolerance."""
    return value if cutoff is not None and bound >= cutoff else min(bound, value)


def _keeps(row: Row, values: list[tuple[Any, Floats]]) -> bool:
    known = {id(one): x for variable, array in values for one, x in zip(variable.values(), array, strict=True)}
    pairs = zip(row.variables, row.coefficients, strict=True)
    return bool(row.lower <= sum(known.get(id(one), 0.0) * coefficient for one, coefficient in pairs) <= row.upper)
