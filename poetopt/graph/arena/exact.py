"""Exact search for offsets under a limit, after MiniMalloc.

Moffitt 2023, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning".

Buffers are placed in ascending order of offsets, each on top of the placed buffers that live with it: any layout can be
pushed down into that form. A section is a maximal set of buffers that live together. The search prunes a set of placed
buffers if a section has no room above its floor for its remaining buffers. A buffer is no candidate if another one
fits below it, nor before its twin. Remaining buffers that share no section are searched separately; a buffer without
unplaced neighbours keeps its place.

The order of trials decides, and the duration has a long tail. So three orders are tried in turn, each time with more
placements, and between them random orders are tried briefly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.graph.arena.instance import UNPLACED, Instance, Ints

MOST_BUFFERS = 600
"""Maximum number of buffers: the search recurses once per buffer."""
FIRST, GROWTH = 2_000, 5
"""Placements of an order's first try (at most all that are allowed), and the factor from each try to the next."""
POWERS, NOISE = (1.5, 1.5, 20.0), 0.3
"""Random orders: the highest powers of a buffer's life, size and fullest section in its key, and the standard deviation
of the key's logarithm. Measured on MiniMalloc's instance H, which none of the three orders solves."""


def sections(starts: Sequence[int], ends: Sequence[int]) -> list[Ints]:
    """Return the maximal sets of buffers that live together, in the order of time."""
    begin, end = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
    # The sets only grow until a buffer ends, so the largest is at the last beginning before that.
    begins, ending = np.unique(begin), np.unique(end)
    last = begins[np.unique(np.searchsorted(begins, ending) - 1)]
    return [np.flatnonzero((begin <= time) & (end > time)) for time in last.tolist()]


