"""What a streamed operand takes: its buffer in RAM, and its transfers, one by one.

Storage moves whole blocks. A tensor whose chunks are runs of bytes goes through a *window*: a buffer that begins with
a block and moves on with the chunks, so that each block is read once a pass, and written once. Where a chunk is many
pieces, each is a transfer of its own, and has to begin and end with a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd

BLOCK_BYTES = 512
"""Of an SD card, and of the storage that `po_read` and `po_write` speak of."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of the buffer, and how many transfers there are of each size."""

    buffer_bytes: int
    reads: Mapping[int, int] = field(default_factory=dict)
    writes: Mapping[int, int] = field(default_factory=dict)


@lru_cache(maxsize=65536)
def run(total: int, chunk: int, passes: int, reads: bool, writes: bool) -> Traffic:
    """A tensor of `total` bytes in chunks of `chunk` bytes, from its begin to its end, `passes` times.

    Just what `po_window_to` and `po_window_out` of po_stream.h do.
    """
    read: Counter[int] = Counter()
    write: Counter[int] = Counter()
    start = end = buffer = 0
    for number in range(min(passes, 2)):
        times = 1 if number == 0 else passes - 1  # all passes after the first begin where the first one ended
        for begin in range(0, total, chunk):
            to = min(total, begin + chunk)
            first = begin // BLOCK_BYTES * BLOCK_BYTES
            if first < start:
                start = end = first
            start, end = first, max(end, first)
            if not reads:
                end = to
            elif end < to:
                limit = min(total, _ceil(to))
                read[limit - end] += times
                end = limit
            buffer = max(buffer, end - start, to - start)
            limit = to if to == total else to // BLOCK_BYTES * BLOCK_BYTES
            if writes and limit > start:
                write[limit - start] += times
    return Traffic(buffer, dict(read), dict(write))


@lru_cache(maxsize=65536)
def pieces(extent: int, unit: int, count: int, chunk: int, passes: int, reads: bool, writes: bool) -> Traffic:
    """A tensor whose chunks are `count` pieces each, of `chunk` of `extent` steps of `unit` bytes."""
    moved: Counter[int] = Counter()
    for begin in range(0, extent, chunk):
        moved[(min(extent, begin + chunk) - begin) * unit] += count * passes
    return Traffic(min(chunk, extent) * unit * count, dict(moved) if reads else {}, dict(moved) if writes else {})


def piece_multiple(extent: int, unit: int) -> int:
    """What chunks have to be a multiple of for pieces to begin and end with blocks; 0 where they can't."""
    if extent * unit % BLOCK_BYTES:
        return 0
    return BLOCK_BYTES // gcd(BLOCK_BYTES, unit)


def _ceil(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
