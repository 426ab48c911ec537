"""Offsets for buffers whose lifetimes are known: which method is asked, and when it is enough.

Greedy orders first, then an exact search where buffers are few, else a repair that gives way within a limit, and
ejection. Too many buffers to be compared in pairs go in the order of time, each into the tightest gap between those
alive; both directions are tried, as a step's lifetimes are nested. A tensor that is in RAM as a step begins and as it
ends has one offset: its two stays are placed as one buffer, which is near to all that either of them is near to.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

import numpy as np

from poetopt.graph.arena import exact
from poetopt.graph.arena.ejection import BRIEF, hurry, tighten
from poetopt.graph.arena.instance import UNPLACED, Instance, Ints, Layout

MOST_PAIRS = 1_000_000
"""Buffers that live together, counted in pairs, that the other methods are for: beyond, they take seconds."""


def pairs(starts: Sequence[int], ends: Sequence[int]) -> int:
    """How many pairs of buffers are alive together, each of them for an instant at least."""
    begins = np.sort(np.array(starts, dtype=np.int64))
    # A buffer lives with those that begin in its life; of two that begin at once the later one counts the earlier.
    later = np.searchsorted(begins, np.array(ends, dtype=np.int64)) - np.searchsorted(begins, starts, side="right")
    _, alike = np.unique(begins, return_counts=True)
    return int(later.sum() + (alike * (alike - 1) // 2).sum())


def stream(sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int], alignment: int) -> list[int]:
    """Offsets; time and memory grow with n log n."""
    rounded = [-(-size // alignment) * alignment for size in sizes]
    forward = _in_time(rounded, starts, ends)
    backward = _in_time(rounded, [-end for end in ends], [-start for start in starts])
    return min(forward, backward, key=lambda offsets: max(map(sum, zip(offsets, sizes, strict=True))))


def _in_time(rounded: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Offsets for one direction; of buffers that begin at once the longest-lived come first."""
    order = sorted(range(len(rounded)), key=lambda k: (starts[k], -ends[k], -rounded[k], k))
    leaving = sorted(range(len(rounded)), key=lambda k: ends[k])
    offsets, free, left = [0] * len(rounded), _Free(), 0
    for k in order:
        while ends[leaving[left]] <= starts[k]:
            gone = leaving[left]
            free.give(offsets[gone], rounded[gone])
            left += 1
        offsets[k] = free.take(rounded[k])
    return offsets


class _Free:
    """The gaps below `top`, by offset and by size; above it everything is free."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        self._begins: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        """The lowest of the tightest gaps, or the top."""
        place = bisect_left(self._by_size, (nbytes, -1))
        if place < len(self._by_size):
            room, begin = self._by_size[place]
            self._remove(begin, begin + room)
            if room > nbytes:
                self._add(begin + nbytes, begin + room)
            return begin
        begin = self._begins.get(self.top, self.top)  # a gap that ends at the top grows
        if begin < self.top:
            self._remove(begin, self.top)
        self.top = begin + nbytes
        return begin

    def give(self, begin: int, nbytes: int) -> None:
        """Make a buffer's bytes free, as one gap with its neighbours."""
        end = begin + nbytes
        if begin in self._begins:
            first = self._begins[begin]
            self._remove(first, begin)
            begin = first
        if end in self._ends:
            last = self._ends[end]
            self._remove(end, last)
            end = last
        self._add(begin, end)

    def _add(self, begin: int, end: int) -> None:
        insort(self._by_size, (end - begin, begin))
        self._ends[begin], self._begins[end] = end, begin

    def _remove(self, begin: int, end: int) -> None:
        del self._by_size[bisect_left(self._by_size, (end - begin, begin))]
        del self._ends[begin], self._begins[end]


def place(instance: Instance, goal: int) -> tuple[Layout, list[int]]:
    """The best of all orders and rules, or the first whose arena is at most `goal` bytes; and its order."""
    best: Ints = np.zeros(len(instance.sizes), dtype=np.int64)
    arena, best_order = UNPLACED, []
    for order in _orders(instance):
        for tight in (False, True):
            offsets = _in_order(instance, order, tight, arena)
            if offsets is not None:
                best, arena, best_order = offsets, Layout.of(instance, offsets).arena, order
            if arena <= goal:
                break
        if arena <= goal:
            break
    return Layout(best, arena), best_order


def _orders(instance: Instance) -> list[list[int]]:
    """Orders to place in, the one that most often reaches the bound first."""
    sizes, starts, ends = instance.sizes, instance.starts, instance.ends
    load = _load(instance)
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda k: (-sizes[k], starts[k]),
        lambda k: (-sizes[k] * (ends[k] - starts[k]), starts[k]),
        lambda k: (-load[k], -sizes[k]),
        lambda k: (-load[k], starts[k] - ends[k]),
        lambda k: (starts[k] - ends[k], -sizes[k]),
        lambda k: (starts[k], -ends[k], -sizes[k]),
    )
    return [sorted(range(len(sizes)), key=lambda k, key=key: (*key(k), k)) for key in keys]  # type: ignore[misc]


