"""Describes what a streamed operand takes: its buffer in RAM, and its transfers, one by one.

Storage moves whole blocks, here of `block` bytes. A tensor whose chunks are runs of bytes goes through a *window*: a
buffer that begins with a block and moves on with the chunks, so that each block is read once a pass, and written once.
Where a chunk is many pieces, each is a transfer of its own, and has to begin and end with a block, or has a window of
its own.
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
"""The least that `po_read` and `po_write` move at once: an SD card's block."""
Visits = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Of each round how often it is made, and where its sweeps begin and end, in steps."""


def block_bytes(unit: int) -> int:
    """Gives what a program moves at once where the storage's blocks are `unit` bytes: as many of them as make 512."""
    return -(-BLOCK_BYTES // unit) * unit


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of the buffer, and how many transfers there are of each size."""

    buffer_bytes: int
    reads: Mapping[int, int] = field(default_factory=dict)
    writes: Mapping[int, int] = field(default_factory=dict)


@lru_cache(maxsize=65536)
def rows(
    block: int, taken: Rows, unit: int, count: int, extent: int, chunk: int, passes: int, reads: bool, writes: bool
) -> Traffic | None:
    """`count` pieces of the rows that chunks of `chunk` of `extent` steps take, each with a window of its own.

    None where a piece is no whole blocks.
    """
    total = taken.extent * unit
    if count > 1 and total % block:
        return None
    spans = [taken.span(at, min(extent, at + chunk)) for at in range(0, extent, chunk)]
    one = _window(block, total, [(first * unit, last * unit) for first, last in spans], passes, reads, writes)
    reading, writing = ({nbytes: n * count for nbytes, n in moved.items()} for moved in (one.reads, one.writes))
    return Traffic(one.buffer_bytes if count == 1 else count * pitch(one.buffer_bytes), reading, writing)


def steps(block: int, unit: int, count: int, chunk: int, reads: bool, writes: bool) -> Traffic | None:
    """`count` steps of `unit` bytes, each a transfer, `chunk` of them in RAM; None where a step is no whole blocks."""
    if unit % block:
        return None
    moved = {unit: count}
    return Traffic(min(chunk, count) * unit, moved if reads else {}, moved if writes else {})


def picked(block: int, total: int, unit: int, count: int, reads: bool, writes: bool) -> Traffic | None:
    """`count` steps of `unit` bytes, one after the other: each by the blocks that may hold one, wherever it begins.

    None where a tensor of `total` bytes hasn't so many blocks, and where steps are written that are no whole blocks.
    """
    if unit % block == 0:
        return steps(block, unit, count, 1, reads, writes)
    nbytes = step_blocks(block, unit) * block
    if writes or nbytes > _ceil(total, block):
        return None
    return Traffic(nbytes, {nbytes: count})


def step_blocks(block: int, unit: int) -> int:
    """Says how many blocks hold a step of `unit` bytes, whichever of them it is."""
    return -(-(block - gcd(unit, block) + unit) // block)


def pitch(buffer_bytes: int) -> int:
    """Says how far apart the windows of pieces lie, each of so many bytes."""
    return -(-buffer_bytes // ALIGNMENT) * ALIGNMENT


@lru_cache(maxsize=65536)
def visits(block: int, total: int, unit: int, rounds: Visits, chunk: int, reads: bool, writes: bool) -> Traffic:
    """A tensor that the sweeps of rounds go through, in chunks of `chunk` steps of `unit` bytes."""
    window = _Window(block, total, reads, writes)
    for times, sweeps in rounds:
        spans = [
            (at * unit, min(last, at + chunk) * unit) for first, last in sweeps for at in range(first, last, chunk)
        ]
        for number in range(min(times, 2)):  # all but the first begin where the first one ended
            for begin, to in spans:
                window.chunk(begin, to, to, 1 if number == 0 else times - 1)
    return window.traffic()


def _window(
    block: int, total: int, spans: Sequence[tuple[int, int]], passes: int, reads: bool, writes: bool
) -> Traffic:
    """A chunk is written up to where the next begins."""
    window = _Window(block, total, reads, writes)
    done = [*(begin for begin, _ in spans[1:]), total]
    for number in range(min(passes, 2)):
        times = 1 if number == 0 else passes - 1  # all passes after the first begin where the first one ended
        for (begin, to), whole in zip(spans, done, strict=True):
            if begin != to:  # something of it is in the chunk
                window.chunk(begin, to, whole, times)
    return window.traffic()


class _Window:
    """Holds what `po_window_to` and `po_window_out` of po_stream.h do."""

    def __init__(self, block: int, total: int, reads: bool, writes: bool) -> None:
        self.block, self.total, self.reads, self.writes = block, total, reads, writes
        self.read: Counter[int] = Counter()
        self.write: Counter[int] = Counter()
        self.start = self.end = self.buffer = 0

    def chunk(self, begin: int, to: int, done: int, times: int) -> None:
        """Bytes `begin` to `to` are in RAM, and those before `done` written: so many times alike."""
        first = begin // self.block * self.block
        if first < self.start:
            self.start = self.end = first
        self.start, self.end = first, max(self.end, first)
        if not self.reads:
            self.end = max(self.end, to)
        elif self.end < to:
            limit = min(self.total, _ceil(to, self.block))
            self.read[limit - self.end] += times
            self.end = limit
        self.buffer = max(self.buffer, self.end - self.start, to - self.start)
        limit = done if done == self.total else done // self.block * self.block
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


def piece_multiple(block: int, extent: int, unit: int) -> int:
    """Gives what chunks have to be a multiple of for pieces to begin and end with blocks; 0 where they can't."""
    if extent * unit % block:
        return 0
    return block // gcd(block, unit)


def _ceil(nbytes: int, block: int) -> int:
    return -(-nbytes // block) * block
