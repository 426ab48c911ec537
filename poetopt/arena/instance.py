"""One problem, and one answer to it: what the methods hand to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poetopt.arena.bound import lower_bound

Ints = NDArray[np.int64]

UNPLACED = np.iinfo(np.int64).max // 4
"""The offset of a buffer without one: above all others, and a size can be added to it."""


@dataclass(frozen=True, eq=False)
class Instance:
    """Buffers of at least one byte and one instant each.

    sizes, starts, ends, alignment
        As given to `pack`.
    rounded
        Sizes rounded up to the alignment: what a buffer keeps others from.
    near
        For each buffer, those that live at some time together with it, ascending.
    bound
        The lower bound on the arena, in bytes.
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
        """The instance of these buffers."""
        size = np.array(sizes, dtype=np.int64)
        begin, end = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
        near = []
        for k in range(len(sizes)):
            together = (begin < end[k]) & (begin[k] < end)
            together[k] = False
            near.append(np.flatnonzero(together))
        rounded = -(-size // alignment) * alignment
        return cls(sizes, starts, ends, alignment, rounded, near, lower_bound(sizes, starts, ends, alignment))


@dataclass(frozen=True, eq=False)
class Layout:
    """Offsets of all buffers, and the size of their arena (the largest offset + size), in bytes."""

    offsets: Ints
    arena: int

    @classmethod
    def of(cls, instance: Instance, offsets: Ints) -> Layout:
        """The layout of these offsets."""
        return cls(offsets, int((offsets + np.array(instance.sizes, dtype=np.int64)).max()))
