"""Input and result of packing, which its methods pass to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FEW = 4096
"""Maximum number of buffers to compare in pairs, which is simpler and as fast."""

UNPLACED = np.iinfo(np.int64).max // 4
"""Offset of an unplaced buffer: above all others, and small enough to add a size to it."""


def lower_bound(sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int], alignment: int = 1) -> int:
    """Return a lower bound on the arena, in bytes.

    It is the highest sum of live sizes, rounded up to the alignment except for the topmost buffer. Parameters are those
    of `poetopt.graph.arena.pack`.
    """
    events = sorted(
        [(starts[k], 1, k) for k in range(len(sizes)) if sizes[k] and starts[k] < ends[k]]
        + [(ends[k], 0, k) for k in range(len(sizes)) if sizes[k] and starts[k] < ends[k]]
    )
    rounded = [-(-size // alignment) * alignment for size in sizes]
    # A heap with the largest rounding of the live buffers on top; dead buffers are removed when they surface.
    roundings = [(sizes[k] - rounded[k], ends[k]) for k in range(len(sizes))]
    live: list[tuple[int, int]] = []
    level = bound = 0
    for time, begins, k in events:
        if not begins:
            level -= rounded[k]
            continue
        heappush(live, roundings[k])
        level += rounded[k]
        if level > bound:
            while live[0][1] <= time:
                heappop(live)
            bound = max(bound, level + live[0][0])
    return bound


@dataclass(frozen=True, eq=False)
class Instance:
    """Buffers of at least one byte and one instant each.

    Attributes
    ----------
    sizes, starts, ends, alignment
        As passed to `pack`.
    rounded
        Sizes rounded up to the alignment: the bytes that a buffer denies to others.
    near
        For each buffer, the buffers that live with it at some time, ascending.
    bound
        Lower bound on the arena, in bytes.
    """

    sizes: list[int]
    starts: list[int]
    ends: list[int]
    alignment: int
    rounded: Ints
    near: list[Ints]
    bound: int

    @classmethod
    def of(cls, sizes: list[int], starts: list[int], ends: list[int], alignment: int) -> Instance:
        """Return the instance of these buffers."""
        size = np.array(sizes, dtype=np.int64)
        near = _neighbours_by_pairs(starts, ends) if len(sizes) <= FEW else _neighbours_by_sweep(starts, ends)
        rounded = -(-size // alignment) * alignment
        return cls(sizes, starts, ends, alignment, rounded, near, lower_bound(sizes, starts, ends, alignment))


def _neighbours_by_pairs(starts: list[int], ends: list[int]) -> list[Ints]:
    """Return the neighbours of each buffer, by comparing all pairs."""
    begin, end = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
    near = []
    for k in range(len(starts)):
        together = (begin < end[k]) & (begin[k] < end)
        together[k] = False
        near.append(np.flatnonzero(together))
    return near


def _neighbours_by_sweep(starts: list[int], ends: list[int]) -> list[Ints]:
    """Return the neighbours of each buffer, in time proportional to their number, by a sweep over the starts."""
    order = np.argsort(np.array(starts, dtype=np.int64), kind="stable")
    later = np.searchsorted(np.array(starts, dtype=np.int64)[order], ends).tolist()
    near: list[Ints] = [order[:0]] * len(starts)
    alive: dict[int, None] = {}
    dying: list[tuple[int, int]] = []
    for place, k in enumerate(order.tolist()):
        while dying and dying[0][0] <= starts[k]:
            del alive[heappop(dying)[1]]
        before = np.fromiter(alive, np.int64, len(alive))
        near[k] = np.sort(np.concatenate((before, order[place + 1 : later[k]])))
        alive[k] = None
        heappush(dying, (ends[k], k))
    return near


@dataclass(frozen=True, eq=False)
class Layout:
    """Offsets of all buffers, and the size of their arena (the largest offset + size), in bytes."""

    offsets: Ints
    arena: int

    @classmethod
    def of(cls, instance: Instance, offsets: Ints) -> Layout:
        """Return the layout of these offsets."""
        return cls(offsets, int((offsets + np.array(instance.sizes, dtype=np.int64)).max()))
