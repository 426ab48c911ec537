"""Buffers in the order of time, each into the tightest gap between those alive: for more than can be compared.

The other methods hold for each buffer all that live with it, which grows with the square of their number. Here only
what is free at the moment is held. Both directions of time are tried: a step's lifetimes are nested, and looked at from
its end short-lived buffers come before those that outlive them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

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
