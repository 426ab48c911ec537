"""Describes what a streamed operand takes: its buffer in RAM, and its transfers, one by one.

Storage moves whole blocks. A tensor whose chunks are runs of bytes goes through a *window*: a buffer that begins with
a block and moves on with the chunks, so that each block is read once a pass, and written once. Where a chunk is many
pieces, each is a transfer of its own, and has to begin and end with a block, or has a window of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd

from poetopt.ops.runtimes.c.kernel import ALIGNMENT
from poetopt.ops.runtimes.c.tiling import Rows

BLOCK_BYTES = 512
"""Of an SD card, and of the storage that `po_read` and `po_write` speak of."""
Visits = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Of each round how often it is made, and where its sweeps begin and end, in steps."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of the buffer, and how many transfers there are of each size."""

    buffer_bytes: int
    reads: Mapping[int, int] = field(default_factory=dict)
    writes: Mapping[int, int] = field(default_factory=dict)


@lru_cache(maxsize=65536)
def run(total: int, chunk: int, passes: int, reads: bool, writes: bool) -> Traffic:
    """A tensor of `total` bytes in chunks of `chunk` bytes, from its begin to its end, `passes` times."""
    return _window(total, [(at, min(total, at + chunk)) for at in range(0, total, chunk)], passes, reads, writes)


@lru_cache(maxsize=65536)
def rows(
    taken: Rows, unit: int, count: int, extent: int, chunk: int, passes: int, reads: bool, writes: bool
) -> Traffic | None:
    """`count` pieces of the rows that chunks of `chunk` of `extent` steps take, each with a window of its own.

    None where a piece is no whole blocks.
    """
    total = taken.extent * unit
    if count > 1 and total % BLOCK_BYTES:
        return None
    spans = [taken.span(at, min(extent, at + chunk)) for at in range(0, extent, chunk)]
    one = _window(total, [(first * unit, last * unit) for first, last in spans], passes, reads, writes)
    reading, writing = ({nbytes: n * count for nbytes, n in moved.items()} for moved in (one.reads, one.writes))
    return Traffic(one.buffer_bytes if count == 1 else count * pitch(one.buffer_bytes), reading, writing)


def steps(unit: int, count: int, chunk: int, reads: bool, writes: bool) -> Traffic | None:
    """`count` steps of `unit` bytes, each a transfer, `chunk` of them in RAM; None where a step is no whole blocks."""
    if unit % BLOCK_BYTES:
        return None
    moved = {unit: count}
    return Traffic(min(chunk, count) * unit, moved if reads else {}, moved if writes else {})


def picked(total: int, unit: int, count: int, reads: bool, writes: bool) -> Traffic | None:
    """`count` steps of `unit` bytes, one after the other: each by the blocks that may hold one, wherever it begins.

    None where a tensor of `total` bytes hasn't so many blocks, and where steps are written that are no whole blocks.
    """
    if unit % BLOCK_BYTES == 0:
        return steps(unit, count, 1, reads, writes)
    nbytes = step_blocks(unit) * BLOCK_BYTES
    if writes or nbytes > _ceil(total):
        return None
    return Traffic(nbytes, {nbytes: count})


def step_blocks(unit: int) -> int:
    """Says how many blocks hold a step of `unit` bytes, whichever of them it is."""
    return -(-(BLOCK_BYTES - gcd(unit, BLOCK_BYTES) + unit) // BLOCK_BYTES)


def pitch(buffer_bytes: int) -> int:
    """Says how far apart the windows of pieces lie, each of so many bytes."""
    return -(-buffer_bytes // ALIGNMENT) * ALIGNMENT


@lru_cache(maxsize=65536)
def visits(total: int, unit: int, rounds: Visits, chunk: int, reads: bool, writes: bool) -> Traffic:
    """A tensor that the sweeps of rounds go through, in chunks of `chunk` steps of `unit` bytes."""
    window = _Window(total, reads, writes)
    for times, sweeps in rounds:
        spans = [
            (at * unit, min(last, at + chunk) * unit) for first, last in sweeps for at in range(first, last, chunk)
        ]
        for number in range(min(times, 2)):  # all but the first begin where the first one ended
            for begin, to in spans:
                window.chunk(begin, to, to, 1 if number == 0 else times - 1)
    return window.traffic()


def _window(total: int, spans: Sequence[tuple[int, int]], passes: int, reads: bool, writes: bool) -> Traffic:
    """A chunk is written up to where the next begins."""
    window = _Window(total, reads, writes)
    done = [*(begin for begin, _ in spans[1:]), total]
    for number in range(min(passes, 2)):
        times = 1 if number == 0 else passes - 1  # all passes after the first begin where the first one ended
        for (begin, to), whole in zip(spans, done, strict=True):
            if begin != to:  # something of it is in the chunk
                window.chunk(begin, to, whole, times)
    return window.traffic()


class _Window:
    """Holds what `po_window_to` and `po_window_out` of po_stream.h do."""

    def __init__(self, total: int, reads: bool, writes: bool) -> None:
        self.total, self.reads, self.writes = total, reads, writes
        self.read: Counter[int] = Counter()
        self.write: Counter[int] = Counter()
        self.start = self.end = self.buffer = 0

    def chunk(self, begin: int, to: int, done: int, times: int) -> None:
        """Bytes `begin` to `to` are in RAM, and those before `done` written: so many times alike."""
        first = begin // BLOCK_BYTES * BLOCK_BYTES
        if first < self.start:
            self.start = self.end = first
        self.start, self.end = first, max(self.end, first)
        if not self.reads:
            self.end = max(self.end, to)
        elif self.end < to:
            limit = min(self.total, _ceil(to))
            self.read[limit - self.end] += times
            self.end = limit
        self.buffer = max(self.buffer, self.end - self.start, to - self.start)
        limit = done if done == self.total else done // BLOCK_BYTES * BLOCK_BYTES
        if self.writes and limit > self.start:
            self.write[limit - self.start] += times

    def traffic(self) -> Traffic:
        """All of it."""
        return Traffic(self.buffer, dict(self.read), dict(self.write))


@lru_cache(maxsize=65536)
def pieces(extent: int, unit: int, count: int, chunk: int, passes: int, reads: bool, writes: bool) -> Traffic:
    """A tensor whose chunks are `count` pieces each, of `chunk` of `extent` steps of `unit` bytes."""
    moved: Counter[int] = Counter()
    for begin in range(0, extent, chunk):
        moved[(min(extent, begin + chunk) - begin) * unit] += count * passes
    return Traffic(min(chunk, extent) * unit * count, dict(moved) if reads else {}, dict(moved) if writes else {})


def piece_multiple(extent: int, unit: int) -> int:
    """Gives what chunks have to be a multiple of for pieces to begin and end with blocks; 0 where they can't."""
    if extent * unit % BLOCK_BYTES:
        return 0
    return BLOCK_BYTES // gcd(BLOCK_BYTES, unit)


def _ceil(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
