"""Exact search for offsets under a limit, in the manner of MiniMalloc (Moffitt 2023, "MiniMalloc: A Lightweight Memory
Allocator for Hardware-Accelerated Machine Learning").

Buffers come in ascending order of offsets, each on top of those placed that live with it: any layout can be pushed down
into that form. A section is a set of buffers that live together and that no other such set contains. A search below a
set of placed buffers ends where a section has no room for what it still has to take above its floor. A buffer is no
candidate where another one fits below it, nor before its twin. What no unplaced buffer joins any more is searched
apart; a buffer with nothing unplaced beside it stays where it is.

Which order is tried first decides, and how long it takes has a long tail: three are tried in turn, each time with more
placements, and between them short tries of orders that are drawn.
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
"""The search calls itself as deep as there are buffers."""
FIRST, GROWTH = 2_000, 5
"""Placements of an order's first try, unless all tries together have fewer; each further one has so many times more."""
POWERS, NOISE = (1.5, 1.5, 20.0), 0.3
"""Of a drawn order: the highest powers of a buffer's life, size and fullest section in its key, and the standard
deviation of the key's logarithm. Measured on MiniMalloc's H, which no order of the three places."""


def sections(starts: Sequence[int], ends: Sequence[int]) -> list[Ints]:
    """The largest sets of buffers that live together, in the order of time."""
    begin, end = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
    # the sets only grow until a buffer ends: the last beginning before that has the largest
    begins, ending = np.unique(begin), np.unique(end)
    last = begins[np.unique(np.searchsorted(begins, ending) - 1)]
    return [np.flatnonzero((begin <= time) & (end > time)) for time in last.tolist()]


