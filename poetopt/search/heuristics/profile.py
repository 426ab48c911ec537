"""Recomputes along the memory profile, for graphs without a backward pass.

The events of a schedule are kept in order, with the bytes that live between each two of them. Where too much lives,
something that isn't read there is dropped, and computed again before its next read: of all that could be, what costs
least for the excess that goes. What a recompute reads is kept until then, or computed again as well where there is no
room for it. Then recomputes that nothing needs are taken out; and parts of the schedule are ruined and made anew, with
some noise, as long as there is work (ruin and recreate: Schrimpf et al. 2000; the moves are those of Moccasin,
Bartan et al. 2023). Kept is what costs less. Tensors are recomputed here, and never paged.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.util.work import OutOfWorkError, Work

LONGEST = 8
"""Recomputes that are looked at to bring one tensor back."""
FORCED = 25
"""So many times something is dropped although the excess doesn't go down."""
NOISE = (0.0, 0.2, 0.5)
"""Standard deviations of the logarithm of a price, where a schedule is made anew."""
WINDOWS = (8, 12, 20, 40)
"""Shares of the stages (one of so many) that are ruined."""
LOOK_WORK, PRICE_WORK = 30, 12
"""Units of work of looking for something to drop, or of taking a recompute out; and of each that could be dropped."""
END_J = 1e-9
"""A schedule is cheaper that saves this share of the recomputes' energy."""

_Recompute = tuple[int, int]
"""The key of the event, and its operator."""
_Drop = tuple[int, int, list[_Recompute]]
"""A tensor that is dropped, the read that it comes back for, and the recomputes that bring it back."""


class Profile:
    """The events of a schedule without transfers, and the bytes that live between them.

    The key of stage t's own compute is t N + n, and that of a recompute of operator j in it t N + j, for n operators
    and N = n + 1: keys are in the order in which a plan computes.
    """

    def __init__(self, problem: Problem) -> None:
        operators, count = problem.operators, len(problem.operators)
        self.count, self.stride = count, count + 1
        self.nbytes = [tensor.nbytes for tensor in problem.tensors]
        self.producer = [tensor.producer for tensor in problem.tensors]
        self.reads = [tuple(dict.fromkeys(operator.inputs)) for operator in operators]
        self.makes = [tuple(i for i in dict.fromkeys(o.outputs) if i not in o.inputs) for o in operators]
        self.joules = [operator.energy_j for operator in operators]
        self.end = count * self.stride + count
        """The key of the step's end."""
        self.keys = np.array([-1, *(t * self.stride + count for t in range(count + 1))], dtype=np.int64)
        self.uses: list[list[int]] = [[] for _ in self.nbytes]
        """Of each tensor, the keys of what makes or reads it, ascending."""
        self.made: list[set[int]] = [set() for _ in self.nbytes]
        for i in problem.at_start:
            self.uses[i].append(-1)
            self.made[i].add(-1)
        for t in range(count):
            key = t * self.stride + count
            for i in self.makes[t]:
                self.made[i].add(key)
            for i in (*self.reads[t], *self.makes[t]):
                self.uses[i].append(key)
        for i in problem.at_end:
            self.uses[i].append(self.end)
        self.across = np.zeros(len(self.keys), dtype=np.int64)
        """Bytes that live from before each event on into it."""
        for i, keys in enumerate(self.uses):
            for before, after in pairwise(keys):
                if after not in self.made[i]:
                    self._live(before, after, self.nbytes[i])
        self.own = [o.workspace_bytes + sum(self.nbytes[i] for i in self.makes[t]) for t, o in enumerate(operators)]
        """Bytes that each operator makes, with its workspace."""
        self.fresh = np.array([0, *self.own, 0], dtype=np.int64)
        """The same of each event."""
        self.recomputes: dict[int, int] = {}
        self.total_j = 0.0

    def place(self, key: int) -> int:
        """The number of an event, or of the first one behind the key."""
        return int(self.keys.searchsorted(key))

    def _live(self, before: int, until: int, nbytes: int) -> None:
        """Count bytes as alive from after one event into another."""
        self.across[self.place(before) + 1 : self.place(until) + 1] += nbytes

    def live(self) -> np.ndarray:
        """Bytes that live during each event."""
        return self.across + self.fresh

    def covered(self, i: int, key: int) -> bool:
        """Say whether a tensor is kept over a moment, for a read behind it."""
        keys = self.uses[i]
        next_use = bisect_left(keys, key)
        return 0 < next_use < len(keys) and keys[next_use] not in self.made[i]

    def add(self, key: int, operator: int) -> None:
        """Recompute an operator there."""
        at = self.place(key)
        self.keys = np.insert(self.keys, at, key)
        self.across = np.insert(self.across, at, self.across[at])
        self.fresh = np.insert(self.fresh, at, self.own[operator])
        self.recomputes[key] = operator
        self.total_j += self.joules[operator]
        for i in self.reads[operator]:
            keys = self.uses[i]
            where = bisect_left(keys, key)
            if not self.covered(i, key):
                self._live(keys[where - 1], key, self.nbytes[i])
            keys.insert(where, key)
        for i in self.makes[operator]:
            keys = self.uses[i]
            where = bisect_left(keys, key)
            if self.covered(i, key):
                self._live(keys[where - 1], key, -self.nbytes[i])
            keys.insert(where, key)
            self.made[i].add(key)

    def remove(self, key: int) -> int:
        """Take a recompute out; its operator."""
        operator = self.recomputes.pop(key)
        self.total_j -= self.joules[operator]
        for i in self.makes[operator]:
            keys = self.uses[i]
            where = bisect_left(keys, key)
            del keys[where]
            self.made[i].discard(key)
            if self.covered(i, key):
                self._live(keys[where - 1], key, self.nbytes[i])
        for i in self.reads[operator]:
            keys = self.uses[i]
            where = bisect_left(keys, key)
            del keys[where]
            if not self.covered(i, key):
                self._live(keys[where - 1], key, -self.nbytes[i])
        at = self.place(key)
        self.keys, self.across, self.fresh = (np.delete(a, at) for a in (self.keys, self.across, self.fresh))
        return operator

    def change(self, wanted: dict[int, int]) -> None:
        """Have these recomputes and no others."""
        for key in self.recomputes.keys() - wanted.keys():
            self.remove(key)
        for key in sorted(wanted.keys() - self.recomputes.keys()):
            self.add(key, wanted[key])


