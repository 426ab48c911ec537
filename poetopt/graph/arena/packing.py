"""Choice of methods for the offsets of buffers with known lifetimes, and when a result suffices.

Greedy orders come first, then an exact search if there are few buffers, else repair and ejection. If there are too many
buffers to compare in pairs, each goes into the tightest gap between the live ones, in the order of time; both
directions are tried, because a step's lifetimes are nested. A tensor that is in RAM at the start and the end of a step
has one offset: its two stays are placed as one buffer, which has the neighbours of both.
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
"""Maximum pairs of buffers that live together for all methods but `stream`: with more they take seconds."""


def pairs(starts: Sequence[int], ends: Sequence[int]) -> int:
    """Return the number of pairs of buffers that are alive together at some instant."""
    begins = np.sort(np.array(starts, dtype=np.int64))
    # A buffer meets those that begin during its life; of two that begin at once the later one counts the earlier.
    later = np.searchsorted(begins, np.array(ends, dtype=np.int64)) - np.searchsorted(begins, starts, side="right")
    _, same_start = np.unique(begins, return_counts=True)
    return int(later.sum() + (same_start * (same_start - 1) // 2).sum())


def stream(sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int], alignment: int) -> list[int]:
    """Return offsets in the order of time; time and memory grow with n log n."""
    rounded = [-(-size // alignment) * alignment for size in sizes]
    forward = _first_free(rounded, starts, ends)
    backward = _first_free(rounded, [-end for end in ends], [-start for start in starts])
    return min(forward, backward, key=lambda offsets: max(map(sum, zip(offsets, sizes, strict=True))))


def _first_free(rounded: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return offsets for one direction; of buffers that begin at once the longest-lived come first."""
    order = sorted(range(len(rounded)), key=lambda k: (starts[k], -ends[k], -rounded[k], k))
    leaving = sorted(range(len(rounded)), key=lambda k: ends[k])
    offsets, free, left = [0] * len(rounded), _Gaps(), 0
    for k in order:
        while ends[leaving[left]] <= starts[k]:
            ended = leaving[left]
            free.give(offsets[ended], rounded[ended])
            left += 1
        offsets[k] = free.take(rounded[k])
    return offsets


class _Gaps:
    """Gaps below `top`, by offset and by size; everything above `top` is free."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        self._begins: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        """Allocate in the lowest of the tightest gaps, or at the top; return the offset."""
        place = bisect_left(self._by_size, (nbytes, -1))
        if place < len(self._by_size):
            room, begin = self._by_size[place]
            self._remove(begin, begin + room)
            if room > nbytes:
                self._add(begin + nbytes, begin + room)
            return begin
        begin = self._begins.get(self.top, self.top)  # a gap that ends at the top is extended
        if begin < self.top:
            self._remove(begin, self.top)
        self.top = begin + nbytes
        return begin

    def give(self, begin: int, nbytes: int) -> None:
        """Free a buffer's bytes, merging them with neighbouring gaps."""
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
    """Return the best layout of all orders and rules, or the first of at most `goal` bytes; and its order."""
    best: Ints = np.zeros(len(instance.sizes), dtype=np.int64)
    arena, best_order = UNPLACED, []
    for order in _orders(instance):
        for tight in (False, True):
            offsets = _place_in_order(instance, order, tight, arena)
            if offsets is not None:
                best, arena, best_order = offsets, Layout.of(instance, offsets).arena, order
            if arena <= goal:
                break
        if arena <= goal:
            break
    return Layout(best, arena), best_order


def _orders(instance: Instance) -> list[list[int]]:
    """Return orders to place in, the one that most often reaches the bound first."""
    sizes, starts, ends = instance.sizes, instance.starts, instance.ends
    load = _peak_loads(instance)
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda k: (-sizes[k], starts[k]),
        lambda k: (-sizes[k] * (ends[k] - starts[k]), starts[k]),
        lambda k: (-load[k], -sizes[k]),
        lambda k: (-load[k], starts[k] - ends[k]),
        lambda k: (starts[k] - ends[k], -sizes[k]),
        lambda k: (starts[k], -ends[k], -sizes[k]),
    )
    return [sorted(range(len(sizes)), key=lambda k, key=key: (*key(k), k)) for key in keys]  # type: ignore[misc]


def _peak_loads(instance: Instance) -> list[int]:
    """Return, for each buffer, the highest sum of live sizes during its life (greedy by breadth)."""
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


