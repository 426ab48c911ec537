"""Recomputes and page-ins along the memory profile.

The events of a schedule are kept in order, with the bytes that live between each two of them. Where too much lives,
something that isn't read there is dropped, and comes back before its next read: of all that could be, and of both ways
back, what costs least for the excess that goes. What a recompute reads is kept until then, or comes back as well where
there is no room for it. Then what nothing needs is taken out; and parts of the schedule are ruined and made anew, with
some noise, as long as there is work (ruin and recreate: Schrimpf et al. 2000; the moves are those of Moccasin,
Bartan et al. 2023, and paging). Kept is what costs less. All runs are plain.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Set
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
LOOK_WORK, PRICE_WORK, CHANGE_WORK = 30, 12, 15
"""Units of work of looking for something to drop, or of taking a recompute out; of each that could be dropped; and of
each decision that is taken back to be made anew."""
SEVERAL = 0.25
"""The share of what pays at one event that is dropped before prices are asked for again, where there is a backward
pass: thousands of drops have to be made then."""
END_J = 1e-9
"""A schedule is cheaper that saves this share of the recomputes' energy."""

RECOMPUTE = -1
Decision = tuple[int, int]
"""A recompute: the key of its event, and RECOMPUTE. A page-in: the first key of its stage, and the tensor."""
_Change = tuple[int, int, int]
"""The first event, the one behind the last, and the bytes that more live during them."""
_Drop = tuple[int, int, list[Decision]]
"""A tensor that is dropped, the read that it comes back for, and what brings it back."""


def _in_order(decision: Decision) -> tuple[bool, Decision]:
    """Sorts recomputes before page-ins, which may be for their sake."""
    return decision[1] != RECOMPUTE, decision


