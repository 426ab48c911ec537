"""Schedules made of relaxations: the greedy replay, which evicts and brings back what the relaxation leans to.

A relaxation that is nearly whole says nearly everything; rounded, it breaks some row. The replay keeps all of them by
construction: where memory is short it evicts what the relaxation keeps least of, and what is missing comes back in the
way of which the relaxation has more. It takes milliseconds, where a search for a point near the relaxation takes
seconds and may find none.

Source: list schedules in the order of a relaxation, as of Phillips, Stein and Wein, "Minimizing average completion time
in the presence of release dates", Mathematical Programming 82 (1998); the replay is DTR's, as in `greedy`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from poetopt.engine.greedy import Replay, may_run_again
from poetopt.engine.run import Run
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import PointLike
from poetopt.problem import Problem
from poetopt.schedule import Leaning, Schedule

TARGETS = (1.0, 0.98)
"""Shares of the budget that are aimed at: a plan's recomputes run in index order, and may need more than the replay."""
SHARE = 0.15, 0.1
"""Share of the time that may go into replays, where they are many: at first, and after one that brought nothing."""
DIGITS = 1
"""Digits of a share that count: tensors that are kept alike are evicted by what they cost."""


@dataclass
class GuidedReplay(Replay):
    """A replay that follows `leaning`."""

    leaning: Leaning = field(kw_only=True)

    def _pages(self, i: int) -> bool:
        stage, producer = self.stage, self.problem.tensors[i].producer
        paged = self.leaning.page_ins.get((stage, i), 0.0)
        computed = self.leaning.recomputes.get((stage, producer), 0.0)
        if computed > paged and self._may_recompute(producer) and self._recompute_cost(i, 0) < float("inf"):
            return False
        if paged > 0 and self._page_cost(i) < float("inf"):
            return True
        return super()._pages(i)

    def _rank(self, i: int) -> tuple[float, ...]:
        kept = float(self.leaning.kept[i, self.stage]) if self._next_read(i) > self.stage else 1.0
        return (round(kept, DIGITS), *super()._rank(i))


def guided(problem: Problem, ram_bytes: int, leaning: Leaning, *, paging: bool, remat: bool) -> Schedule | None:
    """A schedule that aims at `ram_bytes` and follows `leaning`, or None where nothing can be evicted.

    Like `greedy`, it isn't simulated, and runs forward operators again however long the chain.
    """
    again = may_run_again(problem, remat)
    return GuidedReplay(problem, ram_bytes, paging and problem.paging, again, leaning=leaning).run()


@dataclass
class Guide:
    """Offers a run what replays make of the points of one model's relaxation."""

    run: Run
    chosen: Formulation
    model: Any
    _spent_s: float = 0.0
    _share: float = SHARE[0]
    _begin: float = field(default_factory=time.monotonic)

    def follow(self, point: PointLike) -> bool:
        """Replay once for each target, where plans count and nothing is proven yet; whether that brought anything."""
        run, options = self.run, self.run.options
        if self.chosen.leaning is None or not self.chosen.plans_count or run.closed(run.gap):
            return False
        begin, better = time.monotonic(), False
        leaning = self.chosen.leaning(self.model, point)
        for target in TARGETS:
            ram_bytes = int(run.incumbent.room_bytes * target)
            schedule = guided(run.problem, ram_bytes, leaning, paging=options.paging, remat=options.remat)
            if schedule is not None:
                better |= run.offer(schedule, "guided")
        self._spent_s += time.monotonic() - begin
        return better

    def follow_some(self, point: PointLike) -> None:
        """The same of one of many points, if there is time for it."""
        if self._spent_s <= self._share * (time.monotonic() - self._begin):
            self._share = SHARE[0] if self.follow(point) else SHARE[1]
