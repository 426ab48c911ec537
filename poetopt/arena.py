"""Offsets in one arena for buffers whose lifetimes are known."""

from __future__ import annotations

from collections.abc import Sequence


def pack(
    sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int], alignment: int = 1
) -> tuple[tuple[int, ...], int]:
    """Place buffers so that those alive together don't overlap.

    sizes
        Bytes of each buffer; a buffer of 0 bytes may lie anywhere.
    starts, ends
        Buffer k is alive at the times starts[k] <= t < ends[k].
    alignment
        Every offset is a multiple of it.

    Returns the offsets and the arena's size (the largest offset + size).
    """
    raise ValueError("arena packing has not been written yet")
