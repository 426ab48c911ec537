"""Offsets in one arena for buffers whose lifetimes are known.

This is dynamic storage allocation with all lifetimes given (NP-hard). The lower bound is the highest sum of
what is alive together, and real schedules nearly always reach it: buffers are placed one by one, each into
the lowest or the tightest gap left by those that live at the same time, in several orders. Where no
order reaches the bound, buffers that stick out are moved forward in the order and the rest is placed again; where
few buffers remain, a complete search decides. All work is counted, never timed: the same input gives
the same offsets everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

UNPLACED = np.iinfo(np.int64).max // 4
EXACT_BUFFERS = 12
"""Up to so many buffers the search is complete, unless it takes more than EXACT_NODES nodes."""
EXACT_NODES = 30_000
REPAIR_PLACEMENTS = 50_000
"""How many placements the repair may spend in all."""
MIN_SHARE = 0.005
"""The repair gives up when it fails to gain this fraction of what there is to gain."""


def pack(
    sizes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    alignment: int = 1,
    *,
    target: int | None = None,
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

    Returns the offsets and the arena's size (the largest offset + size).
    """
    kept = [k for k, size in enumerate(sizes) if size > 0 and starts[k] < ends[k]]
    offsets = [0] * len(sizes)
    if not kept:
        return tuple(offsets), 0
    packing = _Packing([sizes[k] for k in kept], [starts[k] for k in kept], [ends[k] for k in kept], alignment)
    found, arena = packing.solve(target)
    for k, offset in zip(kept, found, strict=True):
        offsets[k] = int(offset)
    return tuple(offsets), arena


