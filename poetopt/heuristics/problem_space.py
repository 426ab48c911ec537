"""Schedules made of one relaxation by the hundred: what it leans to, changed a little by chance, and replayed.

A replay decides by small differences between shares, and which of two equal ones is evicted first is chance. So each
tensor and operator has a deviation, which is added to its shares; the deviations are searched instead of schedules
(each one stands for a schedule that keeps all rules), by an evolution strategy with one parent, which begins anew where
it gets no further. A relaxation that is still far from its bound will do, and a schedule may lie in any scope.

Source: Storer, Wu and Vaccari, "New search spaces for sequencing problems with application to job shop scheduling",
Management Science 38 (1992).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poetopt.heuristics.greedy import no_pause
from poetopt.heuristics.guided import guided
from poetopt.problem import Problem
from poetopt.schedule import WHOLE, Leaning, Schedule

Floats = NDArray[np.float64]

SPREAD = (0.5, 1.0, 2.0)
"""Standard deviations of what is added to a share; one of them in each step."""
PARTS = (0.3, 0.1, 0.03)
"""Shares of the tensors and operators whose deviations are drawn anew; one of them in each step."""
TARGETS = (1.0, 0.99, 0.98, 0.96)
"""Shares of the budget that are aimed at, as in `guide`; another one in every third step."""
ANOTHER = 0.3
WORSE = 0.01
"""A step is taken that is worse by the third power of a random number times this share."""
PATIENCE = 150
"""After this many steps without a better schedule all deviations are drawn anew."""
MOST_KNOWN = 200_000
"""How many values of schedules are remembered, by their hashes."""


@dataclass(frozen=True)
class Deviation:
    """What is added to the shares of a leaning, and the share of the budget that is aimed at.

    kept, page_ins
        (n_tensors,)
    recomputes
        (n_operators,)
    """

    kept: Floats
    page_ins: Floats
    recomputes: Floats
    target: float

    def of(self, leaning: Leaning) -> Leaning:
        """`leaning` with the deviations added where a relaxation hasn't decided."""
        kept, at = leaning.kept.copy(), leaning.undecided
        kept[at] = np.clip(kept[at] + self.kept[at[0]], 0.0, 1.0)
        return Leaning(
            kept,
            {at: _moved(share, self.recomputes[at[1]]) for at, share in leaning.recomputes.items()},
            {at: _moved(share, self.page_ins[at[1]]) for at, share in leaning.page_ins.items()},
        )


def _moved(share: float, deviation: float) -> float:
    return share if share >= 1 - WHOLE else max(0.0, share + float(deviation))


class ProblemSpace:
    """The search of one problem's deviations, a step at a time. What it finds is for `take`.

    aims_at
        The bytes that a whole budget is.
    weigh
        What a schedule is worth, the less the better; inf for one that doesn't fit.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        aims_at: int,
        paging: bool,
        remat: bool,
        weigh: Callable[[Schedule], float],
        seed: int = 0,
    ) -> None:
        self._problem, self._aims_at, self._paging, self._remat = problem, aims_at, paging, remat
        self._weigh = weigh
        self._random = np.random.default_rng(seed)
        self._leaning: Leaning | None = None
        self._parent: Deviation | None = None
        self._value = self._best = math.inf
        self._stalled = 0
        self._moved = False
        """Whether the parent's value is of an older leaning."""
        self._found: Schedule | None = None
        self._known: dict[int, float] = {}
        self._guard = threading.Lock()
        self.busy = threading.Lock()
        """Held by one of several who would each go on from a point of their own."""

    @property
    def aimed(self) -> bool:
        """Whether there is anything to begin with."""
        return self._leaning is not None

    def aim(self, leaning: Leaning) -> None:
        """Go on with what a newer point leans to."""
        with self._guard:
            self._leaning, self._moved = leaning, True

    def take(self, below: float) -> Schedule | None:
        """The best schedule since the last call, if it is worth less than `below`."""
        with self._guard:
            found, self._found = self._found, None
            better = found is not None and self._best < below
            self._best = min(self._best, below)
            return found if better else None

    def refuse(self, schedule: Schedule, value: float) -> None:
        """It isn't accepted, for what weighing doesn't see: another one is looked for that is better than `value`.

        That may be close by: the deviations stay.
        """
        with self._guard:
            self._known[hash(schedule)] = math.inf
            self._best = value

    def step(self, pause: Callable[[], None] = no_pause) -> None:
        """One more replay. `pause` is called at each of its stages; what it raises leaves everything as it was."""
        with self._guard:
            leaning, parent, moved = self._leaning, self._parent, self._moved
            anew = parent is None or self._stalled >= PATIENCE
            self._moved = False
        assert leaning is not None, "aimed at nothing"
        if parent is None or anew:
            child = self._drawn()
        elif moved:
            child = parent
        else:
            child = self._changed(parent)
        aim = int(child.target * self._aims_at)
        schedule = guided(self._problem, aim, child.of(leaning), paging=self._paging, remat=self._remat, pause=pause)
        value = self._worth(schedule)
        with self._guard:
            self._stalled = 0 if anew else self._stalled + 1
            if anew or moved or value <= self._value * (1 + WORSE * self._random.random() ** 3):
                self._parent, self._value = child, value
            if value < self._best:
                self._best, self._found, self._stalled = value, schedule, 0

    def _worth(self, schedule: Schedule | None) -> float:
        if schedule is None:
            return math.inf
        at = hash(schedule)
        if at not in self._known and len(self._known) < MOST_KNOWN:
            self._known[at] = self._weigh(schedule)
        return self._known[at] if at in self._known else self._weigh(schedule)

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
