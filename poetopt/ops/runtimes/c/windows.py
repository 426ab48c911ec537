"""The buffer in RAM and the transfers of a streamed operand.

Storage moves whole blocks, here of `block` bytes. A tensor whose chunks are contiguous goes through a *window*: a
buffer that begins at a block and moves on with the chunks. So each block is read once per pass, and written once. If a
chunk consists of several pieces, each piece is one transfer. It must begin and end with a block, or have its own
window.
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
"""Bytes that `po_read` and `po_write` move at least: an SD card's block."""
Visits = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""For each round the number of repetitions, and begin and end of its sweeps in steps."""


def block_bytes(unit: int) -> int:
    """Return the bytes that a program moves at once if the storage's blocks are `unit` bytes: at least 512."""
    return -(-BLOCK_BYTES // unit) * unit


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of the buffer, and the number of transfers by their bytes."""

    buffer_bytes: int
    reads: Mapping[int, int] = field(default_factory=dict)
    writes: Mapping[int, int] = field(default_factory=dict)


@lru_cache(maxsize=65536)
def rows(
    block: int, covered: Rows, unit: int, count: int, extent: int, chunk: int, passes: int, reads: bool, writes: bool
) -> Traffic | None:
    """Return the traffic of the rows that chunks of `chunk` of `extent` steps cover.

    The rows lie in `count` pieces, each with its own window. None if a piece isn't whole blocks.
    """
    total = covered.extent * unit
    if count > 1 and total % block:
        return None
    spans = [covered.span(at, min(extent, at + chunk)) for at in range(0, extent, chunk)]
    one = _window_traffic(block, total, [(first * unit, last * unit) for first, last in spans], passes, reads, writes)
    reading, writing = ({nbytes: n * count for nbytes, n in moved.items()} for moved in (one.reads, one.writes))
    return Traffic(one.buffer_bytes if count == 1 else count * pitch(one.buffer_bytes), reading, writing)


def steps(block: int, unit: int, count: int, chunk: int, reads: bool, writes: bool) -> Traffic | None:
    """Return the traffic of `count` steps of `unit` bytes that are one transfer each, `chunk` of them in RAM.

    None if a step isn't whole blocks.
    """
    if unit % block:
        return None
    moved = {unit: count}
    return Traffic(min(chunk, count) * unit, moved if reads else {}, moved if writes else {})


def picked(block: int, total: int, unit: int, count: int, reads: bool, writes: bool) -> Traffic | None:
    """Return the traffic of `count` single steps of `unit` bytes: each reads the blocks that may hold a step.

    None if a tensor of `total` bytes hasn't so many blocks, or if written steps aren't whole blocks.
    """
    if unit % block == 0:
        return steps(block, unit, count, 1, reads, writes)
    nbytes = step_blocks(block, unit) * block
    if writes or nbytes > _round_up(total, block):
        return None
    return Traffic(nbytes, {nbytes: count})


def step_blocks(block: int, unit: int) -> int:
    """Return the number of blocks that hold any step of `unit` bytes."""
    return -(-(block - gcd(unit, block) + unit) // block)


def pitch(buffer_bytes: int) -> int:
    """Return the bytes between the begins of the windows of pieces; a window has `buffer_bytes`."""
    return -(-buffer_bytes // ALIGNMENT) * ALIGNMENT


@lru_cache(maxsize=65536)
def visits(block: int, total: int, unit: int, rounds: Visits, chunk: int, reads: bool, writes: bool) -> Traffic:
    """Return the traffic of a tensor that the sweeps of rounds visit, in chunks of `chunk` steps of `unit` bytes."""
    window = _Window(block, total, reads, writes)
    for times, sweeps in rounds:
        spans = [
            (at * unit, min(last, at + chunk) * unit) for first, last in sweeps for at in range(first, last, chunk)
        ]
        for number in range(min(times, 2)):  # all rounds after the first begin where the first one ended
            for begin, to in spans:
                window.chunk(begin, to, to, 1 if number == 0 else times - 1)
    return window.traffic()


def _window_traffic(
    block: int, total: int, spans: Sequence[tuple[int, int]], passes: int, reads: bool, writes: bool
) -> Traffic:
    """Return the traffic of a window; a chunk is written up to the begin of the next."""
    window = _Window(block, total, reads, writes)
    ends = [*(begin for begin, _ in spans[1:]), total]
    for number in range(min(passes, 2)):
        times = 1 if number == 0 else passes - 1  # all passes after the first begin where the first one ended
        for (begin, to), whole in zip(spans, ends, strict=True):
            if begin != to:  # the chunk has bytes of the tensor
                window.chunk(begin, to, whole, times)
    return window.traffic()


class _Window:
    """The state of `po_window_to` and `po_window_out` of po_stream.h."""

    def __init__(self, block: int, total: int, reads: bool, writes: bool) -> None:
        self.block, self.total, self.reads, self.writes = block, total, reads, writes
        self.read: Counter[int] = Counter()
        self.write: Counter[int] = Counter()
        self.start = self.end = self.buffer = 0

    def chunk(self, begin: int, to: int, final: int, times: int) -> None:
        """Bring bytes `begin` to `to` into RAM and write those before `final`; count the transfers `times` times."""
        first = begin // self.block * self.block
        if first < self.start:
            self.start = self.end = first
        self.start, self.end = first, max(self.end, first)
        if not self.reads:
            self.end = max(self.end, to)
        elif self.end < to:
            limit = min(self.total, _round_up(to, self.block))
            self.read[limit - self.end] += times
            self.end = limit
        self.buffer = max(self.buffer, self.end - self.start, to - self.start)
        limit = final if final == self.total else final // self.block * self.block
        if self.writes and limit > self.start:
            self.write[limit - self.start] += times

    def traffic(self) -> Traffic:
        """Return the traffic so far."""
        return Traffic(self.buffer, dict(self.read), dict(self.write))


@lru_cache(maxsize=65536)
def pieces(extent: int, unit: int, count: int, chunk: int, passes: int, reads: bool, writes: bool) -> Traffic:
    """Return the traffic of a tensor whose chunks are `count` pieces of `chunk` of `extent` steps of `unit` bytes."""
    moved: Counter[int] = Counter()
    for begin in range(0, extent, chunk):
        moved[(min(extent, begin + chunk) - begin) * unit] += count * passes
    return Traffic(min(chunk, extent) * unit * count, dict(moved) if reads else {}, dict(moved) if writes else {})


def piece_multiple(block: int, extent: int, unit: int) -> int:
    """Return the steps whose multiples chunks must be, so that pieces begin and end with blocks; 0 if impossible."""
    if extent * unit % block:
        return 0
    return block // gcd(block, unit)


def _round_up(nbytes: int, block: int) -> int:
    return -(-nbytes // block) * block