def lower_bound(sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int], alignment: int = 1) -> int:
    """No arena is smaller: the highest sum of live sizes, rounded up to the alignment but for the topmost buffer."""
    events = sorted(
        [(starts[k], 1, k) for k in range(len(sizes)) if sizes[k] and starts[k] < ends[k]]
        + [(ends[k], 0, k) for k in range(len(sizes)) if sizes[k] and starts[k] < ends[k]]
    )
    rounded = [-(-size // alignment) * alignment for size in sizes]
    live: set[int] = set()
    level = bound = 0
    for _, begins, k in events:
        if not begins:
            live.discard(k)
            level -= rounded[k]
            continue
        live.add(k)
        level += rounded[k]
        if level > bound:
            bound = max(bound, level - max(rounded[j] - sizes[j] for j in live))
    return bound


class _Packing:
    """One problem: sizes, lifetimes, who lives together, and the best offsets so far."""

    def __init__(self, sizes: list[int], starts: list[int], ends: list[int], alignment: int) -> None:
        self.count = len(sizes)
        self.alignment = alignment
        self.sizes, self.starts, self.ends = sizes, starts, ends
        self.bound = lower_bound(sizes, starts, ends, alignment)
        self.near = _neighbours(starts, ends)
        self.best: Ints = np.zeros(self.count, dtype=np.int64)
        self.arena = UNPLACED

    def solve(self, target: int | None) -> tuple[list[int], int]:
        """Offsets, and the size of their arena."""
        goal = max(self.bound, target or 0)
        best_order: list[int] = []
        for order in self.orders():
            for tight in (False, True):
                if self.place_all(order, tight):
                    best_order = order
                if self.arena <= goal:
                    return self.best.tolist(), self.arena
        if self.count <= EXACT_BUFFERS:
            self.search(goal)
        else:
            self.repair(best_order, goal)
        return self.best.tolist(), self.arena

    def orders(self) -> list[list[int]]:
        """Orders to place in, the one that most often reaches the bound first."""
        sizes, starts, ends = self.sizes, self.starts, self.ends
        load = self.load()
        keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
            lambda k: (-sizes[k], starts[k]),
            lambda k: (-sizes[k] * (ends[k] - starts[k]), starts[k]),
            lambda k: (-load[k], -sizes[k]),
            lambda k: (-load[k], starts[k] - ends[k]),
            lambda k: (starts[k] - ends[k], -sizes[k]),
            lambda k: (starts[k], -ends[k], -sizes[k]),
        )
        return [sorted(range(self.count), key=lambda k, key=key: (*key(k), k)) for key in keys]  # type: ignore[misc]

    def load(self) -> list[int]:
        """For each buffer, the highest sum of sizes alive at a time of its life (greedy by breadth)."""
        times = sorted(set(self.starts))
        place = {time: i for i, time in enumerate(times)}
        level = np.zeros(len(times) + 1, dtype=np.int64)
        until = np.searchsorted(times, self.ends)
        for k in range(self.count):
            level[place[self.starts[k]]] += self.sizes[k]
            level[until[k]] -= self.sizes[k]
        level = np.cumsum(level)
        return [int(level[place[self.starts[k]] : until[k]].max()) for k in range(self.count)]

    def gap(self, k: int, offsets: Ints, tops: Ints, tight: bool) -> int:
        """Where buffer k fits: the lowest gap, or the smallest one (the lowest of those)."""
        near = self.near[k]
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
        fits = rooms >= self.sizes[k]
        first = int(fits.argmax())
        if not fits[first]:
            return int(max(floors[-1], tops[near[order[-1]]]))
        if tight:
            first = int(np.where(fits, rooms, UNPLACED).argmin())
        return int(floors[first])

    def place_all(self, order: list[int], tight: bool) -> bool:
        """Place all buffers; whether that beats the best arena (it gives up as soon as it can't)."""
        offsets: Ints = np.full(self.count, UNPLACED, dtype=np.int64)
        tops: Ints = np.zeros(self.count, dtype=np.int64)
        arena = 0
        for k in order:
            offset = self.gap(k, offsets, tops, tight)
            top = offset + self.sizes[k]
            if top >= self.arena:
                return False
            arena = max(arena, top)
            offsets[k] = offset
            tops[k] = -(-top // self.alignment) * self.alignment
        self.best, self.arena = offsets, arena
        return True

    def repair(self, order: list[int], goal: int) -> None:
        """Ask for smaller arenas, first a little smaller, then less of what is left to gain where that fails."""
        spent, share = 0, 0.2
        while goal < self.arena and spent < REPAIR_PLACEMENTS and share > MIN_SHARE:
            limit = self.arena - 1 - int((self.arena - 1 - goal) * share)
            used, placed = self.fit(list(order), limit, max(self.count, REPAIR_PLACEMENTS // 6))
            spent += used
            if placed is None:
                share /= 2
            else:
                order = placed

    def fit(self, order: list[int], limit: int, placements: int) -> tuple[int, list[int] | None]:
        """Try to place all under `limit`; how many placements it took, and the order that worked.

        A buffer that would stick out moves forward (half the way to the front, then half of that, ...), and those
        after its new place are placed again.
        """
        offsets: Ints = np.full(self.count, UNPLACED, dtype=np.int64)
        tops: Ints = np.zeros(self.count, dtype=np.int64)
        bumps = [0] * self.count
        used = place = 0
        while place < self.count:
            k = order[place]
            offset = self.gap(k, offsets, tops, False)
            used += 1
            top = offset + self.sizes[k]
            if top <= limit:
                offsets[k] = offset
                tops[k] = -(-top // self.alignment) * self.alignment
                place += 1
                continue
            if used > placements:
                return used, None
            bumps[k] += 1
            back = place >> bumps[k]
            offsets[order[back:place]] = UNPLACED
            tops[order[back:place]] = 0
            del order[place]
            order.insert(back, k)
            place = back
        self.best, self.arena = offsets, max(int(offsets[k]) + self.sizes[k] for k in range(self.count))
        return used, order

    def search(self, goal: int) -> None:
        """Complete search: in ascending order of offsets, each buffer on top of those placed that live with it.

        Some optimal placement has that form (push every buffer down as far as it goes).
        """
        near = [set(neighbours.tolist()) for neighbours in self.near]
        offsets = [-1] * self.count
        nodes = 0

        def descend(left: frozenset[int], lowest: int, last: int) -> bool:
            nonlocal nodes
            nodes += 1
            if not left:
                self.best = np.array(offsets, dtype=np.int64)
                self.arena = max(offset + size for offset, size in zip(offsets, self.sizes, strict=True))
                return self.arena <= goal
            floors = {k: self.floor(k, near[k], offsets) for k in left}
            for k in left:
                if max(floors[k], lowest) + self.sizes[k] >= self.arena:
                    return False
            for k in sorted(left, key=lambda k: (floors[k], -self.sizes[k], k)):
                if floors[k] < lowest or (floors[k] == lowest and k < last):
                    continue
                offsets[k] = floors[k]
                if descend(left - {k}, floors[k], k):
                    return True
                offsets[k] = -1
                if nodes > EXACT_NODES:
                    return True
            return False

        descend(frozenset(range(self.count)), 0, -1)

    def floor(self, k: int, near: set[int], offsets: list[int]) -> int:
        """The lowest aligned offset for k above all placed buffers that live with it."""
        top = max((offsets[j] + self.sizes[j] for j in near if offsets[j] >= 0), default=0)
        return -(-top // self.alignment) * self.alignment


def _neighbours(starts: list[int], ends: list[int]) -> list[Ints]:
    """For each buffer, those that live at some time together with it."""
    begin, end = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
    found = []
    for k in range(len(starts)):
        together = (begin < end[k]) & (begin[k] < end)
        together[k] = False
        found.append(np.flatnonzero(together))
    return found
