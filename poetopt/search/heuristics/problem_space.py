"""Problem-space search: a relaxation's shares, changed a little by chance, and replayed by the hundred.

A replay decides by small differences between shares, and which of two equal tensors is evicted first is chance. So each
tensor and operator has a deviation, which is added to its shares; the deviations are searched instead of schedules
(each one stands for a schedule that keeps all rules), by an evolution strategy with one parent, which begins anew where
it gets no further. A relaxation that is still far from its bound will do, and a schedule may lie in any scope.

Source: Storer, Wu and Vaccari, "New search spaces for sequencing problems with application to job shop scheduling",
Management Science 38 (1992).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import FractionalSchedule, Schedule
from poetopt.search.heuristics.list_scheduling import list_schedule
from poetopt.util.work import Work

Floats = NDArray[np.float64]

WHOLE = 1e-6
"""Shares this near to 0 and 1 are decided."""
SPREAD = (0.5, 1.0, 2.0)
"""Standard deviations of what is added to a share; one of them in each step."""
PARTS = (0.3, 0.1, 0.03)
"""Shares of the tensors and operators whose deviations are drawn anew; one of them in each step."""
TARGETS = (1.0, 0.99, 0.98, 0.96)
"""Shares of the budget that are aimed at; another one in every third step."""
ANOTHER = 0.3
WORSE = 0.01
"""A step is taken that is worse by the third power of a random number times this share."""
PATIENCE = 150
"""After this many steps without a better schedule all deviations are drawn anew."""


@dataclass(frozen=True)
class Deviation:
    """What is added to the shares of a fractional schedule, and the share of the budget that is aimed at.

    kept, page_ins
        (n_tensors,)
    recomputes
        (n_operators,)
    """

    kept: Floats
    page_ins: Floats
    recomputes: Floats
    target: float

    def of(self, shares: FractionalSchedule) -> FractionalSchedule:
        """`shares` with the deviations added where a relaxation hasn't decided."""
        kept = shares.kept.copy()
        at = ((kept > WHOLE) & (kept < 1 - WHOLE)).nonzero()
        kept[at] = np.clip(kept[at] + self.kept[at[0]], 0.0, 1.0)
        return FractionalSchedule(
            kept,
            {at: _moved(share, self.recomputes[at[1]]) for at, share in shares.recomputes.items()},
            {at: _moved(share, self.page_ins[at[1]]) for at, share in shares.page_ins.items()},
            {at: _moved(share, self.recomputes[at[1]]) for at, share in shares.variants.items()},
        )


def _moved(share: float, deviation: float) -> float:
    return share if share >= 1 - WHOLE else max(0.0, share + float(deviation))


class ProblemSpace:
    """The search of the deviations from one point, a step at a time.

    aims_at
        The bytes that a whole budget is.
    weigh
        What a schedule is worth, the less the better; inf for one that doesn't fit.
    """

    def __init__(
        self,
        problem: Problem,
        shares: FractionalSchedule,
        *,
        aims_at: int,
        paging: bool,
        remat: bool,
        weigh: Callable[[Schedule], float],
        work: Work | None = None,
        seed: int = 0,
    ) -> None:
        self._problem, self._shares, self._aims_at = problem, shares, aims_at
        self._paging, self._remat, self._weigh = paging, remat, weigh
        self._work = work
        self._random = np.random.default_rng(seed)
        self._parent: Deviation | None = None
        self._value = math.inf
        self._stalled = 0
        self._known: dict[Schedule, float] = {}

    def step(self, below: float) -> Schedule | None:
        """One more replay: its schedule, if it is worth less than `below` and was not given out before."""
        anew = self._parent is None or self._stalled >= PATIENCE
        child = self._drawn() if self._parent is None or anew else self._changed(self._parent)
        aim = int(child.target * self._aims_at)
        shares = child.of(self._shares)
        schedule = list_schedule(self._problem, aim, shares, paging=self._paging, remat=self._remat, work=self._work)
        fresh = schedule is not None and schedule not in self._known
        if schedule is not None and fresh:
            self._known[schedule] = self._weigh(schedule)
        value = math.inf if schedule is None else self._known[schedule]
        self._stalled = 0 if anew else self._stalled + 1
        if anew or value <= self._value * (1 + WORSE * self._random.random() ** 3):
            self._parent, self._value = child, value
        if not fresh or value >= below:
            return None
        self._stalled = 0
        return schedule

    def _drawn(self) -> Deviation:
        """A first one: none at all; later ones: of everything."""
        tensors, operators = len(self._problem.tensors), len(self._problem.operators)
        none = Deviation(np.zeros(tensors), np.zeros(tensors), np.zeros(operators), TARGETS[0])
        return none if self._parent is None else self._changed(none, 1.0)

    def _changed(self, parent: Deviation, part: float | None = None) -> Deviation:
        spread = self._random.choice(SPREAD)
        part = float(self._random.choice(PARTS)) if part is None else part

        def drawn(before: Floats) -> Floats:
            hit = self._random.random(len(before)) < part
            return np.where(hit, self._random.normal(0.0, spread, len(before)), before)

        another = self._random.random() < ANOTHER
        return Deviation(
            drawn(parent.kept),
            drawn(parent.page_ins),
            drawn(parent.recomputes),
            float(self._random.choice(TARGETS)) if another else parent.target,
        )