def search(instance: Instance, together: Sequence[Ints], limit: int, placements: int) -> tuple[Ints | None, bool]:
    """Return offsets with an arena of at most `limit` bytes, or None; and whether the answer is final.

    Parameters
    ----------
    together
        Buffers of each section.
    placements
        Maximum number of placements in all tries together.
    """
    remaining = placements
    for rank, limit_of_try in _tries(instance, together, -(-placements // 3)):
        attempt = _Attempt(instance, together, limit, rank, min(limit_of_try, remaining))
        try:
            fits = attempt.run()
        except _OutOfPlacements:
            remaining -= attempt.spent
            if remaining <= 0:
                break
            continue
        return attempt.offsets if fits else None, True
    return None, False


def _tries(instance: Instance, together: Sequence[Ints], most: int) -> Iterator[tuple[Ints, int]]:
    """Yield orders, each with the placements of its try, at first at most `most`.

    The three orders come in turn, with more placements each time. Before each next turn, as many placements are spent
    on random orders.
    """
    random, try_placements = Random(0), min(FIRST, most)
    orders, (width, size, fullest) = _ranks(instance, together)
    while True:
        yield from ((rank, try_placements) for rank in orders)
        try_placements *= GROWTH
        for _ in range(try_placements // FIRST):
            long, large, full = (random.uniform(0, power) for power in POWERS)
            noise = np.array([random.gauss(0, NOISE) for _ in instance.sizes])
            yield _rank(long * np.log(width) + large * np.log(size) + full * np.log(fullest) + noise), FIRST


def _rank(*keys: NDArray[Any]) -> Ints:
    """Return the position of each buffer by descending keys."""
    rank = np.empty(len(keys[0]), dtype=np.int64)
    rank[np.lexsort([-key for key in reversed(keys)])] = np.arange(len(rank))
    return rank


def _ranks(instance: Instance, together: Sequence[Ints]) -> tuple[list[Ints], tuple[Ints, Ints, Ints]]:
    """Return the position of each buffer in three orders; its lifetime, its size, and its fullest section."""
    sizes = instance.rounded
    width = np.array(instance.ends, dtype=np.int64) - np.array(instance.starts, dtype=np.int64)
    fullest = np.zeros(len(sizes), dtype=np.int64)
    for members in together:
        fullest[members] = np.maximum(fullest[members], sizes[members].sum())
    area = width * sizes
    orders = ((width, area, fullest), (fullest, area, width), (fullest, width, area))
    return [_rank(*keys) for keys in orders], (width, sizes, fullest)


class _OutOfPlacements(Exception):  # noqa: N818 - not an error
    """Raised when all placements of a try are used."""


class _Attempt:
    """Depth-first search in one order."""

    def __init__(self, instance: Instance, together: Sequence[Ints], limit: int, rank: Ints, placements: int) -> None:
        count = len(instance.sizes)
        self.sizes, self.rounded, self.near = np.array(instance.sizes, dtype=np.int64), instance.rounded, instance.near
        self.limit, self.rank, self.placements, self.spent = limit, rank, placements, 0
        self.slack = int((self.rounded - self.sizes).max())
        """Maximum bytes that the topmost buffer of a section may leave out of its rounding."""
        self.members = np.concatenate(together)
        self.begins = np.cumsum([0, *map(len, together)])
        at: list[list[int]] = [[] for _ in range(count)]
        for place, members in enumerate(together):
            for k in members.tolist():
                at[k].append(place)
        self.at = [np.array(places) for places in at]
        self.first, self.last = (np.array([end(places) for places in at]) for end in (min, max))
        self.floors = np.zeros(count, dtype=np.int64)
        """Lowest offset of each remaining buffer, above those placed."""
        self.offsets = np.full(count, -1, dtype=np.int64)
        self.left = np.array([self.rounded[members].sum() for members in together])
        """Bytes of the remaining buffers of each section."""
        self.joined = np.zeros(len(together) + 1, dtype=np.int64)
        """Number of remaining buffers that live both in a section and in the one before."""
        for k in range(count):
            self.joined[self.first[k] + 1 : self.last[k] + 1] += 1
        self.twin = self._twins()

    def _twins(self) -> Ints:
        """Return the earlier buffer of the same size and sections for each buffer; -1 for none."""
        twin = np.full(len(self.sizes), -1, dtype=np.int64)
        last_of_kind: dict[tuple[int, tuple[int, ...]], int] = {}
        for k in np.argsort(self.rank).tolist():
            key = (int(self.sizes[k]), tuple(self.at[k].tolist()))
            twin[k] = last_of_kind.get(key, -1)
            last_of_kind[key] = k
        return twin

    def run(self) -> bool:
        """Place all buffers; return whether they fit. Raises _Spent."""
        parts = self._parts(np.arange(len(self.sizes)), 0, len(self.left))
        return all(self._descend(*part, 0, -1) for part in parts)

    def _parts(self, left: Ints, begin: int, end: int) -> list[tuple[Ints, int, int]]:
        """Return the independent parts of the buffers `left` in sections `begin` to `end`, with their sections."""
        cuts = [begin, *(begin + 1 + np.flatnonzero(self.joined[begin + 1 : end] == 0)).tolist(), end]
        parts = [(left, begin, end)]
        if len(cuts) > 2:
            first = self.first[left]
            parts = [(left[(first >= low) & (first < high)], low, high) for low, high in pairwise(cuts)]
        return [part for part in parts if part[0].size]

    def _descend(self, left: Ints, begin: int, end: int, lowest: int, rank: int) -> bool:
        for k in self._candidates(left, begin, end, lowest, rank):
            if self.spent == self.placements:
                raise _OutOfPlacements
            self.spent += 1
            near, offset = self.near[k], self.floors[k]
            before = self.floors[near]
            self._count_out(k, 1)
            self.offsets[k] = offset
            self.floors[near] = np.maximum(before, offset + self.rounded[k])
            rest = left[left != k]
            for part in self._parts(rest, begin, end):
                if not self._descend(*part, int(offset), int(self.rank[k])):
                    break
            else:
                return True
            for other in rest[self.offsets[rest] >= 0].tolist():  # placed by parts before the failed one
                self._unplace(other)
            self._unplace(k)
            self.floors[near] = before
            if not (self.offsets[near] < 0).any():  # the rest fails at any offset of this buffer
                return False
        return False

    def _candidates(self, left: Ints, begin: int, end: int, lowest: int, rank: int) -> list[int]:
        """Return the next buffers to try, the lowest first; none if a section has too little room."""
        floors = self.floors[left]
        tops = np.maximum(floors, lowest) + self.sizes[left]
        if tops.max() > self.limit:
            return []
        room = np.maximum(self.floors, lowest)
        room[self.offsets >= 0] = UNPLACED
        first, last = self.begins[begin], self.begins[end]
        needed = self.left[begin:end]
        ground = np.minimum.reduceat(room[self.members[first:last]], self.begins[begin:end] - first)
        if (ground + needed > self.limit + self.slack)[needed > 0].any():
            return []
        ranks, twins = self.rank[left], self.twin[left]
        lowest_top = (np.maximum(floors, lowest) + self.rounded[left]).min()
        fits = (floors < lowest_top) & ((floors > lowest) | ((floors == lowest) & (ranks > rank)))
        candidates = left[fits & ((twins < 0) | (self.offsets[twins] >= 0))]
        order: list[int] = candidates[np.lexsort((self.rank[candidates], self.floors[candidates]))].tolist()
        return order

    def _count_out(self, k: int, sign: int) -> None:
        """Remove buffer `k` from the remaining bytes of its sections (1), or add it again (-1)."""
        self.left[self.at[k]] -= sign * self.rounded[k]
        self.joined[self.first[k] + 1 : self.last[k] + 1] -= sign

    def _unplace(self, k: int) -> None:
        self.offsets[k] = -1
        self._count_out(k, -1)
        near = self.near[k]
        for other in (k, *near[self.offsets[near] < 0].tolist()):  # buffers above it had their floors raised too
            placed = self.near[other]
            placed = placed[self.offsets[placed] >= 0]
            self.floors[other] = (self.offsets[placed] + self.rounded[placed]).max() if placed.size else 0
