"""The least overhead of any plan at all, by its own reading of the contract: homes, wakings, DMA, deadlines, layouts,
streamed runs, and the room on storage.

A uniform-cost search over single instructions. It shares nothing with the package but the nouns of
`poetopt.graph.problem`: neither formulations, nor the simulator, nor its clock. Frees come last: a buffer is given up
as another needs its bytes, as waiting with it costs nothing; everything else may come at any moment.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from poetopt.graph.problem import Home, Problem, Variant

MOST_STATES = 400_000
"""More than a search of one problem may visit."""

Ram = tuple[tuple[int, int], ...]
"""Tensors in RAM, ascending, each with its offset; 0 where layouts don't matter."""


class TooManyStatesError(Exception):
    """Nothing is known of this problem."""


@dataclass(frozen=True)
class Time:
    """Seconds on one CPU and one channel: now, when the channel is free, when each tensor has come and is settled."""

    cpu: float = 0.0
    channel: float = -1.0  # nothing was ever moved: asleep
    come: tuple[tuple[int, float], ...] = ()
    settled: tuple[tuple[int, float], ...] = ()

    def wait(self, tensors: tuple[int, ...], *, arrivals: bool) -> Time:
        """The CPU goes on once these have come, or are settled."""
        ends = [end for i, end in (self.come if arrivals else self.settled) if i in tensors]
        return replace(self, cpu=max([self.cpu, *ends]))

    def seen(self, ram: frozenset[int]) -> Time:
        """Without what can make nobody wait any more."""
        return replace(
            self,
            come=tuple((i, end) for i, end in self.come if end > self.cpu and i in ram),
            settled=tuple((i, end) for i, end in self.settled if end > self.cpu and i in ram),
        )


@dataclass(frozen=True)
class Moment:
    """Operators done for the first time, RAM, valid copies on storage, and the time."""

    done: int
    ram: Ram
    stored: frozenset[int]
    time: Time
    unread: frozenset[int] = frozenset()
    """Copies that were written and not read yet; where no transfer may serve the storage's wakefulness alone."""
    taken: frozenset[int] = frozenset()
    """Tensors that have blocks on storage, which they keep; where its room is known."""

    def there(self) -> frozenset[int]:
        return frozenset(i for i, _ in self.ram)


