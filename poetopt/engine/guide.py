"""What becomes of a relaxation's points while it is cut: replays that follow them, for a share of the time.

Beside the solver's own work there are more of them, which follow a point only more or less.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from poetopt import interrupts
from poetopt.engine.meanwhile import Meanwhile
from poetopt.engine.run import Run
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import PointLike
from poetopt.heuristics.guided import guided
from poetopt.schedule import Schedule

TARGETS = (1.0, 0.98)
"""Shares of the budget that are aimed at: a plan's recomputes run in index order, and may need more than the replay."""
SHARE = 0.15, 0.1
"""Share of the time that may go into replays, where they are many: at first, and after one that brought nothing."""
PATIENCE, MOST = 0.4, 1.0
"""Once a relaxation is cut, its last point is perturbed for this share of the time that cutting took, again after each
schedule that is better, and for this share of it at most."""
WANDER, WANDER_S = 0.1, 1.0
"""Share of a tree's time in which points of its nodes are perturbed, and seconds for each."""


@dataclass
class Guide:
    """Offers a run what replays make of the points of one model's relaxation."""

    run: Run
    chosen: Formulation
    model: Any
    _spent_s: float = 0.0
    _share: float = SHARE[0]
    _wandered_s: float = 0.0
    _begin: float = field(default_factory=time.monotonic)
    _meanwhile: Meanwhile | None = None

    def follow(self, point: PointLike) -> bool:
        """Replay once for each target, where plans count and nothing is proven yet; whether that brought anything."""
        run, options = self.run, self.run.options
        if self.chosen.leaning is None or not self._applies or run.closed(run.gap):
            return False
        begin, better = time.monotonic(), False
        leaning = self.chosen.leaning(self.model, point)
        for target in TARGETS:
            ram_bytes = int(run.incumbent.room_bytes * target)
            schedule = guided(run.problem, ram_bytes, leaning, paging=options.paging, remat=options.remat)
            if schedule is not None:
                better |= self._offer(schedule, "guided")
        self._spent_s += time.monotonic() - begin
        return better

    def follow_some(self, point: PointLike) -> None:
        """The same of one of many points, if there is time for it."""
        if self._spent_s <= self._share * (time.monotonic() - self._begin):
            self._share = SHARE[0] if self.follow(point) else SHARE[1]

    @property
    def _applies(self) -> bool:
        return self.chosen.leaning is not None and self.chosen.plans_count

    @property
    def _perturbs(self) -> bool:
        return self._applies and self.run.options.threads != 1

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Inside, points are perturbed in a thread of its own, unless the run is kept to one."""
        if not self._perturbs:
            yield
            return
        with Meanwhile(self.run.problem_space.step) as self._meanwhile:
            yield
        self._meanwhile = None
        self._take()

    def solving(self) -> AbstractContextManager[None]:
        """That thread works inside, while the solver does."""
        if self._meanwhile is None or not self.run.problem_space.aimed:
            return nullcontext()
        return self._meanwhile.waiting()

    def perturb(self, point: PointLike) -> None:
        """Have it go on from `point`, and offer the best that it has found."""
        if self._meanwhile is not None:
            self._take()
            self._aim(point)

    def dwell(self, cut_s: float) -> None:
        """Perturb the last point once cutting, which took `cut_s`, is done: for as long as that pays.

        No solver is at work meanwhile, and nothing else: beside a tree each would wait for the other.
        """
        if self._perturbs and self.run.problem_space.aimed:
            self._perturb_for(PATIENCE * cut_s, MOST * cut_s)

    def wander(self, point: PointLike) -> None:
        """Perturb the point of a tree's node for a moment, if there is time for it and nobody else does."""
        busy, begin = self.run.problem_space.busy, time.monotonic()
        if not self._perturbs or self._wandered_s > WANDER * (begin - self._begin):
            return
        if not busy.acquire(blocking=False):
            return
        try:
            self._aim(point)
            self._perturb_for(WANDER_S, WANDER_S)
        finally:
            busy.release()
        self._wandered_s += time.monotonic() - begin

    def _perturb_for(self, patience_s: float, most_s: float) -> None:
        """Perturb what is aimed at for a while, again after each schedule that is better; `most_s` in all."""
        run, latest = self.run, time.monotonic() + most_s
        until = time.monotonic() + patience_s
        while time.monotonic() < until and run.remaining_s > 0 and not run.closed(run.gap):
            interrupts.check()
            run.problem_space.step()
            if self._take():
                until = min(time.monotonic() + patience_s, latest)

    def _aim(self, point: PointLike) -> None:
        if self.chosen.leaning is not None:
            self.run.problem_space.aim(self.chosen.leaning(self.model, point))

    def _take(self) -> bool:
        """Offer the best that was found; whether it was taken."""
        run = self.run
        worth = math.inf if run.incumbent.value is None else run.incumbent.value
        found = run.problem_space.take(worth)
        if found is None:
            return False
        if self._offer(found, "perturbed"):
            return True
        run.problem_space.refuse(found, worth)
        return False

    def _offer(self, schedule: Schedule, phase: str) -> bool:
        """One of many; but the first that there is is worth any time."""
        return self.run.offer(schedule, phase, quick=self.run.incumbent.best is not None)