def _place_in_order(instance: Instance, order: list[int], tight: bool, arena: int) -> Ints | None:
    """Return offsets whose arena is smaller than `arena`, or None as soon as one buffer ends beyond it."""
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
    """Return the lowest offset at which buffer `k` fits: in the lowest gap, or (`tight`) in the smallest one.

    `offsets` of unplaced buffers are UNPLACED, their `tops` (offset + rounded size) 0.
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
"""Maximum number of placements in all."""
FIRST_SHARE = 0.2
MIN_SHARE = 0.005
"""Smallest share of the possible gain to try for."""


def repair(instance: Instance, layout: Layout, order: list[int], goal: int, until: float = inf) -> Layout:
    """Return a layout with a smaller arena than `layout`, at best of `goal` bytes, or `layout` if none is found.

    `order` is the greedy order of `layout`. The limit is lowered step by step, by a smaller share of the remaining gain
    after each failure, until the moment `until`.
    """
    spent, share = 0, FIRST_SHARE
    while goal < layout.arena and spent < PLACEMENTS and share > MIN_SHARE and monotonic() < until:
        limit = layout.arena - 1 - int((layout.arena - 1 - goal) * share)
        count, new_order, offsets = _fit(instance, list(order), limit, max(len(order), PLACEMENTS // 6))
        spent += count
        if offsets is None:
            share /= 2
        else:
            order, layout = new_order, Layout.of(instance, offsets)
    return layout


def _fit(instance: Instance, order: list[int], limit: int, placements: int) -> tuple[int, list[int], Ints | None]:
    """Place all buffers in `order` under `limit`; return the number of placements, the order, and offsets or None.

    A buffer that would end beyond the limit moves forward (half the way to the front, then half of that, ...), and the
    buffers after its new place are placed again.
    """
    offsets: Ints = np.full(len(order), UNPLACED, dtype=np.int64)
    tops: Ints = np.zeros(len(order), dtype=np.int64)
    moves = [0] * len(order)
    count = position = 0
    while position < len(order):
        k = order[position]
        offset = gap(instance, k, offsets, tops, tight=False)
        count += 1
        if offset + instance.sizes[k] <= limit:
            offsets[k] = offset
            tops[k] = offset + instance.rounded[k]
            position += 1
            continue
        if count > placements:
            return count, order, None
        moves[k] += 1
        back = position >> moves[k]
        offsets[order[back:position]] = UNPLACED
        tops[order[back:position]] = 0
        del order[position]
        order.insert(back, k)
        position = back
    return count, order, offsets


FEW_BUFFERS = 12
"""Maximum number of buffers for a complete search right after the greedy orders."""
PLACEMENTS_SEARCHED = 30_000
"""Maximum number of placements of that exact search."""
DIVES = 5
"""Placements per buffer of the exact search under a target: little more than one descent in each order. Measured on
plans of Moccasin's random graph of 250 operators: these reach an arena of 1.02 to 1.04 times the peak, ejection 1.035
to 1.07."""


def searched(instance: Instance, together: list[Ints], best: Layout, goal: int, most: int) -> tuple[Layout, bool]:
    """Return the best layout of an exact search, or `best`, and whether it is proven optimal for `goal`.

    The search first asks for the goal. If there is no such layout, it bisects between the refuted limit and the best
    arena, until nothing is left between, or a search ends without an answer.
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
    """Return the instance with each pair joined to one buffer, and each buffer's index in it.

    Parameters
    ----------
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
"""Without a target, a gain below 1/`SLACK` of the bound isn't tried for, because it may take seconds."""


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

    Parameters
    ----------
    sizes
        Bytes of each buffer; a buffer of 0 bytes gets offset 0.
    starts, ends
        Buffer k is alive at the times starts[k] <= t < ends[k].
    alignment
        Every offset is a multiple of it.
    target
        Size of an arena that is small enough to stop at. None: as small as possible.
    quick
        Whether ejection takes at most tenths of a second, instead of five seconds.
    brief
        Whether packing takes hundredths of a second, with a few short ejections only. For buffers that are packed anew
        at every reading.
    placements
        Maximum placements of the exact search, if all else fails and there are up to `exact.MOST_BUFFERS` buffers;
        about 20,000 take a second. By default none.
    until
        Moment (of `time.monotonic`) after which no smaller arena is searched for.
    shared
        Pairs of buffers with one offset: of one size, not alive together, and none in two pairs.

    Returns
    -------
    tuple
        Offsets, and the size of the arena (the largest offset + size).
    """
    kept = [k for k, size in enumerate(sizes) if size > 0 and starts[k] < ends[k]]
    offsets = [0] * len(sizes)
    if not kept:
        return tuple(offsets), 0
    size, start, end = ([values[k] for k in kept] for values in (sizes, starts, ends))
    number = {k: place for place, k in enumerate(kept)}
    together = [(number[a], number[b]) for a, b in shared if a in number]
    is_large = pairs(start, end) > MOST_PAIRS
    if is_large and not together:
        for k, offset in zip(kept, stream(size, start, end, alignment), strict=True):
            offsets[k] = offset
        return tuple(offsets), max(offsets[k] + sizes[k] for k in kept)
    instance, places = join(Instance.of(size, start, end, alignment), together)
    goal = max(instance.bound, target or 0)
    layout, order = place(instance, goal)
    is_done = layout.arena <= goal
    alive = [] if is_large else [np.unique(places[members]) for members in exact.sections(start, end)]
    if not is_done and len(instance.sizes) <= FEW_BUFFERS:
        layout, is_done = searched(instance, alive, layout, goal, PLACEMENTS_SEARCHED)
    sufficient = goal + goal // SLACK if target is None else goal
    if not is_done and not is_large and layout.arena > sufficient and brief:
        layout = tighten(instance, layout, goal, until, *BRIEF)
    elif not is_done and not is_large and layout.arena > sufficient:
        first, is_small = layout, len(instance.sizes) <= exact.MOST_BUFFERS
        if target is not None and is_small:
            layout, _ = searched(instance, alive, layout, goal, DIVES * len(instance.sizes))
        if layout.arena > sufficient:
            layout = repair(instance, layout, order, goal, until)
        if target is not None and layout.arena > goal:
            # Ejection does better from the greedy layout than from the one that repair has exhausted.
            layout = hurry(instance, first, goal, until) or layout
        if not quick and layout.arena > sufficient:
            layout = tighten(instance, layout, goal, until)
        if is_small and placements and layout.arena > sufficient and monotonic() < until:
            layout, _ = searched(instance, alive, layout, goal, placements)
    for k, offset in zip(kept, layout.offsets[places].tolist(), strict=True):
        offsets[k] = offset
    return tuple(offsets), layout.arena
