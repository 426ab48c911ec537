"""Relaxation-guided schedules: replays turn points of a relaxation into schedules, for a share of the time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from poetopt.formulations.rows import PointLike
from poetopt.graph.problem import Problem
from poetopt.search.heuristics.list_scheduling import list_schedule
from poetopt.search.run import Budget, Run
from poetopt.search.tuning import (
    OFFER_WORK,
    REPLAY_SHARE,
    REPLAY_TARGETS,
    WAKES,
)
from poetopt.util.work import Work


def with_wake_cost(problem: Problem, share: float) -> Problem:
    """Return `problem` with this share of a waking in the energy of each page-in."""
    extra_j = share * problem.wake_j
    return replace(
        problem, tensors=tuple(tensor.moved_for(page_in_j=tensor.page_in_j + extra_j) for tensor in problem.tensors)
    )


class Replays:
    """Replays of the points of one model's relaxation, whose schedules are offered to the run."""

    def __init__(self, run: Run, budget: Budget, model: Any, work: Work) -> None:
        self.run, self.budget, self.model, self._work = run, budget, model, work
        self._begin = work.seconds
        self._share, self._spent_s = REPLAY_SHARE[0], 0.0
        self._problems = [run.problem, *(with_wake_cost(run.problem, share) for share in WAKES if run.problem.wake_j)]

    def follow(self, point: PointLike) -> bool:
        """Replay a point once for each target, if plans count and the gap is open; return whether it improved."""
        run, options = self.run, self.run.options
        if not run.chosen.plans_count or run.closed(self.budget.gap):
            return False
        begin_s, improved = self._work.seconds, False
        shares = run.chosen.search.fractional(self.model, point)
        for problem, target in itertools.product(self._problems, REPLAY_TARGETS):
            ram_bytes = int(run.incumbent.room_bytes * target)
            schedule = list_schedule(
                problem, ram_bytes, shares, paging=options.paging, remat=options.remat, work=self._work
            )
            if schedule is not None:
                self._work.done += OFFER_WORK * len(run.problem.operators)
                # It is one of many, but a first schedule is worth any time.
                improved |= run.offer(schedule, "guided", quick=run.incumbent.best is not None)
        self._spent_s += self._work.seconds - begin_s
        return improved

    def follow_some(self, point: PointLike) -> None:
        """Replay one of many points, if there is time for it."""
        if self._spent_s <= self._share * (self._work.seconds - self._begin):
            self._share = REPLAY_SHARE[0] if self.follow(point) else REPLAY_SHARE[1]