def _load(instance: Instance) -> list[int]:
    """For each buffer, the highest sum of sizes alive at a time of its life (greedy by breadth)."""
    times = sorted(set(instance.starts))
    index = {time: i for i, time in enumerate(times)}
    level = np.zeros(len(times) + 1, dtype=np.int64)
    since = [index[start] for start in instance.starts]
    until = np.searchsorted(times, instance.ends).tolist()
    for size, first, end in zip(instance.sizes, since, until, strict=True):
        level[first] += size
        level[end] -= size
    level = np.cumsum(level)
    return [int(level[first:end].max()) for first, end in zip(since, until, strict=True)]


def _in_order(instance: Instance, order: list[int], tight: bool, arena: int) -> Ints | None:
    """Offsets whose arena is smaller than `arena`, or None as soon as one buffer ends beyond."""
    offsets: Ints = np.full(len(order), UNPLACED, dtype=np.int64)
    tops: Ints = np.zeros(len(order), dtype=np.int64)
    for k in order:
        offset = gap(instance, k, offsets, tops, tight=tight)
        if offset + instance.sizes[k] >= arena:
            return None
        offsets[k] = offset
        tops[k] = offset + instance.rounded[k]
    return offsets


def gap(instance: Instance, k: int, offsets: Ints, tops: Ints, *, tight: bool) -> int:
    """Where buffer k fits: the offset of the lowest gap, or of the smallest one (the lowest of those).

    `offsets` of buffers that don't lie anywhere yet are UNPLACED, their `tops` (offset + rounded size) 0.
    """
    near = instance.near[k]
    if not near.size:
        return 0
    below = offsets[near]
    order = below.argsort()
    below = below[order]
    floors = np.empty_like(below)
    floors[0] = 0
    if below.size > 1:
        np.maximum.accumulate(tops[near[order[:-1]]], out=floors[1:])
    rooms = below - floors
    fits = rooms >= instance.sizes[k]
    first = int(fits.argmax())
    if not fits[first]:
        return int(max(floors[-1], tops[near[order[-1]]]))
    if tight:
        first = int(np.where(fits, rooms, UNPLACED).argmin())
    return int(floors[first])


PLACEMENTS = 50_000
"""How many placements may be spent in all."""
FIRST_SHARE = 0.2
MIN_SHARE = 0.005
"""It gives up when it fails to gain this fraction of what there is to gain."""