def search(instance: Instance, together: Sequence[Ints], limit: int, placements: int) -> tuple[Ints | None, bool]:
    """Offsets with an arena of at most `limit` bytes, or None; and whether the answer is final.

    together
        The buffers of each section.
    placements
        So many buffers may be placed, in all tries together.
    """
    left = placements
    for rank, most in _tries(instance, together, -(-placements // 3)):
        attempt = _Attempt(instance, together, limit, rank, min(most, left))
        try:
            found = attempt.run()
        except _Spent:
            left -= attempt.spent
            if left <= 0:
                break
            continue
        return attempt.offsets if found else None, True
    return None, False


def _tries(instance: Instance, together: Sequence[Ints], most: int) -> Iterator[tuple[Ints, int]]:
    """Orders, each with the placements of its try, which is at most `most` at first.

    The three orders in turn, with more placements each time; before that, as many in all go to orders that are drawn.
    """
    random, tried = Random(0), min(FIRST, most)
    orders, (width, size, fullest) = _ranks(instance, together)
    while True:
        yield from ((rank, tried) for rank in orders)
        tried *= GROWTH
        for _ in range(tried // FIRST):
            long, large, full = (random.uniform(0, power) for power in POWERS)
            noise = np.array([random.gauss(0, NOISE) for _ in instance.sizes])
            yield _rank(long * np.log(width) + large * np.log(size) + full * np.log(fullest) + noise), FIRST


def _rank(*keys: NDArray[Any]) -> Ints:
    """The place of each buffer, by descending keys."""
    rank = np.empty(len(keys[0]), dtype=np.int64)
    rank[np.lexsort([-key for key in reversed(keys)])] = np.arange(len(rank))
    return rank


def _ranks(instance: Instance, together: Sequence[Ints]) -> tuple[list[Ints], tuple[Ints, Ints, Ints]]:
    """The place of each buffer in three orders; how long it lives, its size, and the fullest of its sections."""
    sizes = instance.rounded
    width = np.array(instance.ends, dtype=np.int64) - np.array(instance.starts, dtype=np.int64)
    fullest = np.zeros(len(sizes), dtype=np.int64)
    for members in together:
        fullest[members] = np.maximum(fullest[members], sizes[members].sum())
    area = width * sizes
    orders = ((width, area, fullest), (fullest, area, width), (fullest, width, area))
    return [_rank(*keys) for keys in orders], (width, sizes, fullest)


class _Spent(Exception):  # noqa: N818 - it is no error
    """All placements of a try are spent."""


class _Attempt:
    """A depth-first search in one order."""

    def __init__(self, instance: Instance, together: Sequence[Ints], limit: int, rank: Ints, placements: int) -> None:
        count = len(instance.sizes)
        self.sizes, self.rounded, self.near = np.array(instance.sizes, dtype=np.int64), instance.rounded, instance.near
        self.limit, self.rank, self.placements, self.spent = limit, rank, placements, 0
        self.slack = int((self.rounded - self.sizes).max())
        """Bytes that the topmost buffer of a section may leave out of its rounding, at most."""
        self.members = np.concatenate(together)
        self.begins = np.cumsum([0, *map(len, together)])
        at: list[list[int]] = [[] for _ in range(count)]
        for place, members in enumerate(together):
            for k in members.tolist():
                at[k].append(place)
        self.at = [np.array(places) for places in at]
        self.first, self.last = (np.array([end(places) for places in at]) for end in (min, max))
        self.floors = np.zeros(count, dtype=np.int64)
        """The lowest offset of each buffer that is left, on those placed."""
        self.offsets = np.full(count, -1, dtype=np.int64)
        self.left = np.array([self.rounded[members].sum() for members in together])
        """Bytes that each section still has to take."""
        self.joined = np.zeros(len(together) + 1, dtype=np.int64)
        """Buffers left that live both in the section before a place and in the one there."""
        for k in range(count):
            self.joined[self.first[k] + 1 : self.last[k] + 1] += 1
        self.twin = self._twins()

    def _twins(self) -> Ints:
        """The buffer of the same size and sections that goes before each; -1 for none."""
        twin = np.full(len(self.sizes), -1, dtype=np.int64)
        alike: dict[tuple[int, tuple[int, ...]], int] = {}
        for k in np.argsort(self.rank).tolist():
            key = (int(self.sizes[k]), tuple(self.at[k].tolist()))
            twin[k] = alike.get(key, -1)
            alike[key] = k
        return twin

    def run(self) -> bool:
        """Place all. Raises _Spent."""
        parts = self._parts(np.arange(len(self.sizes)), 0, len(self.left))
        return all(self._descend(*part, 0, -1) for part in parts)

    def _parts(self, left: Ints, begin: int, end: int) -> list[tuple[Ints, int, int]]:
        """The parts of what is left in the sections from `begin` to before `end`, with the sections of each."""
        cuts = [begin, *(begin + 1 + np.flatnonzero(self.joined[begin + 1 : end] == 0)).tolist(), end]
        parts = [(left, begin, end)]
        if len(cuts) > 2:
            first = self.first[left]
            parts = [(left[(first >= here) & (first < there)], here, there) for here, there in pairwise(cuts)]
        return [part for part in parts if part[0].size]

    def _descend(self, left: Ints, begin: int, end: int, lowest: int, rank: int) -> bool:
        for k in self._candidates(left, begin, end, lowest, rank):
            if self.spent == self.placements:
                raise _Spent
            self.spent += 1
            near, offset = self.near[k], self.floors[k]
            before = self.floors[near]
            self._move(k, 1)
            self.offsets[k] = offset
            self.floors[near] = np.maximum(before, offset + self.rounded[k])
            rest = left[left != k]
            for part in self._parts(rest, begin, end):
                if not self._descend(*part, int(offset), int(self.rank[k])):
                    break
            else:
                return True
            for other in rest[self.offsets[rest] >= 0].tolist():  # parts that were placed before one that failed
                self._take_back(other)
            self._take_back(k)
            self.floors[near] = before
            if not (self.offsets[near] < 0).any():  # wherever it lies, the rest fails
                return False
        return False

    def _candidates(self, left: Ints, begin: int, end: int, lowest: int, rank: int) -> list[int]:
        """The next buffers to be tried, the lowest first; none where a section has too little room."""
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
        found = left[fits & ((twins < 0) | (self.offsets[twins] >= 0))]
        order: list[int] = found[np.lexsort((self.rank[found], self.floors[found]))].tolist()
        return order

    def _move(self, k: int, sign: int) -> None:
        """Take buffer k out of what its sections have left (1), or back into it (-1)."""
        self.left[self.at[k]] -= sign * self.rounded[k]
        self.joined[self.first[k] + 1 : self.last[k] + 1] -= sign

    def _take_back(self, k: int) -> None:
        self.offsets[k] = -1
        self._move(k, -1)
        near = self.near[k]
        for other in (k, *near[self.offsets[near] < 0].tolist()):  # what lay on it has raised its own, too
            placed = self.near[other]
            placed = placed[self.offsets[placed] >= 0]
            self.floors[other] = (self.offsets[placed] + self.rounded[placed]).max() if placed.size else 0