class ProfileSearch:
    """Schedules of at most `ram_bytes`, each cheaper than the one before.

    work
        Counts what is looked at, and ends it.
    """

    def __init__(self, problem: Problem, ram_bytes: int, work: Work, seed: int = 0) -> None:
        self.problem, self.most, self.work = problem, ram_bytes + problem.reserve_bytes, work
        self.profile = Profile(problem)
        self.draw = random.Random(seed)

    def schedules(self) -> Iterator[Schedule]:
        """Give the schedules, until the work is done; none where nothing can be dropped any more."""
        try:
            if not self._fill(0.0, math.inf):
                return
            self._prune(self.profile.recomputes)
            yield self._schedule()
            while self.profile.total_j > 0:
                found = self._made_anew()
                if found is not None:
                    yield found
        except OutOfWorkError:
            return

    def improve(self, begin: Schedule, least_share: float, accept: Callable[[Schedule], bool]) -> None:
        """Make `begin` cheaper until the work is done, by what `accept` takes alone.

        least_share
            Parts are made anew within this share of the budget at least, another one each time: a layout takes more
            than the sum of what lives.
        """
        profile, most = self.profile, self.most
        profile.change({t * profile.stride + j: j for t, j in begin.recomputes})
        try:
            while profile.total_j > 0:
                self.most = int(most * self.draw.uniform(least_share, 1.0))
                self._made_anew(accept)
        except OutOfWorkError:
            return

    def _made_anew(self, accept: Callable[[Schedule], bool] | None = None) -> Schedule | None:
        """Ruin a part and make it anew; the schedule, where it is cheaper and accepted. Else all is as before.

        accept
            Without it a part that costs the same stays too.
        """
        profile = self.profile
        self.work.spend(LOOK_WORK)
        before, joules = dict(profile.recomputes), profile.total_j
        for key in self._ruined():
            profile.remove(key)
        fits = self._fill(self.draw.choice(NOISE), joules)
        if fits:
            self._prune(profile.recomputes.keys() - before.keys())
        found = self._schedule() if fits and profile.total_j < joules * (1 - END_J) else None
        if found is not None and (accept is None or accept(found)):
            return found
        if accept is not None or not fits or profile.total_j > joules:
            profile.change(before)
        return None

    def _schedule(self) -> Schedule:
        profile = self.profile
        return Schedule(frozenset((key // profile.stride, j) for key, j in profile.recomputes.items()))

    def _ruined(self) -> list[int]:
        """Recomputes to be made anew: those of some stages in a row, or some from everywhere."""
        profile, draw = self.profile, self.draw
        keys = sorted(profile.recomputes)
        if draw.random() < 0.3:
            return draw.sample(keys, max(1, len(keys) // 6))
        middle, width = draw.choice(keys) // profile.stride, max(3, profile.count // draw.choice(WINDOWS))
        return [key for key in keys if abs(key // profile.stride - middle) <= width]

    def _prune(self, keys: Iterable[int]) -> None:
        """Take out what isn't needed, the dearest first."""
        profile = self.profile
        for key in sorted(keys, key=lambda key: (-profile.joules[profile.recomputes[key]], key)):
            self.work.spend(LOOK_WORK)
            operator = profile.remove(key)
            if profile.live().max() > self.most:
                profile.add(key, operator)

    def _fill(self, noise: float, most_j: float) -> bool:
        """Drop and recompute until all fits; say whether it does, for less than `most_j`."""
        profile, forced = self.profile, FORCED
        given_up: set[tuple[int, int]] = set()
        while True:
            over = profile.live() - self.most
            at = int(over.argmax())
            if over[at] <= 0:
                return profile.total_j <= most_j
            if profile.total_j >= most_j:
                return False
            if noise and self.draw.random() < 0.5:
                above = np.flatnonzero(over > 0)
                at = int(above[self.draw.randrange(len(above))])
            best, pressed = self._drop(at, over, noise, given_up)
            chosen = best or (pressed if forced else None)
            if chosen is None:
                return False
            forced -= best is None
            tensor, until, recomputes = chosen
            excess = int(over.clip(min=0).sum())
            added = [(key, operator) for key, operator in sorted(recomputes) if key not in profile.recomputes]
            for key, operator in added:
                profile.add(key, operator)
            fails = int((profile.live() - self.most).clip(min=0).sum()) >= excess
            if best is None or fails:
                given_up.add((tensor, until))
            if best is not None and fails:
                for key, _ in reversed(added):
                    profile.remove(key)

    def _drop(
        self, at: int, over: np.ndarray, noise: float, given_up: set[tuple[int, int]]
    ) -> tuple[_Drop | None, _Drop | None]:
        """Find what pays best of what can be dropped at an event, and what adds least of what doesn't pay."""
        profile, moment = self.profile, int(self.profile.keys[at])
        least = closest = math.inf
        best: _Drop | None = None
        pressed: _Drop | None = None
        self.work.spend(LOOK_WORK)
        for i, keys in enumerate(profile.uses):
            if not profile.nbytes[i] or not keys or not keys[0] < moment < keys[-1]:
                continue
            place = bisect_right(keys, moment)
            until = keys[place]
            if keys[place - 1] == moment or until in profile.made[i] or until == profile.end or (i, until) in given_up:
                continue
            for longest in (1, LONGEST):
                kept: list[tuple[int, int, int]] = []
                self.work.spend(PRICE_WORK)
                recomputes = self._again(i, until, longest, over, set(), kept)
                if not recomputes or (longest > 1 and len(recomputes) == 1):
                    break
                begin, end = profile.place(keys[place - 1]) + 1, profile.place(recomputes[0][0])
                if not begin <= at < end:
                    break
                first = min([begin, *(since for since, _, _ in kept)])
                changed = over[first:end].copy()
                before = int(changed.clip(min=0).sum())
                changed[begin - first :] -= profile.nbytes[i]
                for since, to, nbytes in kept:
                    changed[since - first : to - first] += nbytes
                gone = before - int(changed.clip(min=0).sum())
                if gone <= 0:
                    worse = -gone * (1 + self.draw.random())
                    if worse < closest:
                        closest, pressed = worse, (i, until, recomputes)
                    continue
                price = sum(profile.joules[operator] for _, operator in recomputes) / gone
                if noise:
                    price *= math.exp(self.draw.gauss(0, noise))
                if price < least:
                    least, best = price, (i, until, recomputes)
        return best, pressed

    def _again(
        self, i: int, until: int, longest: int, over: np.ndarray, planned: set[int], kept: list[tuple[int, int, int]]
    ) -> list[_Recompute]:
        """The recomputes that bring a tensor back before an event, its own first; none where it can't be.

        kept
            Takes what their inputs are kept for until then: the first event, the one behind the last, bytes.
        """
        profile, problem = self.profile, self.problem
        operator, stage = profile.producer[i], until // profile.stride
        key = stage * profile.stride + operator
        may = operator >= 0 and problem.operators[operator].recomputable and problem.last_run[operator] >= stage
        if not may or operator >= stage or key >= until or key in planned or key in profile.recomputes:
            return []
        found, at = [(key, operator)], profile.place(key)
        planned.add(key)
        for read in profile.reads[operator]:
            keys, nbytes = profile.uses[read], profile.nbytes[read]
            place = bisect_left(keys, key)
            if not place:
                return []
            if not nbytes or profile.covered(read, key):
                continue
            begin = profile.place(keys[place - 1]) + 1
            if begin >= at:
                continue
            more: list[_Recompute] = []
            if len(planned) < longest and int(over[begin:at].max()) + nbytes > 0:
                more = self._again(read, key, longest, over, planned, kept)
            if more:
                found += more
            else:
                kept.append((begin, at, nbytes))
        return found
