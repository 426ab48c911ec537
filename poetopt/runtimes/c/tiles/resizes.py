"""Tilings of planes that are resized: chunks of y's rows, with those of x around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from poetopt.runtimes.c.kernel import Call
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.matrices import ELEMENT_BYTES
from poetopt.runtimes.c.tiles.tiling import OUTER, Chunk, Loop, Rows, Slice, Tiling

Line = Callable[[Call, tuple[str, str], Sequence[str | int]], str]
"""Of the addresses of y and x: planes, the first row and how many, the first one of x, how far apart planes lie."""


def resized_rows(call: Call, planes: int, needed: Rows, line: Line) -> tuple[Tiling, ...]:
    """Rows of x that are needed are in RAM, from one chunk to the next where both need them."""
    x, y = call.input(0), call.output()
    rows = prod(y.shape[2:-1])

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        first, _ = needed.in_c(begin, f"{begin} + {count}")
        given, made = chunk.inputs[0], chunk.outputs[0]
        at = planes, begin, count, "first", f"({made.apart})", f"({given.apart})"
        return block(f"const int32_t first = {first};", line(call, (made.at, given.at), at))

    def cut(width: int, of: Rows) -> Slice:
        return Slice(OUTER, ELEMENT_BYTES * width, planes, of)

    inputs = cut(x.shape[-1], needed), *(None for _ in call.inputs[1:])
    return (Tiling(Loop(rows), None, inputs, (cut(y.shape[-1], Rows(rows)),), code),)
