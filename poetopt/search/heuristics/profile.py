"""Recomputes and page-ins along the memory profile.

The events of a schedule are kept in order, with the live bytes between each two of them. If too much is live, a tensor
that isn't read there is dropped, and returns before its next read. Of all such tensors and both ways back, the choice
is the one of least cost for the excess that goes. Inputs of a recompute are kept until then, or return as well if there
is no room for them. Then unneeded decisions are removed. Parts of the schedule are ruined and recreated, with some
noise, until the work is done (ruin and recreate: Schrimpf et al. 2000; the moves are those of Moccasin, Bartan et al.
2023, and paging). A cheaper schedule is kept. All runs are plain.
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

MAX_CHAIN = 8
"""Longest chain of recomputes that is considered for the return of one tensor."""
MAX_FORCED = 25
"""Number of drops that don't reduce the excess."""
NOISE = (0.0, 0.2, 0.5)
"""Standard deviations of the logarithm of a price while a schedule is recreated."""
WINDOWS = (8, 12, 20, 40)
"""Divisors of the number of stages: the windows that are ruined."""
LOOK_WORK, PRICE_WORK, CHANGE_WORK = 30, 12, 15
"""Units of work of searching for a drop or removing a recompute; of each possible drop; and of each decision that is
ruined."""
BATCH_SHARE = 0.25
"""Share of the useful drops at one event that are made before prices are updated, if there is a backward pass:
thousands of drops are needed then."""
MIN_SAVING = 1e-9
"""Share of the recomputes' energy by which a schedule has to be cheaper."""

RECOMPUTE = -1
Decision = tuple[int, int]
"""Key of a recompute's event, and RECOMPUTE; or first key of a page-in's stage, and the tensor."""
_Change = tuple[int, int, int]
"""First event, the one after the last, and the further bytes that are live during them."""
_Drop = tuple[int, int, list[Decision]]
"""Dropped tensor, the read for which it returns, and the decisions that bring it back."""


def _sort_key(decision: Decision) -> tuple[bool, Decision]:
    """Return a sorting key: recomputes before page-ins, which may be for them."""
    return decision[1] != RECOMPUTE, decision


