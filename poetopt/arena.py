"""Offsets in one arena for buffers whose lifetimes are known."""

from __future__ import annotations

from collections.abc import Sequence


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
    offsets = [0] * len(sizes)
    placed: list[int] = []
    arena = 0
    for k in sorted((k for k in range(len(sizes)) if sizes[k]), key=lambda k: (-sizes[k], starts[k], k)):
        others = sorted((offsets[j], sizes[j]) for j in placed if starts[j] < ends[k] and starts[k] < ends[j])
        offset = 0
        for other, size in others:
            if other - offset >= sizes[k]:
                break
            offset = max(offset, -(-(other + size) // alignment) * alignment)
        offsets[k] = offset
        arena = max(arena, offset + sizes[k])
        placed.append(k)
    return tuple(offsets), arena
