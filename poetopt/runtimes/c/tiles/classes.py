"""Tilings of what goes along a middle axis, as classes of pixels do: chunks of the positions behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poetopt.graph import DTYPE_BYTES, Tensor
from poetopt.runtimes.c.kernel import Arguments, Call
from poetopt.runtimes.c.tiles.axes import arguments_of
from poetopt.runtimes.c.tiles.tiling import OUTER, Chunk, Loop, Rows, Slice, Tiling

Sizes = tuple[int, int, int]
"""What is before the axis, its length, and how many positions are behind it."""


@dataclass(frozen=True, slots=True)
class Positions:
    """What a call works on: so many positions, of operands whose classes lie so many elements apart, all in C.

    outputs, inputs
        Elements between neighbours along the axis, of each operand; of one without that axis, between its rows.
    begun, ends
        Whether positions were before these, and whether none are behind them.
    """

    count: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    begun: str = "0"
    ends: str = "1"


Line = Callable[[Call, Arguments, Positions], str]


def all_positions(call: Call, sizes: Sizes) -> Positions:
    """Whole operands."""
    inner = str(sizes[2])
    return Positions(inner, (inner,) * len(call.outputs), (inner,) * len(call.inputs))


def by_position(line: Line, call: Call, sizes: Sizes, scratch_bytes: int = 0) -> tuple[Tiling, ...]:
    """Chunks of positions; none where there is but one. What has no positions is whole."""
    outer, size, inner = sizes
    if inner < 2:
        return ()

    def cut(tensor: Tensor | None) -> Slice | None:
        pieces = 0 if tensor is None else {outer * size * inner: outer * size, outer * inner: outer}.get(tensor.size, 0)
        if not pieces or tensor is None:
            return None
        return Slice(OUTER, DTYPE_BYTES[tensor.dtype], pieces, Rows(inner) if pieces > 1 else None)

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        outputs, inputs = (tuple(f"({part.apart})" for part in of) for of in (chunk.outputs, chunk.inputs))
        positions = Positions(count, outputs, inputs, f"{begin} > 0", f"{begin} + {count} == {inner}")
        return line(call, arguments_of(chunk), positions)

    inputs, outputs = (tuple(map(cut, of)) for of in (call.inputs, call.outputs))
    return (Tiling(Loop(inner), None, inputs, outputs, code, scratch_bytes=lambda outer: scratch_bytes),)