def repair(instance: Instance, layout: Layout, order: list[int], goal: int, until: float = inf) -> Layout:
    """A layout with a smaller arena than `layout`, at best of `goal` bytes, or `layout` where none is found.

    `order` is the one that greedy placement made `layout` in. Smaller arenas are asked for, first a little smaller,
    then by less of what is left to gain where that fails; none after the moment `until`.
    """
    spent, share = 0, FIRST_SHARE
    while goal < layout.arena and spent < PLACEMENTS and share > MIN_SHARE and monotonic() < until:
        limit = layout.arena - 1 - int((layout.arena - 1 - goal) * share)
        used, placed, offsets = _fit(instance, list(order), limit, max(len(order), PLACEMENTS // 6))
        spent += used
        if offsets is None:
            share /= 2
        else:
            order, layout = placed, Layout.of(instance, offsets)
    return layout


def _fit(instance: Instance, order: list[int], limit: int, placements: int) -> tuple[int, list[int], Ints | None]:
    """Place all in `order` under `limit`: the placements that it took, the order then, the offsets or None.

    A buffer that would end beyond moves forward (half the way to the front, then half of that, ...), and those
    after its new place are placed again.
    """
    offsets: Ints = np.full(len(order), UNPLACED, dtype=np.int64)
    tops: Ints = np.zeros(len(order), dtype=np.int64)
    moves = [0] * len(order)
    used = place = 0
    while place < len(order):
        k = order[place]
        offset = gap(instance, k, offsets, tops, tight=False)
        used += 1
        if offset + instance.sizes[k] <= limit:
            offsets[k] = offset
            tops[k] = offset + instance.rounded[k]
            place += 1
            continue
        if used > placements:
            return used, order, None
        moves[k] += 1
        back = place >> moves[k]
        offsets[order[back:place]] = UNPLACED
        tops[order[back:place]] = 0
        del order[place]
        order.insert(back, k)
        place = back
    return used, order, offsets


FEW_BUFFERS = 12
"""So few are searched completely, before anything else is tried."""
PLACEMENTS_SEARCHED = 30_000
"""Placements of the exact search."""
DIVES = 5
"""Placements of its first tries for each buffer, under a target: hardly more than one way down in each order. Measured
on plans of Moccasin's random graph of 250 operators, which they place in an arena of 1.02 to 1.04 of the peak where
ejection takes 1.035 to 1.07."""


def searched(instance: Instance, together: list[Ints], best: Layout, goal: int, most: int) -> tuple[Layout, bool]:
    """A better layout than `best`, or that, by an exact search; and whether nothing is left to gain.

    The goal is asked for first; where there is no such layout, what lies half way between what is refuted and what
    there is, until nothing does, or a search ends without an answer.
    """
    refuted, limit = goal - 1, goal
    while refuted + 1 < best.arena:
        offsets, final = exact.search(instance, together, limit, most)
        if offsets is not None:
            best = Layout.of(instance, offsets)
        elif final:
            refuted = limit
        else:
            return best, False
        limit = (refuted + best.arena) // 2
    return best, True


def join(instance: Instance, pairs: Sequence[tuple[int, int]]) -> tuple[Instance, Ints]:
    """The instance in which each pair is one buffer; and for each buffer of `instance`, the one that it is there.

    pairs
        Buffers of one size that don't live together; none is in two pairs.
    """
    first_of = {second: first for first, second in pairs}
    kept = [k for k in range(len(instance.sizes)) if k not in first_of]
    number = {k: place for place, k in enumerate(kept)}
    number |= {second: number[first] for second, first in first_of.items()}
    near: list[set[int]] = [set() for _ in kept]
    for k, others in enumerate(instance.near):
        near[number[k]].update(number[other] for other in others.tolist())
    starts, ends = list(instance.starts), list(instance.ends)
    for first, second in pairs:
        starts[first] = min(starts[first], starts[second])
        ends[first] = max(ends[first], ends[second])
    joined = Instance(
        sizes=[instance.sizes[k] for k in kept],
        starts=[starts[k] for k in kept],
        ends=[ends[k] for k in kept],
        alignment=instance.alignment,
        rounded=instance.rounded[kept],
        near=[np.array(sorted(others), dtype=np.int64) for others in near],
        bound=instance.bound,
    )
    return joined, np.array([number[k] for k in range(len(instance.sizes))])


SLACK = 2048
"""Without a target, nothing is tried for less than this fraction of the bound: it may take seconds."""


def pack(
    sizes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    alignment: int = 1,
    *,
    target: int | None = None,
    quick: bool = False,
    brief: bool = False,
    placements: int = 0,
    until: float = inf,
    shared: Sequence[tuple[int, int]] = (),
) -> tuple[tuple[int, ...], int]:
    """Place buffers so that those alive together don't overlap.

    sizes
        Bytes of each buffer; a buffer of 0 bytes lies at offset 0.
    starts, ends
        Buffer k is alive at the times starts[k] <= t < ends[k].
    alignment
        Every offset is a multiple of it.
    target
        An arena of this size is small enough: stop there. None: as small as can be found.
    quick
        Whether ejection takes tenths of a second at most, instead of five seconds.
    brief
        Whether hundredths of a second must do: a few short ejections alone. For what is packed anew at every reading.
    placements
        How many the exact search may try where all else fails and there are up to `exact.MOST_BUFFERS` buffers: some
        20,000 take a second. By default none.
    until
        The moment (of `time.monotonic`) at which nothing smaller is looked for any more.
    shared
        Pairs of buffers that get one offset: of one size, not alive together, and none in two pairs.

    Returns the offsets and the arena's size (the largest offset + size).
    """
    kept = [k for k, size in enumerate(sizes) if size > 0 and starts[k] < ends[k]]
    offsets = [0] * len(sizes)
    if not kept:
        return tuple(offsets), 0
    size, start, end = ([values[k] for k in kept] for values in (sizes, starts, ends))
    number = {k: place for place, k in enumerate(kept)}
    together = [(number[a], number[b]) for a, b in shared if a in number]
    many = pairs(start, end) > MOST_PAIRS
    if many and not together:
        for k, offset in zip(kept, stream(size, start, end, alignment), strict=True):
            offsets[k] = offset
        return tuple(offsets), max(offsets[k] + sizes[k] for k in kept)
    instance, places = join(Instance.of(size, start, end, alignment), together)
    goal = max(instance.bound, target or 0)
    layout, order = place(instance, goal)
    settled = layout.arena <= goal
    alive = [] if many else [np.unique(places[members]) for members in exact.sections(start, end)]
    if not settled and len(instance.sizes) <= FEW_BUFFERS:
        layout, settled = searched(instance, alive, layout, goal, PLACEMENTS_SEARCHED)
    enough = goal + goal // SLACK if target is None else goal
    if not settled and not many and layout.arena > enough and brief:
        layout = tighten(instance, layout, goal, until, *BRIEF)
    elif not settled and not many and layout.arena > enough:
        first, few = layout, len(instance.sizes) <= exact.MOST_BUFFERS
        if target is not None and few:
            layout, _ = searched(instance, alive, layout, goal, DIVES * len(instance.sizes))
        if layout.arena > enough:
            layout = repair(instance, layout, order, goal, until)
        if target is not None and layout.arena > goal:
            # Ejection gets on better from what is far off than from what repair has tried its best with.
            layout = hurry(instance, first, goal, until) or layout
        if not quick and layout.arena > enough:
            layout = tighten(instance, layout, goal, until)
        if few and placements and layout.arena > enough and monotonic() < until:
            layout, _ = searched(instance, alive, layout, goal, placements)
    for k, offset in zip(kept, layout.offsets[places].tolist(), strict=True):
        offsets[k] = offset
    return tuple(offsets), layout.arena
