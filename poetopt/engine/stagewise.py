"""The exact search that a formulation may have beside its model, below limits that grow.

A search below a limit takes the longer the higher it is, and far longer above the optimum than at it. So it is begun
low: each limit under which there is nothing is a bound, and the first schedule that is found is an optimum. Where
seconds grow so fast that the incumbent is out of reach, it is left.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from poetopt.engine.run import Run
from poetopt.formulations.block import Limits
from poetopt.formulations.language import Formulation, StageSearch

FROM_NOTHING = 0.05
"""The first limit is no less than this share of the incumbent."""
WIDEST_STEP, WIDE_STEP, LEAST_STEP = 0.07, 0.02, 0.003
"""How far a limit is above the one before, as a share of it: at most, at most once searches aren't brief, at least."""
BRIEF_S = 0.2
"""Searches of this many seconds count as brief, however they compare."""
TIMES = 2.0
"""How many times longer than the one before each search is meant to take."""
PATIENCE, PATIENCE_S = 8.0, 2.0
"""A search is given up that takes PATIENCE times what the one before took, and PATIENCE_S seconds."""
REACH = 2.0
"""Where a limit half of the way to the incumbent would take this many times what is left, it is out of reach."""
OTHERS = 2
"""How many other schedules of the least cost are looked for where the first one has no layout."""
TOLERANCE = 1e-6
"""What costs as much costs no more than this share above it."""


@dataclass
class Stagewise:
    """What is known of one scope by such searches.

    bound_j
        No schedule of the scope costs less.
    out_of_reach
        The least value of an incumbent that is known to be so.
    """

    run: Run
    search: StageSearch
    bound_j: float = 0.0
    out_of_reach: float = math.inf
    _step: float = WIDEST_STEP
    _took_s: float = BRIEF_S

    @classmethod
    def of(cls, run: Run, chosen: Formulation, scope: str) -> Stagewise | None:
        """None where there is no such search of what was asked, and with one thread: it goes by the clock."""
        options = run.options
        if chosen.backwards is None or options.deadline_s is not None or not options.remat or options.threads == 1:
            return None
        limits = Limits(ram_bytes=options.ram_bytes)
        search = chosen.backwards(run.problem, limits, scope, options.paging, options.remat)
        return None if search is None else cls(run, search)

    def climb(self, seconds: float) -> None:
        """Search below one limit after the other, for this many seconds at most; offer what is found."""
        run, until = self.run, time.monotonic() + seconds
        value = run.incumbent.value
        self.bound_j = self.bound_j or self.search.least_j
        run.raise_bound(self.bound_j, "stages")
        if value is None or value >= self.out_of_reach:
            return
        while value - self.bound_j > run.options.gap * value:
            enough = value * (1 - run.options.gap / 2)
            limit = min(max(self.bound_j * (1 + self._step), FROM_NOTHING * value), enough)
            begin = time.monotonic()
            found = self.search.below(limit, min(until, begin + max(PATIENCE_S, PATIENCE * self._took_s)))
            if not isinstance(found, bool):
                self.bound_j = found[0]
                run.raise_bound(self.bound_j, "stages")
                if not run.offer(found[1], "stages"):
                    self._others(until)
                return
            took_s, left_s = time.monotonic() - begin, until - time.monotonic()
            if found:
                reach_s = self._learn(limit, took_s, enough)
                self.bound_j = limit
                run.raise_bound(limit, "stages")
            else:
                self.out_of_reach = limit  # an incumbent below it needs no search of this one
                return
            if reach_s > REACH * left_s:
                self.out_of_reach = value
                return
            value = run.incumbent.value or value

    def _others(self, until: float) -> None:
        """Schedules that cost as little as one that has no layout."""
        for seed in range(OTHERS):
            run = self.run
            if run.closed(run.options.gap) or time.monotonic() > until:
                return
            found = self.search.below(self.bound_j * (1 + TOLERANCE), until, seed)
            if not isinstance(found, bool):
                run.offer(found[1], "stages")

    def _learn(self, limit: float, took_s: float, enough: float) -> float:
        """How far the next limit is to be if seconds grow on as they did, and how many half of the rest."""
        brief = took_s <= BRIEF_S
        growth = math.log(max(took_s, BRIEF_S) / self._took_s)
        step = limit / self.bound_j - 1 if self.bound_j else math.inf
        doubled = step * math.log(TIMES) / growth if growth > 0 else math.inf
        self._step = max(LEAST_STEP, min(doubled, WIDEST_STEP if brief else WIDE_STEP))
        self._took_s = max(took_s, BRIEF_S)
        steps = math.log(max(enough / limit, 1.0)) / math.log1p(step)
        return 0.0 if brief else took_s * math.exp(min(max(growth, 0.0) * steps / 2, 50.0))