class _Search:
    def __init__(
        self,
        problem: Problem,
        ram_bytes: int,
        deadline_s: float | None,
        stays: frozenset[int],
        placed: bool,
        serving: bool,
    ) -> None:
        self.problem, self.deadline_s, self.placed = problem, deadline_s, placed
        self.serving = (
            serving and problem.dma and problem.wake_j > 0
        )  # elsewhere a useless transfer costs, or is nothing
        self.room = ram_bytes - problem.reserve_bytes
        self.count = len(problem.operators)
        self.sizes = [tensor.nbytes for tensor in problem.tensors]
        tensors = list(enumerate(problem.tensors))
        self.flash = {i for i, t in tensors if t.home is Home.FLASH}
        self.at_start = [i for i, t in tensors if t.home is Home.RAM or i in stays]
        self.stored = frozenset(
            i for i, t in tensors if t.backed or (t.home is Home.STORAGE and not (i in stays and t.updated_by >= 0))
        )
        self.in_ram_at_end = {i for i, t in tensors if t.result or i in stays or (t.carried and t.home is Home.RAM)}
        self.stored_at_end = {i for i in self.stored if problem.tensors[i].carried}
        self.wakes = problem.wake_j > 0
        self.timed = deadline_s is not None or (self.wakes and problem.dma)
        plain = [Variant((), (), o.workspace_bytes, o.time_s, o.energy_j) for o in problem.operators]
        self.ways = [
            [own, *(way for way in operator.variants if problem.paging or not way.streams)]
            for own, operator in zip(plain, problem.operators, strict=True)
        ]
        quickest = [min(way.time_s for way in ways) for ways in self.ways]
        self.rest_s = [sum(quickest[k:]) for k in range(self.count + 1)]
        self.useful = [self._useful(k) for k in range(self.count + 1)]
        steps = {0}
        for size in [*self.sizes, *(way.workspace_bytes for ways in self.ways for way in ways)] * 2:
            unit = problem.alignment
            steps |= {s + -(-size // unit) * unit for s in steps if s + size <= self.room}
        self.offsets = sorted(s for s in steps if s <= self.room) if placed else [0]

    def _useful(self, done: int) -> frozenset[int]:
        """What somebody may still read, or has to be somewhere as the step ends."""
        found = set(self.in_ram_at_end | self.stored_at_end)
        for k in range(self.count - 1, -1, -1):
            operator = self.problem.operators[k]
            if k >= done or (operator.recomputable and found.intersection(operator.outputs)):
                found.update(operator.inputs)
        return frozenset(found)

    # Room.

    def rooms(
        self, ram: Ram, needed: frozenset[int], new: tuple[int, ...], beside: int
    ) -> Iterator[tuple[Ram, set[int]]]:
        """RAM with `new` in it and room for a workspace, and what had to go for it."""
        if self.placed:
            yield from self._places(ram, needed, [(i, self.sizes[i]) for i in new] + [(-1, beside)], set())
            return
        need = sum(self.sizes[i] for i in new) + beside
        free = self.room - sum(self.sizes[i] for i, _ in ram)
        able = [i for i, _ in ram if i not in needed and self.sizes[i]]
        least: list[set[int]] = []
        for size in range(len(able) + 1):
            for gone in map(set, itertools.combinations(able, size)):
                if sum(self.sizes[i] for i in gone) + free >= need and not any(other <= gone for other in least):
                    least.append(gone)
                    yield tuple(sorted([*(e for e in ram if e[0] not in gone), *((i, 0) for i in new)])), gone

    def _places(
        self, ram: Ram, needed: frozenset[int], todo: list[tuple[int, int]], gone: set[int]
    ) -> Iterator[tuple[Ram, set[int]]]:
        if not todo:
            yield tuple(e for e in ram if e[0] >= 0), gone
            return
        (i, size), *later = todo
        for offset in self.offsets if size else [0]:
            if offset + size > self.room:
                break
            hit = {
                j
                for j, start in ram
                if size and self._bytes(j) and offset < start + self._bytes(j) and start < offset + size
            }
            if not hit & needed and not any(j < 0 for j in hit):
                after = tuple(sorted([*(e for e in ram if e[0] not in hit), *([(i, offset)] if i >= 0 else [])]))
                yield from self._places(after, needed | {i}, later, gone | hit)

    def _bytes(self, i: int) -> int:
        return self.sizes[i] if i >= 0 else 0

    # Instructions.

    def moves(self, now: Moment) -> Iterator[tuple[float, Moment]]:
        problem, there = self.problem, now.there()
        for k in range(min(now.done + 1, self.count)):
            for way in self.ways[k]:
                if k == now.done or self._again(k, now, there, way):
                    yield from self._runs(now, k, way)
        if not problem.paging:
            return
        for i in now.stored - there:
            if i in self.useful[now.done] and i not in self.flash:
                for ram, gone in self.rooms(now.ram, frozenset(), (i,), 0):
                    waited = now.time.wait(tuple(gone), arrivals=False)
                    joules, time = self._moved(waited, i, problem.tensors[i].transfers.page_in_s, comes=True)
                    yield (
                        joules + problem.tensors[i].transfers.page_in_j,
                        self._tidy(replace(now, ram=ram, time=time, unread=now.unread - {i})),
                    )
        for i in there - now.stored:
            taken = self._with_blocks(now, {i})
            if i in self.useful[now.done] and taken is not None:
                joules, time = self._moved(now.time, i, problem.tensors[i].transfers.page_out_s, comes=False)
                joules += problem.tensors[i].transfers.page_out_j
                unread = now.unread | ({i} if self.serving else frozenset())
                yield joules, self._tidy(replace(now, stored=now.stored | {i}, time=time, unread=unread, taken=taken))

    def _runs(self, now: Moment, k: int, way: Variant) -> Iterator[tuple[float, Moment]]:
        """One compute of operator k, in all ways to make room for it."""
        problem, there, operator = self.problem, now.there(), self.problem.operators[k]
        moved = {*way.streamed_in, *way.streamed_out}
        held = frozenset(i for i in operator.inputs if i not in self.flash and i not in moved)
        taken = self._with_blocks(now, set(way.streamed_out))
        if taken is None or not there >= held or not now.stored >= set(way.streamed_in):
            return
        made = [i for i in operator.outputs if i not in moved]
        old = there.intersection(way.streamed_out)  # a copy in RAM would be an old one
        left = tuple(entry for entry in now.ram if entry[0] not in old)
        new = tuple(i for i in made if i not in there)
        for ram, gone in self.rooms(left, held | there.intersection(made), new, way.workspace_bytes):
            updated = {i for i in operator.inputs if problem.tensors[i].updated_by == k}
            time = now.time.wait((*gone, *old), arrivals=False).wait(tuple(held), arrivals=True)
            time = time.wait((*made, *(updated - moved)), arrivals=False)
            joules = way.energy_j - (operator.energy_j if k == now.done else 0.0)
            if way.streams:  # CPU and channel are both busy with it
                joules += problem.wake_j * (time.channel < time.cpu)
                end = max(time.cpu, time.channel) + way.time_s
                time = replace(time, cpu=end, channel=end)
            else:
                time = replace(time, cpu=time.cpu + way.time_s)
            stored = now.stored - updated if k == now.done else now.stored
            unread = now.unread.difference(way.streamed_in)
            unread |= frozenset(way.streamed_out if self.serving else ())
            stored = stored.union(way.streamed_out)
            yield joules, self._tidy(Moment(max(now.done, k + 1), ram, stored, time, unread, taken))

    def _with_blocks(self, now: Moment, more: set[int]) -> frozenset[int] | None:
        """What has blocks on storage with `more`; None where there is no room for them."""
        problem = self.problem
        if problem.storage_bytes is None:
            return frozenset()
        taken, size = now.taken | more, problem.storage_block_bytes
        needed = sum(-(-self.sizes[i] // size) for i in taken)
        return taken if needed <= problem.storage_bytes // size else None

    def _again(self, k: int, now: Moment, there: frozenset[int], way: Variant) -> bool:
        """Whether an operator may run again, and makes something that is lacking, in RAM or on storage."""
        operator, done = self.problem.operators[k], now.done
        ends = [self.problem.tensors[i].updated_by for i in operator.inputs]
        ends = [*(end for end in ends if end >= 0), *operator.updaters]
        lacking = set(operator.outputs) & self.useful[done] - there
        lacking |= set(way.streamed_out) & self.useful[done] - now.stored
        return operator.recomputable and bool(lacking) and all(done <= end for end in ends)

    def _moved(self, time: Time, i: int, seconds: float, *, comes: bool) -> tuple[float, Time]:
        """Joules of waking the storage, and the time once a transfer is queued."""
        asleep = time.channel < time.cpu
        end = max(time.cpu, time.channel) + seconds
        if not self.problem.dma:
            return self.problem.wake_j * asleep, replace(time, cpu=end, channel=end)
        settled = (*(pair for pair in time.settled if pair[0] != i), (i, end))
        come = (*time.come, (i, end)) if comes else time.come
        return self.problem.wake_j * asleep, replace(
            time, channel=end, come=tuple(sorted(come)), settled=tuple(sorted(settled))
        )

    def _tidy(self, now: Moment) -> Moment:
        """The same moment, where what is of no use, and makes nobody wait, is gone, and time that can't matter too."""
        under_way = {i for i, end in now.time.settled if end > now.time.cpu} if self.timed else set()
        useful = self.useful[now.done] | under_way
        ram = tuple(e for e in now.ram if e[0] in useful)
        time = now.time.seen(frozenset(i for i, _ in ram))
        if not self.timed:  # only whether the storage is awake
            time = Time(0.0, 0.0 if self.wakes and time.channel >= time.cpu else -1.0)
        elif time.channel < time.cpu:
            time = replace(time, channel=-1.0)
        return replace(now, ram=ram, stored=now.stored & self.useful[now.done], time=time)

    def late(self, now: Moment) -> bool:
        limit = math.inf if self.deadline_s is None else self.deadline_s * (1 + 1e-9)
        return max(now.time.cpu + self.rest_s[now.done], now.time.channel) > limit

    def starts(self) -> Iterator[Ram]:
        if sum(self.sizes[i] for i in self.at_start) <= self.room:
            yield from (ram for ram, _ in self.rooms((), frozenset(self.at_start), tuple(self.at_start), 0))

    def ends(self, now: Moment, first: Ram) -> bool:
        there, began = now.there(), dict(first)
        moved = any(i in self.in_ram_at_end and began.get(i, offset) != offset for i, offset in now.ram)
        served = now.unread <= self.stored_at_end
        there_at_end = self.in_ram_at_end <= there and self.stored_at_end <= now.stored
        return now.done == self.count and there_at_end and served and not moved

    def least_j(self, states: list[int]) -> float | None:
        """The least of all ways from any start."""
        found = [self._from(first, states) for first in self.starts()]
        return min((one for one in found if one is not None), default=None)

    def _from(self, first: Ram, states: list[int]) -> float | None:
        taken = self._with_blocks(Moment(0, first, self.stored, Time()), set(self.stored))
        if taken is None:
            return None
        start = Moment(0, first, self.stored, Time(), taken=taken)
        ticket = itertools.count()
        queue = [(0.0, 0, next(ticket), start)]
        known: dict[object, list[tuple[float, ...]]] = {}
        while queue:
            joules, _, _, now = heapq.heappop(queue)
            key, times = self._labels(now)
            front = known.setdefault(key, [])
            if any(all(a <= b for a, b in zip(other, times, strict=True)) for other in front):
                continue
            front.append(times)
            if self.ends(now, first):
                return joules
            states[0] += 1
            if states[0] > MOST_STATES:
                raise TooManyStatesError
            for more, after in self.moves(now):
                if not self.late(after):
                    heapq.heappush(queue, (joules + more, -after.done, next(ticket), after))
        return None

    def _labels(self, now: Moment) -> tuple[object, tuple[float, ...]]:
        """What has to be equal, and what is better the less it is."""
        time, fixed = now.time, (now.done, now.ram, now.stored, now.unread, now.taken)
        if not self.timed:
            return (*fixed, time.channel), ()
        if self.wakes:  # a transfer that ends later may save a waking
            awake = time.channel - time.cpu if time.channel >= time.cpu else -1.0
            lags = tuple((i, end - time.cpu) for i, end in (*time.come, *(pair for pair in time.settled)))
            return (*fixed, awake, len(time.come), lags), (time.cpu,) if self.deadline_s is not None else ()
        come, settled = dict(time.come), dict(time.settled)
        ends = [max(own.get(i, 0.0), time.cpu) for own in (come, settled) for i, _ in now.ram]
        return fixed, (time.cpu, max(time.channel, time.cpu), *ends)


def least_overhead_j(
    problem: Problem,
    ram_bytes: int,
    deadline_s: float | None = None,
    *,
    placed: bool = False,
    serving: bool = False,
    remat: bool = True,
    paging: bool = True,
) -> float | None:
    """Joules beyond one compute of each operator; None where no plan exists. Raises TooManyStatesError.

    What is carried and has its home on storage may also stay in RAM from step to step: all sets of such are tried.

    placed
        Whether every buffer needs a place of its own in the arena; else only sums of bytes count.
    serving
        Whether each copy that is written is read, or carried: no transfer only keeps the storage awake.
    """
    if not remat:
        problem = replace(problem, operators=tuple(replace(o, recomputable=False) for o in problem.operators))
    problem = replace(problem, paging=problem.paging and paging)
    assert not any(o.takes for o in problem.operators)
    assert all(way.energy_j >= o.energy_j for o in problem.operators for way in o.variants)
    able = [i for i, t in enumerate(problem.tensors) if t.home is Home.STORAGE and t.carried and not t.of_batch]
    sets = itertools.chain.from_iterable(itertools.combinations(able, n) for n in range(len(able) + 1))
    states = [0]
    found = [
        _Search(problem, ram_bytes, deadline_s, frozenset(stays), placed, serving).least_j(states) for stays in sets
    ]
    return min((one for one in found if one is not None), default=None)
