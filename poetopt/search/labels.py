"""Label setting: the exact search that a formulation may have beside its model, below limits that grow.

A search below a limit takes the longer the higher it is, and far longer above the optimum than at it. So it is begun
low: each limit under which there is nothing is a bound, and the first schedule that is found is an optimum. Where
seconds grow so fast that the incumbent is out of reach, it is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from poetopt.formulations.block import Limits
from poetopt.formulations.contract import Labels, LabelSearch
from poetopt.plan.schedule import Schedule
from poetopt.search.budget import Budget
from poetopt.search.run import Run
from poetopt.search.tuning import (
    LABEL_APART,
    LABEL_BRIEF_S,
    LABEL_FROM_NOTHING,
    LABEL_LEAST_STEP,
    LABEL_OTHERS,
    LABEL_PATIENCE,
    LABEL_PATIENCE_S,
    LABEL_REACH,
    LABEL_ROOM,
    LABEL_TIMES,
    LABEL_TOLERANCE,
    LABEL_WIDE_STEP,
    LABEL_WIDEST_STEP,
)
from poetopt.util.work import UNITS_A_SECOND, Work


@dataclass
class LabelSetting:
    """What is known of one scope by such searches.

    bound_j
        No schedule of the scope costs less.
    out_of_reach
        Incumbents of this value or more are skipped: searches up to there take too long.
    """

    run: Run
    scope: str
    search: LabelSearch
    bound_j: float = 0.0
    out_of_reach: float = math.inf
    _labels: Labels | None = None
    _ceiling_j: float = 0.0
    _took_s: float = 0.0
    _seen: list[tuple[float, float]] = field(default_factory=list)
    """Limits, and what the search took up to each, from its beginning."""

    @classmethod
    def of(cls, run: Run, scope: str) -> LabelSetting | None:
        """None where there is no such search of what was asked, and with one thread: it goes by the clock."""
        options, search = run.options, run.chosen.label_search
        if search is None or options.deadline_s is not None or not options.remat or options.threads == 1:
            return None
        found = search(run.problem, Limits(ram_bytes=options.ram_bytes), scope, options.paging, options.remat)
        return None if found is None else cls(run, scope, found)

    def climb(self, budget: Budget) -> None:
        """Search below one limit after the other; offer what is found."""
        run = self.run
        value = run.incumbent.value
        self.bound_j = self.bound_j or self.search.least_j
        run.raise_bound(self.bound_j, "labels")
        if value is None or value >= self.out_of_reach:
            return
        while value - self.bound_j > run.options.gap * value:
            # What takes a moment is proven to the last joule.
            enough = value if self._brief else value * (1 - run.options.gap / 2)
            limit = min(max(self.bound_j * (1 + self._step()), LABEL_FROM_NOTHING * value), enough)
            found = self._below(limit, enough, budget)
            if found is False:
                self.out_of_reach = limit  # an incumbent below it needs no search of this one
                return
            self.bound_j = limit if found is True else found[0]
            run.raise_bound(self.bound_j, "labels")
            if not isinstance(found, bool):
                if not run.offer(found[1], "labels"):
                    self._others(budget)
                return
            if self._reach_s(enough) > LABEL_REACH * run.remaining_s(budget):
                self.out_of_reach = value
                return
            value = run.incumbent.value or value

    def _below(self, limit: float, most: float, budget: Budget) -> tuple[float, Schedule] | bool:
        """Go on with the labels at hand as far as their ceiling; above it from the beginning."""
        if self._labels is None or limit > self._ceiling_j:
            near = most <= limit * (1 + 2 * LABEL_ROOM)
            self._ceiling_j = max(limit, most if near else limit * (1 + LABEL_ROOM))
            self._labels, self._took_s = self.search.begin(self._ceiling_j), 0.0
        patience_s = LABEL_PATIENCE * max(self._seen[-1][1] if self._seen else 0.0, LABEL_BRIEF_S)
        work = self._work(budget.for_s(max(LABEL_PATIENCE_S, patience_s)))
        found = self._labels.below(limit, work)
        self.run.work.done += work.done
        self._took_s += work.seconds
        self._seen.append((limit, self._took_s))
        if found is False:
            self._labels = None
        return found

    def _work(self, budget: Budget) -> Work:
        return Work(self.run.remaining_s(budget) * UNITS_A_SECOND, until=self.run.latest)

    def _others(self, budget: Budget) -> None:
        """Schedules that cost as little as one that has no layout."""
        for seed in range(LABEL_OTHERS):
            run = self.run
            if run.closed(run.options.gap) or run.remaining_s(budget) <= 0:
                return
            limit = self.bound_j * (1 + LABEL_TOLERANCE)
            work = self._work(budget)
            found = self.search.begin(limit, seed).below(limit, work)
            run.work.done += work.done
            if not isinstance(found, bool):
                run.offer(found[1], "labels")

    @property
    def _brief(self) -> bool:
        return not self._seen or self._seen[-1][1] <= LABEL_BRIEF_S

    def _growth(self) -> float:
        """How fast seconds grow: their logarithm for each unit of the limit's."""
        limit, took_s = self._seen[-1]
        before, least_s = next(
            (seen for seen in self._seen[::-1] if limit >= seen[0] * (1 + LABEL_APART)), self._seen[0]
        )
        return math.log(max(took_s, LABEL_BRIEF_S) / max(least_s, LABEL_BRIEF_S)) / max(
            math.log(limit / before), LABEL_LEAST_STEP
        )

    def _step(self) -> float:
        """How far the next limit is above the bound."""
        if self._brief:
            return LABEL_WIDEST_STEP
        growth = self._growth()
        wanted = math.log(LABEL_TIMES) / growth if growth > 0 else math.inf
        return max(LABEL_LEAST_STEP, min(wanted, LABEL_WIDE_STEP))

    def _reach_s(self, enough: float) -> float:
        """What a limit half of the way would take if seconds grow on as they did."""
        if self._brief:
            return 0.0
        limit, took_s = self._seen[-1]
        return took_s * math.exp(min(max(self._growth(), 0.0) * math.log(max(enough / limit, 1.0)) / 2, 50.0))
