"""Tilings of padded tensors: chunks along the axis that is padded."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from poetopt.graph import DTYPE_BYTES
from poetopt.runtimes.c.kernel import C_TYPES, Call
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.tiling import OUTER, Chunk, Loop, Rows, Slice, Tiling


def padded(call: Call, before: Sequence[int], after: Sequence[int], value: str) -> tuple[Tiling, ...]:
    """Rows of x go into those of y; none where nothing, more than one axis, or a negative number is padded."""
    x, y = call.input(0), call.output()
    axes = [axis for axis, more in enumerate(zip(before, after, strict=True)) if any(more)]
    if len(axes) != 1 or min((*before, *after)) < 0 or not x.size:
        return ()
    (axis,) = axes
    inner, outer = prod(y.shape[axis + 1 :]), prod(y.shape[:axis])
    rows = _rows(call, (x.shape[axis], y.shape[axis], before[axis]), inner, outer, value)
    if outer > 1 or inner == 1:
        return (rows,)
    flat = x.size, y.size, before[axis] * inner
    return rows, _rows(call, flat, 1, 1, value)  # by elements, as what adds it up goes


def _rows(call: Call, lengths: tuple[int, int, int], inner: int, outer: int, value: str) -> Tiling:
    """Chunks of y's rows of `inner` elements; lengths are x's and y's, and where x begins in y."""
    y = call.output()
    given, length, first = lengths
    needed = Rows(given, low=-first, high=-first)
    unit = inner * DTYPE_BYTES[y.dtype]

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        low, high = needed.in_c(begin, f"{begin} + {count}")
        kind = C_TYPES[y.dtype]
        of_piece = block(
            f"{kind} *to = y + p * ({chunk.outputs[0].apart});",
            f"for (int32_t i = 0; i < {count} * {inner}; ++i) {{\n    to[i] = {value};\n}}",
            "if (low < high) {",
            f"    memcpy(to + (low + {first} - {begin}) * {inner}, x + p * ({chunk.inputs[0].apart}), "
            f"(uint32_t)(high - low) * {unit}u);",
            "}",
        )
        return block(
            f"const {kind} *x = {chunk.inputs[0].at};",
            f"{kind} *y = {chunk.outputs[0].at};",
            f"const int32_t low = {low}, high = {high};",
            f"for (int32_t p = 0; p < {outer}; ++p) {of_piece}",
        )

    taken = Slice(OUTER, unit, outer, needed), *(None for _ in call.inputs[1:])
    made = Slice(OUTER, unit, outer, Rows(length) if outer > 1 else None)
    return Tiling(Loop(length), None, taken, (made,), code)
