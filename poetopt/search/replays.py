"""Relaxation-guided schedules: points of a relaxation become schedules by replays, for a share of the time."""

from __future__ import annotations

import math
from typing import Any

from poetopt.formulations.rows import PointLike
from poetopt.search.heuristics.list_scheduling import list_schedule
from poetopt.search.heuristics.problem_space import ProblemSpace
from poetopt.search.run import Budget, Run
from poetopt.search.tuning import (
    OFFER_WORK,
    PERTURB_MOST,
    PERTURB_PATIENCE,
    PERTURBED_GAP,
    REPLAY_SHARE,
    REPLAY_TARGETS,
)
from poetopt.util import interrupts
from poetopt.util.work import Work


class Replays:
    """Offers a run what replays make of the points of one model's relaxation."""

    def __init__(self, run: Run, budget: Budget, model: Any, work: Work) -> None:
        self.run, self.budget, self.model, self._work = run, budget, model, work
        self._begin = work.seconds
        self._share, self._spent_s = REPLAY_SHARE[0], 0.0

    def follow(self, point: PointLike) -> bool:
        """Replay once for each target, where plans count and the gap is open; whether a schedule was better."""
        run, options = self.run, self.run.options
        if not run.chosen.plans_count or run.closed(self.budget.gap):
            return False
        begin, better = self._work.seconds, False
        shares = run.chosen.points.fractional(self.model, point)
        for target in REPLAY_TARGETS:
            ram_bytes = int(run.incumbent.room_bytes * target)
            schedule = list_schedule(
                run.problem, ram_bytes, shares, paging=options.paging, remat=options.remat, work=self._work
            )
            if schedule is not None:
                self._work.done += OFFER_WORK * len(run.problem.operators)
                # One of many; but the first schedule that there is is worth any time.
                better |= run.offer(schedule, "guided", quick=run.incumbent.best is not None)
        self._spent_s += self._work.seconds - begin
        return better

    def perturb(self, point: PointLike, cut_s: float) -> None:
        """Search the problem space around the last point of a relaxation whose cutting took `cut_s`, if that may pay.

        No solver is at work meanwhile: two threads of Python would each wait for the other.
        """
        run, options = self.run, self.run.options
        if not run.chosen.plans_count or options.threads == 1 or run.closed(PERTURBED_GAP):
            return
        shares = run.chosen.points.fractional(self.model, point)
        room, weigh = run.incumbent.room_bytes, run.incumbent.weigh
        space = ProblemSpace(
            run.problem, shares, aims_at=room, paging=options.paging, remat=options.remat, weigh=weigh, work=self._work
        )
        now = self._work.seconds
        until, latest = now + PERTURB_PATIENCE * cut_s, now + PERTURB_MOST * cut_s
        while self._work.seconds < until and run.remaining_s(self.budget) > 0 and not run.closed(self.budget.gap):
            interrupts.check()
            worth = math.inf if run.incumbent.value is None else run.incumbent.value
            found = space.step(worth)
            self._work.done += OFFER_WORK * len(run.problem.operators)
            if found is not None and run.offer(found, "perturbed", quick=run.incumbent.best is not None):
                until = min(self._work.seconds + PERTURB_PATIENCE * cut_s, latest)

    def follow_some(self, point: PointLike) -> None:
        """The same of one of many points, if there is time for it."""
        if self._spent_s <= self._share * (self._work.seconds - self._begin):
            self._share = REPLAY_SHARE[0] if self.follow(point) else REPLAY_SHARE[1]