class Profile:
    """Events of a schedule, and the live bytes between them.

    The key of stage t's own compute is t N + n, and that of a recompute of operator j in it is t N + j, for n operators
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
        """Key of the step's end."""
        self.keys = np.array([-1, *(t * self.stride + count for t in range(count + 1))], dtype=np.int64)
        self.uses: list[list[int]] = [[] for _ in self.nbytes]
        """Keys of the events that make or read each tensor, ascending."""
        self.made_at: list[set[int]] = [set() for _ in self.nbytes]
        self.stays = [tensor.may_stay and bool(problem.readers[i]) for i, tensor in enumerate(tensors)]
        self.first_reads = problem.first_reads
        for i in (*problem.at_start, *(i for i in problem.stored_at_start if problem.readers[i])):
            self.uses[i].append(-1)
            self.made_at[i].add(-1)
        for t in range(count):
            key = t * self.stride + count
            for i in self.makes[t]:
                self.made_at[i].add(key)
            for i in (*self.reads[t], *self.makes[t]):
                self.uses[i].append(key)
        for i, stays in enumerate(self.stays):
            if stays or i in problem.at_end:
                self.uses[i].append(self.end)
        self.page_ins: list[set[int]] = [set() for _ in self.nbytes]
        """Stages for which each tensor is paged in."""
        self.across = np.zeros(len(self.keys), dtype=np.int64)
        """Bytes that are live from before each event on into it."""
        self.own = [problem.extra_bytes[t] + sum(self.nbytes[i] for i in self.makes[t]) for t in range(count)]
        """Bytes that each operator makes, with its workspace."""
        self.fresh = np.array([0, *self.own, 0], dtype=np.int64)
        """Bytes that each event makes, with its workspace and the tensors that arrive for it."""
        self.decided: set[Decision] = set()
        self.total_j = 0.0
        self._in_j = [tensor.page_in_j for tensor in tensors]
        self._out_j = [tensor.page_out_j if problem.may_page_out(i) else 0.0 for i, tensor in enumerate(tensors)]
        self._written = [problem.written_first(i) for i in range(len(tensors))]
        for i in range(len(tensors)):
            self._count(i, 1)
        for i in problem.stored_at_start:
            if problem.readers[i] and not self.stays[i]:
                self.add((problem.first_reads[i] * self.stride, i))
        self.fixed = frozenset(self.decided)
        """Decisions of every schedule."""

    def place(self, key: int) -> int:
        """Return the index of an event, or of the first one after the key."""
        return int(self.keys.searchsorted(key))

    def live(self) -> np.ndarray:
        """Return the live bytes during each event."""
        return self.across + self.fresh

    def comes_and_goes(self, i: int) -> bool:
        """Return whether a tensor could stay in RAM from one step to the next, but doesn't."""
        return self.stays[i] and self.first_reads[i] in self.page_ins[i]

    def away(self, i: int, before: int, after: int) -> bool:
        """Return whether a tensor is on storage alone between two of its uses."""
        if after == self.end:
            return self.comes_and_goes(i)
        return after // self.stride in self.page_ins[i] and before // self.stride < after // self.stride

    def covered(self, i: int, key: int) -> bool:
        """Return whether a tensor is kept at a moment for a later read."""
        keys = self.uses[i]
        at = bisect_left(keys, key)
        return 0 < at < len(keys) and keys[at] not in self.made_at[i] and not self.away(i, keys[at - 1], keys[at])

    def _count(self, i: int, sign: int) -> None:
        """Add a tensor's bytes where it is live before an event, and its transfers; or subtract them."""
        nbytes, made_at, pages = sign * self.nbytes[i], self.made_at[i], len(self.page_ins[i])
        if pages:
            is_written = self.comes_and_goes(i) if not self._written[i] else True
            returns = self.stays[i] and not self.comes_and_goes(i)
            self.total_j += sign * (pages * self._in_j[i] + (self._out_j[i] if is_written or returns else 0.0))
        for before, after in pairwise(self.uses[i]):
            if after in made_at:
                continue
            end = self.place(after)
            if not self.away(i, before, after):
                self.across[self.place(before) + 1 : end + 1] += nbytes
            elif after != self.end:
                self.fresh[end] += nbytes

    def add(self, decision: Decision) -> None:
        """Add a decision: a recompute of an operator, or a page-in of a tensor."""
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
        self.made_by(operator, key, is_made=True)
        at = self.place(key)
        self.keys = np.insert(self.keys, at, key)
        self.across = np.insert(self.across, at, self.across[at])
        self.fresh = np.insert(self.fresh, at, self.own[operator])
        self.total_j += self.joules[operator]
        for i in (*self.reads[operator], *self.makes[operator]):
            self._count(i, 1)

    def made_by(self, operator: int, key: int, *, is_made: bool) -> None:
        """Note that an event makes the outputs of an operator, or no longer does."""
        for i in self.makes[operator]:
            (self.made_at[i].add if is_made else self.made_at[i].discard)(key)

    def remove(self, decision: Decision) -> list[Decision]:
        """Remove a decision, with page-ins for it alone; return all removed ones, to be added in reverse order."""
        key, paged = decision
        self.decided.discard(decision)
        if paged != RECOMPUTE:
            self._count(paged, -1)
            self.page_ins[paged].discard(key // self.stride)
            self._count(paged, 1)
            return [decision]
        operator, stage, removed = key % self.stride, key // self.stride, []
        for i in self.reads[operator]:
            uses = self.uses[i]
            is_alone = bisect_left(uses, (stage + 1) * self.stride) - bisect_left(uses, stage * self.stride) == 1
            if stage in self.page_ins[i] and is_alone:
                removed += self.remove((stage * self.stride, i))
        for i in (*self.reads[operator], *self.makes[operator]):
            self._count(i, -1)
            self.uses[i].remove(key)
        self.made_by(operator, key, is_made=False)
        self.total_j -= self.joules[operator]
        at = self.place(key)
        self.keys, self.across, self.fresh = (np.delete(a, at) for a in (self.keys, self.across, self.fresh))
        for i in (*self.reads[operator], *self.makes[operator]):
            self._count(i, 1)
        return [*removed, decision]

    def change(self, wanted: Iterable[Decision]) -> None:
        """Replace the decisions by these, beside the fixed ones."""
        wanted = self.fixed.union(wanted)
        for decision in sorted(self.decided - wanted, reverse=True):
            if decision in self.decided:
                self.remove(decision)
        for decision in sorted(wanted - self.decided, key=_sort_key):
            self.add(decision)

    def price(self, decision: Decision) -> float:
        """Return the joules of one decision alone."""
        key, paged = decision
        return self.joules[key % self.stride] if paged == RECOMPUTE else self._in_j[paged] + self._out_j[paged]

    def page_in_j(self, i: int, stage: int) -> float:
        """Return the joules of one more page-in, with the page-out that it needs."""
        is_away = self.stays[i] and stage == self.first_reads[i]
        needs_page_out = is_away or ((self._written[i] or self.stays[i]) and not self.page_ins[i])
        return self._in_j[i] + (self._out_j[i] if needs_page_out else 0.0)


class ProfileSearch:
    """Search of schedules of at most `ram_bytes`, each cheaper than the one before.

    Parameters
    ----------
    ram_bytes
        Budget without the kernels' reserve.
    work
        Counter and limit of the work.
    paging, remat
        Whether tensors may be paged, and operators recomputed.
    """

    def __init__(
        self, problem: Problem, ram_bytes: int, work: Work, seed: int = 0, *, paging: bool = False, remat: bool = True
    ) -> None:
        self.problem, self.limit_bytes, self.work = problem, ram_bytes, work
        self.profile = Profile(problem)
        self.rng = random.Random(seed)
        self.remat = remat
        self.batch_share = BATCH_SHARE if problem.has_backward else 0.0
        self.pages = [
            paging and problem.paging and (tensor.stored or problem.may_page_out(i))
            for i, tensor in enumerate(problem.tensors)
        ]
        self._latest = [tensor.updated_by if tensor.updated else len(problem.operators) for tensor in problem.tensors]
        """Last stage for which each tensor may be paged in."""

    def schedules(self) -> Iterator[Schedule]:
        """Yield schedules until the work is done; none if nothing can be dropped."""
        try:
            if not self._fill(0.0, math.inf):
                return
            self._prune(self.profile.decided)
            yield self._schedule()
            while self.profile.decided > self.profile.fixed:
                schedule = self._recreate()
                if schedule is not None:
                    yield schedule
        except OutOfWorkError:
            return

    def improve(self, begin: Schedule, least_share: float, accept: Callable[[Schedule], bool]) -> None:
        """Make `begin`, whose runs are plain, cheaper until the work is done, with schedules that `accept` takes.

        Parameters
        ----------
        least_share
            Least share of the budget within which parts are recreated, a random one each time: a layout takes more
            than the sum of the live bytes.
        """
        profile, limit_bytes = self.profile, self.limit_bytes
        recomputes = ((t * profile.stride + j, RECOMPUTE) for t, j in begin.recomputes)
        profile.change((*recomputes, *((t * profile.stride, i) for t, i in begin.page_ins)))
        initial, joules = set(profile.decided), profile.total_j
        try:
            for share in (1.0, (1.0 + least_share) / 2, least_share):
                self.limit_bytes = int(limit_bytes * share)
                self._prune(initial)
                if profile.total_j >= joules * (1 - MIN_SAVING) or accept(self._schedule()):
                    break
                profile.change(initial)
            while profile.decided > profile.fixed:
                self.limit_bytes = int(limit_bytes * self.rng.uniform(least_share, 1.0))
                self._recreate(accept)
        except OutOfWorkError:
            return

    def _recreate(self, accept: Callable[[Schedule], bool] | None = None) -> Schedule | None:
        """Ruin and recreate a part; return the schedule if it is cheaper and accepted. Otherwise restore the old one.

        Parameters
        ----------
        accept
            Function that accepts a schedule. Without it a part of the same cost stays too.
        """
        profile = self.profile
        before, joules, ruined = set(profile.decided), profile.total_j, self._choose_ruin()
        self.work.spend(LOOK_WORK + CHANGE_WORK * len(ruined))
        for decision in ruined:
            if decision in profile.decided:
                profile.remove(decision)
        fits = self._fill(self.rng.choice(NOISE), joules)
        if fits:
            self._prune(profile.decided - before)
        schedule = self._schedule() if fits and profile.total_j < joules * (1 - MIN_SAVING) else None
        if schedule is not None and (accept is None or accept(schedule)):
            return schedule
        if accept is not None or not fits or profile.total_j > joules:
            profile.change(before)
        return None

    def _schedule(self) -> Schedule:
        n, decided = self.profile.stride, self.profile.decided
        recomputes = frozenset((key // n, key % n) for key, i in decided if i == RECOMPUTE)
        return Schedule(recomputes, frozenset((key // n, i) for key, i in decided if i != RECOMPUTE))

    def _choose_ruin(self) -> list[Decision]:
        """Return the decisions to ruin: those of some consecutive stages, or some from everywhere."""
        profile, rng = self.profile, self.rng
        decisions = sorted(profile.decided - profile.fixed)
        if rng.random() < 0.3:
            return rng.sample(decisions, max(1, len(decisions) // 6))
        center, width = rng.choice(decisions)[0] // profile.stride, max(3, profile.count // rng.choice(WINDOWS))
        return [decision for decision in decisions if abs(decision[0] // profile.stride - center) <= width]

    def _prune(self, decisions: Set[Decision]) -> None:
        """Remove unneeded decisions, the most expensive first."""
        profile = self.profile
        for decision in sorted(decisions - profile.fixed, key=lambda other: (-profile.price(other), other)):
            if decision not in profile.decided:
                continue
            self.work.spend(LOOK_WORK)
            removed = profile.remove(decision)
            if profile.live().max() > self.limit_bytes:
                for other in reversed(removed):
                    profile.add(other)

    def _fill(self, noise: float, most_j: float) -> bool:
        """Drop and bring back until all fits; return whether it does, for less than `most_j`."""
        profile, n_forced = self.profile, MAX_FORCED
        given_up: set[tuple[int, int]] = set()
        while True:
            excess_bytes = profile.live() - self.limit_bytes
            at = int(excess_bytes.argmax())
            if excess_bytes[at] <= 0:
                return profile.total_j <= most_j
            if profile.total_j >= most_j:
                return False
            if noise and self.rng.random() < 0.5:
                too_much = np.flatnonzero(excess_bytes > 0)
                at = int(too_much[self.rng.randrange(len(too_much))])
            moment = int(profile.keys[at])
            useful, least_harmful = self._find_drops(at, excess_bytes, noise, given_up)
            if not useful and (least_harmful is None or not n_forced):
                return False
            if not useful:
                assert least_harmful is not None
                n_forced -= 1
                self._bring_back(least_harmful[2])
                given_up.add(least_harmful[:2])
                continue
            for tensor, until, back in useful[: 1 + int(self.batch_share * len(useful))]:
                if profile.live()[profile.place(moment)] <= self.limit_bytes:
                    break
                excess = int((profile.live() - self.limit_bytes).clip(min=0).sum())
                added = self._bring_back(back)
                if int((profile.live() - self.limit_bytes).clip(min=0).sum()) >= excess:
                    given_up.add((tensor, until))
                    for decision in reversed(added):
                        if decision in profile.decided:
                            profile.remove(decision)

    def _bring_back(self, back: list[Decision]) -> list[Decision]:
        """Add decisions; return the new ones."""
        added = [decision for decision in sorted(back, key=_sort_key) if decision not in self.profile.decided]
        for decision in added:
            self.profile.add(decision)
        return added

    def _find_drops(
        self, at: int, excess_bytes: np.ndarray, noise: float, given_up: set[tuple[int, int]]
    ) -> tuple[list[_Drop], _Drop | None]:
        """Return the useful drops at an event, the best first, and the least harmful of the others."""
        profile, moment = self.profile, int(self.profile.keys[at])
        least_harm = math.inf
        useful: dict[int, tuple[float, _Drop]] = {}
        least_harmful: _Drop | None = None
        self.work.spend(LOOK_WORK)
        for i, keys in enumerate(profile.uses):
            if not profile.nbytes[i] or not keys or not keys[0] < moment < keys[-1]:
                continue
            index = bisect_right(keys, moment)
            before, until = keys[index - 1], keys[index]
            if before == moment or until in profile.made_at[i] or (i, until) in given_up:
                continue
            if profile.away(i, before, until):
                continue
            for back, changes in self._returns(i, before, until, excess_bytes):
                self.work.spend(PRICE_WORK)
                if not any(begin <= at < end for begin, end, nbytes in changes if nbytes < 0):
                    break
                first, last = min(begin for begin, _, _ in changes), max(end for _, end, _ in changes)
                changed = excess_bytes[first:last].copy()
                excess = int(changed.clip(min=0).sum())
                for begin, end, nbytes in changes:
                    changed[begin - first : end - first] += nbytes
                reduction = excess - int(changed.clip(min=0).sum())
                if reduction <= 0:
                    harm = -reduction * (1 + self.rng.random())
                    if harm < least_harm:
                        least_harm, least_harmful = harm, (i, until, back)
                    continue
                price = sum(map(self._price_j, back)) / reduction
                if noise:
                    price *= math.exp(self.rng.gauss(0, noise))
                if i not in useful or price < useful[i][0]:
                    useful[i] = price, (i, until, back)
        return [drop for _, drop in sorted(useful.values(), key=lambda item: item[0])], least_harmful

    def _price_j(self, decision: Decision) -> float:
        key, paged = decision
        profile = self.profile
        if paged == RECOMPUTE:
            return profile.joules[key % profile.stride]
        return profile.page_in_j(paged, key // profile.stride)

    def _returns(
        self, i: int, before: int, until: int, excess_bytes: np.ndarray
    ) -> Iterator[tuple[list[Decision], list[_Change]]]:
        """Yield the ways back of a tensor that is dropped between two uses: decisions, and changes of bytes."""
        profile = self.profile
        keys, nbytes, stage = profile.uses[i], profile.nbytes[i], until // profile.stride
        if profile.stays[i] and (before < 0 or until == profile.end):
            if self.pages[i]:
                gaps = [(1, profile.place(keys[1]), -nbytes), (profile.place(keys[-2]) + 1, len(excess_bytes), -nbytes)]
                yield [(profile.first_reads[i] * profile.stride, i)], gaps
            return
        if until == profile.end:
            return
        begin = profile.place(before) + 1
        if self._may_page(i, before, until):
            yield [(stage * profile.stride, i)], [(begin, profile.place(until), -nbytes)]
        for max_chain in (1, MAX_CHAIN) if self.remat else ():
            changes: list[_Change] = []
            back = self._recompute_chain(i, until, max_chain, excess_bytes, set(), changes)
            if not back or (max_chain > 1 and len(back) == 1):
                return
            yield back, [(begin, profile.place(back[0][0]), -nbytes), *changes]

    def _may_page(self, i: int, before: int, until: int) -> bool:
        """Return whether a tensor may be paged in for a read, since no event makes it in that stage."""
        profile, stage = self.profile, until // self.profile.stride
        again = (stage * profile.stride + profile.producer[i], RECOMPUTE) in profile.decided
        return self.pages[i] and before // profile.stride < stage <= self._latest[i] and not again

    def _recompute_chain(
        self, i: int, until: int, max_chain: int, excess_bytes: np.ndarray, planned: set[int], changes: list[_Change]
    ) -> list[Decision]:
        """Return the decisions that recompute a tensor before an event, its own run first; none if impossible.

        Parameters
        ----------
        changes
            Receives the bytes of inputs that are kept until then.
        """
        profile, problem = self.profile, self.problem
        operator, stage = profile.producer[i], until // profile.stride
        key = stage * profile.stride + operator
        can = operator >= 0 and problem.operators[operator].recomputable and problem.last_run[operator] >= stage
        if not can or operator >= stage or key >= until or key in planned or (key, RECOMPUTE) in profile.decided:
            return []
        if any(stage in profile.page_ins[output] for output in profile.makes[operator]):
            return []
        decisions, at = [(key, RECOMPUTE)], profile.place(key)
        planned.add(key)
        for read in profile.reads[operator]:
            keys, nbytes = profile.uses[read], profile.nbytes[read]
            index = bisect_left(keys, key)
            if not index:
                return []
            if not nbytes or profile.covered(read, key) or stage in profile.page_ins[read]:
                continue
            begin = profile.place(keys[index - 1]) + 1
            if begin >= at:
                continue
            further: list[Decision] = []
            n_changes = len(changes)
            if int(excess_bytes[begin:at].max()) + nbytes > 0:
                if len(planned) < max_chain:
                    further = self._recompute_chain(read, key, max_chain, excess_bytes, planned, changes)
                pages = self._may_page(read, keys[index - 1], key)
                if pages and (not further or profile.page_in_j(read, stage) < sum(map(self._price_j, further))):
                    further = [(stage * profile.stride, read)]
                    del changes[n_changes:]
            if further:
                decisions += further
            else:
                changes.append((begin, at, nbytes))
        return decisions