class Profile:
    """The events of a schedule, and the bytes that live between them.

    The key of stage t's own compute is t N + n, and that of a recompute of operator j in it t N + j, for n operators
    and N = n + 1: keys are in the order in which a plan computes. A tensor that is paged in arrives with the first
    event of the stage that reads it. One whose home is storage begins and ends in RAM, unless it is paged in for its
    first reader.
    """

    def __init__(self, problem: Problem) -> None:
        operators, tensors, count = problem.operators, problem.tensors, len(problem.operators)
        self.count, self.stride = count, count + 1
        self.nbytes = [tensor.nbytes for tensor in tensors]
        self.producer = [tensor.producer for tensor in tensors]
        self.reads = [tuple(dict.fromkeys(operator.inputs)) for operator in operators]
        self.makes = [tuple(i for i in dict.fromkeys(o.outputs) if i not in o.inputs) for o in operators]
        self.joules = [operator.energy_j for operator in operators]
        self.end = count * self.stride + count
        """The key of the step's end."""
        self.keys = np.array([-1, *(t * self.stride + count for t in range(count + 1))], dtype=np.int64)
        self.uses: list[list[int]] = [[] for _ in self.nbytes]
        """Of each tensor, the keys of what makes or reads it, ascending."""
        self.made: list[set[int]] = [set() for _ in self.nbytes]
        self.stays = [held.may_stay and bool(problem.readers[i]) for i, held in enumerate(tensors)]
        self.first_reads = problem.first_reads
        for i in (*problem.at_start, *(i for i in problem.stored_at_start if problem.readers[i])):
            self.uses[i].append(-1)
            self.made[i].add(-1)
        for t in range(count):
            key = t * self.stride + count
            for i in self.makes[t]:
                self.made[i].add(key)
            for i in (*self.reads[t], *self.makes[t]):
                self.uses[i].append(key)
        for i, stays in enumerate(self.stays):
            if stays or i in problem.at_end:
                self.uses[i].append(self.end)
        self.page_ins: list[set[int]] = [set() for _ in self.nbytes]
        """Of each tensor, the stages that it is paged in for."""
        self.across = np.zeros(len(self.keys), dtype=np.int64)
        """Bytes that live from before each event on into it."""
        self.own = [problem.extra_bytes[t] + sum(self.nbytes[i] for i in self.makes[t]) for t in range(count)]
        """Bytes that each operator makes, with its workspace."""
        self.fresh = np.array([0, *self.own, 0], dtype=np.int64)
        """The same of each event, and what arrives for it."""
        self.decided: set[Decision] = set()
        self.total_j = 0.0
        self._in_j = [held.page_in_j for held in tensors]
        self._out_j = [held.page_out_j if problem.may_page_out(i) else 0.0 for i, held in enumerate(tensors)]
        self._written = [problem.written_first(i) for i in range(len(tensors))]
        for i in range(len(tensors)):
            self._count(i, 1)
        for i in problem.stored_at_start:
            if problem.readers[i] and not self.stays[i]:
                self.add((problem.first_reads[i] * self.stride, i))
        self.fixed = frozenset(self.decided)
        """The decisions of each schedule."""

    def place(self, key: int) -> int:
        """The number of an event, or of the first one behind the key."""
        return int(self.keys.searchsorted(key))

    def live(self) -> np.ndarray:
        """Bytes that live during each event."""
        return self.across + self.fresh

    def comes_and_goes(self, i: int) -> bool:
        """Say whether a tensor isn't in RAM from one step to the next, though it could be."""
        return self.stays[i] and self.first_reads[i] in self.page_ins[i]

    def away(self, i: int, before: int, after: int) -> bool:
        """Say whether a tensor is on storage alone between two of its uses."""
        if after == self.end:
            return self.comes_and_goes(i)
        return after // self.stride in self.page_ins[i] and before // self.stride < after // self.stride

    def covered(self, i: int, key: int) -> bool:
        """Say whether a tensor is kept over a moment, for a read behind it."""
        keys = self.uses[i]
        at = bisect_left(keys, key)
        return 0 < at < len(keys) and keys[at] not in self.made[i] and not self.away(i, keys[at - 1], keys[at])

    def _count(self, i: int, sign: int) -> None:
        """Count a tensor's bytes where it lives before an event, and its transfers; or take them out again."""
        nbytes, made, pages = sign * self.nbytes[i], self.made[i], len(self.page_ins[i])
        if pages:
            out = self.comes_and_goes(i) if not self._written[i] else True
            again = self.stays[i] and not self.comes_and_goes(i)
            self.total_j += sign * (pages * self._in_j[i] + (self._out_j[i] if out or again else 0.0))
        for before, after in pairwise(self.uses[i]):
            if after in made:
                continue
            end = self.place(after)
            if not self.away(i, before, after):
                self.across[self.place(before) + 1 : end + 1] += nbytes
            elif after != self.end:
                self.fresh[end] += nbytes

    def add(self, decision: Decision) -> None:
        """Recompute an operator there, or page a tensor in."""
        key, paged = decision
        self.decided.add(decision)
        if paged != RECOMPUTE:
            self._count(paged, -1)
            self.page_ins[paged].add(key // self.stride)
            self._count(paged, 1)
            return
        operator = key % self.stride
        for i in (*self.reads[operator], *self.makes[operator]):
            self._count(i, -1)
            insort(self.uses[i], key)
        self.made_by(operator, key, made=True)
        at = self.place(key)
        self.keys = np.insert(self.keys, at, key)
        self.across = np.insert(self.across, at, self.across[at])
        self.fresh = np.insert(self.fresh, at, self.own[operator])
        self.total_j += self.joules[operator]
        for i in (*self.reads[operator], *self.makes[operator]):
            self._count(i, 1)

    def made_by(self, operator: int, key: int, *, made: bool) -> None:
        """Note that an event makes what an operator makes, or doesn't any more."""
        for i in self.makes[operator]:
            (self.made[i].add if made else self.made[i].discard)(key)

    def remove(self, decision: Decision) -> list[Decision]:
        """Take a decision out, with page-ins for it alone; all that went, to be added in the reverse order."""
        key, paged = decision
        self.decided.discard(decision)
        if paged != RECOMPUTE:
            self._count(paged, -1)
            self.page_ins[paged].discard(key // self.stride)
            self._count(paged, 1)
            return [decision]
        operator, stage, gone = key % self.stride, key // self.stride, []
        for i in self.reads[operator]:
            uses = self.uses[i]
            alone = bisect_left(uses, (stage + 1) * self.stride) - bisect_left(uses, stage * self.stride) == 1
            if stage in self.page_ins[i] and alone:
                gone += self.remove((stage * self.stride, i))
        for i in (*self.reads[operator], *self.makes[operator]):
            self._count(i, -1)
            self.uses[i].remove(key)
        self.made_by(operator, key, made=False)
        self.total_j -= self.joules[operator]
        at = self.place(key)
        self.keys, self.across, self.fresh = (np.delete(a, at) for a in (self.keys, self.across, self.fresh))
        for i in (*self.reads[operator], *self.makes[operator]):
            self._count(i, 1)
        return [*gone, decision]

    def change(self, wanted: Iterable[Decision]) -> None:
        """Have these decisions and no others beside what is fixed."""
        wanted = self.fixed.union(wanted)
        for decision in sorted(self.decided - wanted, reverse=True):
            if decision in self.decided:
                self.remove(decision)
        for decision in sorted(wanted - self.decided, key=_in_order):
            self.add(decision)

    def price(self, decision: Decision) -> float:
        """The joules of one decision alone."""
        key, paged = decision
        return self.joules[key % self.stride] if paged == RECOMPUTE else self._in_j[paged] + self._out_j[paged]

    def page_in_j(self, i: int, stage: int) -> float:
        """The joules of one more page-in, with the page-out that it takes."""
        leaves = self.stays[i] and stage == self.first_reads[i]
        out = leaves or ((self._written[i] or self.stays[i]) and not self.page_ins[i])
        return self._in_j[i] + (self._out_j[i] if out else 0.0)


class ProfileSearch:
    """Schedules of at most `ram_bytes`, each cheaper than the one before.

    ram_bytes
        The budget without what kernels are reserved.
    work
        Counts what is looked at, and ends it.
    paging, remat
        Whether tensors may be paged, and operators recomputed.
    """

    def __init__(
        self, problem: Problem, ram_bytes: int, work: Work, seed: int = 0, *, paging: bool = False, remat: bool = True
    ) -> None:
        self.problem, self.most, self.work = problem, ram_bytes, work
        self.profile = Profile(problem)
        self.draw = random.Random(seed)
        self.remat = remat
        self.several = SEVERAL if problem.has_backward else 0.0
        self.pages = [
            paging and problem.paging and (held.stored or problem.may_page_out(i))
            for i, held in enumerate(problem.tensors)
        ]
        self._latest = [held.updated_by if held.updated else len(problem.operators) for held in problem.tensors]
        """Of each tensor, the last stage that it may be paged in for."""

    def schedules(self) -> Iterator[Schedule]:
        """Give the schedules, until the work is done; none where nothing can be dropped any more."""
        try:
            if not self._fill(0.0, math.inf):
                return
            self._prune(self.profile.decided)
            yield self._schedule()
            while self.profile.decided > self.profile.fixed:
                found = self._made_anew()
                if found is not None:
                    yield found
        except OutOfWorkError:
            return

    def improve(self, begin: Schedule, least_share: float, accept: Callable[[Schedule], bool]) -> None:
        """Make `begin`, whose runs are plain, cheaper until the work is done, by what `accept` takes alone.

        least_share
            Parts are made anew within this share of the budget at least, another one each time: a layout takes more
            than the sum of what lives.
        """
        profile, most = self.profile, self.most
        recomputes = ((t * profile.stride + j, RECOMPUTE) for t, j in begin.recomputes)
        profile.change((*recomputes, *((t * profile.stride, i) for t, i in begin.page_ins)))
        begun, joules = set(profile.decided), profile.total_j
        try:
            for share in (1.0, (1.0 + least_share) / 2, least_share):
                self.most = int(most * share)
                self._prune(begun)
                if profile.total_j >= joules * (1 - END_J) or accept(self._schedule()):
                    break
                profile.change(begun)
            while profile.decided > profile.fixed:
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
        before, joules, ruined = set(profile.decided), profile.total_j, self._ruined()
        self.work.spend(LOOK_WORK + CHANGE_WORK * len(ruined))
        for decision in ruined:
            if decision in profile.decided:
                profile.remove(decision)
        fits = self._fill(self.draw.choice(NOISE), joules)
        if fits:
            self._prune(profile.decided - before)
        found = self._schedule() if fits and profile.total_j < joules * (1 - END_J) else None
        if found is not None and (accept is None or accept(found)):
            return found
        if accept is not None or not fits or profile.total_j > joules:
            profile.change(before)
        return None

    def _schedule(self) -> Schedule:
        n, decided = self.profile.stride, self.profile.decided
        recomputes = frozenset((key // n, key % n) for key, i in decided if i == RECOMPUTE)
        return Schedule(recomputes, frozenset((key // n, i) for key, i in decided if i != RECOMPUTE))

    def _ruined(self) -> list[Decision]:
        """Decisions to be made anew: those of some stages in a row, or some from everywhere."""
        profile, draw = self.profile, self.draw
        every = sorted(profile.decided - profile.fixed)
        if draw.random() < 0.3:
            return draw.sample(every, max(1, len(every) // 6))
        middle, width = draw.choice(every)[0] // profile.stride, max(3, profile.count // draw.choice(WINDOWS))
        return [one for one in every if abs(one[0] // profile.stride - middle) <= width]

    def _prune(self, decisions: Set[Decision]) -> None:
        """Take out what isn't needed, the dearest first."""
        profile = self.profile
        for decision in sorted(decisions - profile.fixed, key=lambda one: (-profile.price(one), one)):
            if decision not in profile.decided:
                continue
            self.work.spend(LOOK_WORK)
            gone = profile.remove(decision)
            if profile.live().max() > self.most:
                for one in reversed(gone):
                    profile.add(one)

    def _fill(self, noise: float, most_j: float) -> bool:
        """Drop and bring back until all fits; say whether it does, for less than `most_j`."""
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
            moment = int(profile.keys[at])
            paying, pressed = self._drops(at, over, noise, given_up)
            if not paying and (pressed is None or not forced):
                return False
            if not paying:
                assert pressed is not None
                forced -= 1
                self._bring_back(pressed[2])
                given_up.add(pressed[:2])
                continue
            for tensor, until, back in paying[: 1 + int(self.several * len(paying))]:
                if profile.live()[profile.place(moment)] <= self.most:
                    break
                excess = int((profile.live() - self.most).clip(min=0).sum())
                added = self._bring_back(back)
                if int((profile.live() - self.most).clip(min=0).sum()) >= excess:
                    given_up.add((tensor, until))
                    for decision in reversed(added):
                        if decision in profile.decided:
                            profile.remove(decision)

    def _bring_back(self, back: list[Decision]) -> list[Decision]:
        """Decide it; what of it is new."""
        added = [one for one in sorted(back, key=_in_order) if one not in self.profile.decided]
        for decision in added:
            self.profile.add(decision)
        return added

    def _drops(
        self, at: int, over: np.ndarray, noise: float, given_up: set[tuple[int, int]]
    ) -> tuple[list[_Drop], _Drop | None]:
        """Find what pays of what can be dropped at an event, the best first, and what adds least of what doesn't."""
        profile, moment = self.profile, int(self.profile.keys[at])
        closest = math.inf
        paying: dict[int, tuple[float, _Drop]] = {}
        pressed: _Drop | None = None
        self.work.spend(LOOK_WORK)
        for i, keys in enumerate(profile.uses):
            if not profile.nbytes[i] or not keys or not keys[0] < moment < keys[-1]:
                continue
            place = bisect_right(keys, moment)
            before, until = keys[place - 1], keys[place]
            if before == moment or until in profile.made[i] or (i, until) in given_up:
                continue
            if profile.away(i, before, until):
                continue
            for back, changes in self._ways(i, before, until, over):
                self.work.spend(PRICE_WORK)
                if not any(begin <= at < end for begin, end, nbytes in changes if nbytes < 0):
                    break
                first, last = min(begin for begin, _, _ in changes), max(end for _, end, _ in changes)
                changed = over[first:last].copy()
                excess = int(changed.clip(min=0).sum())
                for begin, end, nbytes in changes:
                    changed[begin - first : end - first] += nbytes
                gone = excess - int(changed.clip(min=0).sum())
                if gone <= 0:
                    worse = -gone * (1 + self.draw.random())
                    if worse < closest:
                        closest, pressed = worse, (i, until, back)
                    continue
                price = sum(map(self._joules, back)) / gone
                if noise:
                    price *= math.exp(self.draw.gauss(0, noise))
                if i not in paying or price < paying[i][0]:
                    paying[i] = price, (i, until, back)
        return [drop for _, drop in sorted(paying.values(), key=lambda one: one[0])], pressed

    def _joules(self, decision: Decision) -> float:
        key, paged = decision
        profile = self.profile
        if paged == RECOMPUTE:
            return profile.joules[key % profile.stride]
        return profile.page_in_j(paged, key // profile.stride)

    def _ways(
        self, i: int, before: int, until: int, over: np.ndarray
    ) -> Iterator[tuple[list[Decision], list[_Change]]]:
        """The ways to bring a tensor back that is dropped between two of its uses: decisions, and bytes that change."""
        profile = self.profile
        keys, nbytes, stage = profile.uses[i], profile.nbytes[i], until // profile.stride
        if profile.stays[i] and (before < 0 or until == profile.end):
            if self.pages[i]:
                gaps = [(1, profile.place(keys[1]), -nbytes), (profile.place(keys[-2]) + 1, len(over), -nbytes)]
                yield [(profile.first_reads[i] * profile.stride, i)], gaps
            return
        if until == profile.end:
            return
        begin = profile.place(before) + 1
        if self._may_page(i, before, until):
            yield [(stage * profile.stride, i)], [(begin, profile.place(until), -nbytes)]
        for longest in (1, LONGEST) if self.remat else ():
            changes: list[_Change] = []
            back = self._again(i, until, longest, over, set(), changes)
            if not back or (longest > 1 and len(back) == 1):
                return
            yield back, [(begin, profile.place(back[0][0]), -nbytes), *changes]

    def _may_page(self, i: int, before: int, until: int) -> bool:
        """Say whether a tensor may be paged in for a read, where nothing makes it in that stage."""
        profile, stage = self.profile, until // self.profile.stride
        again = (stage * profile.stride + profile.producer[i], RECOMPUTE) in profile.decided
        return self.pages[i] and before // profile.stride < stage <= self._latest[i] and not again

    def _again(
        self, i: int, until: int, longest: int, over: np.ndarray, planned: set[int], changes: list[_Change]
    ) -> list[Decision]:
        """What brings a tensor back before an event by computing, its own run first; none where it can't be.

        changes
            Takes what inputs are kept for until then.
        """
        profile, problem = self.profile, self.problem
        operator, stage = profile.producer[i], until // profile.stride
        key = stage * profile.stride + operator
        may = operator >= 0 and problem.operators[operator].recomputable and problem.last_run[operator] >= stage
        if not may or operator >= stage or key >= until or key in planned or (key, RECOMPUTE) in profile.decided:
            return []
        if any(stage in profile.page_ins[made] for made in profile.makes[operator]):
            return []
        found, at = [(key, RECOMPUTE)], profile.place(key)
        planned.add(key)
        for read in profile.reads[operator]:
            keys, nbytes = profile.uses[read], profile.nbytes[read]
            place = bisect_left(keys, key)
            if not place:
                return []
            if not nbytes or profile.covered(read, key) or stage in profile.page_ins[read]:
                continue
            begin = profile.place(keys[place - 1]) + 1
            if begin >= at:
                continue
            more: list[Decision] = []
            known = len(changes)
            if int(over[begin:at].max()) + nbytes > 0:
                if len(planned) < longest:
                    more = self._again(read, key, longest, over, planned, changes)
                pages = self._may_page(read, keys[place - 1], key)
                if pages and (not more or profile.page_in_j(read, stage) < sum(map(self._joules, more))):
                    more = [(stage * profile.stride, read)]
                    del changes[known:]
            if more:
                found += more
            else:
                changes.append((begin, at, nbytes))
        return found
