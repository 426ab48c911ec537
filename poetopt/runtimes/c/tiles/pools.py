"""Tilings of pooling: chunks of planes, and chunks of rows with those that their windows reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from poetopt.graph import DTYPE_BYTES, Tensor
from poetopt.runtimes.c.kernel import Call
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.tiling import OUTER, Chunk, Loop, Rows, Slice, Tiling


@dataclass(frozen=True, slots=True)
class Window:
    """Pooling of planes [planes, size] to [planes, out]: rows before columns."""

    planes: int
    out: tuple[int, int]
    size: tuple[int, int]
    kernel: tuple[int, int]
    steps: tuple[int, int]
    taps: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]

    def numbers(self) -> tuple[int, ...]:
        """As the functions of the header take them, up to the pads before."""
        return (self.planes, *self.out, *self.size, *self.kernel, *self.steps, *self.taps, *self.before)

    @property
    def reach(self) -> int:
        """How many rows the last tap is behind the first."""
        return (self.kernel[0] - 1) * self.taps[0]

    def plane(self, rows: str, height: str, above: str) -> tuple[str | int, ...]:
        """The same numbers of some rows of a plane."""
        (_, columns), (_, width) = self.out, self.size
        return (
            1, rows, columns, height, width, *self.kernel, *self.steps, *self.taps, above, self.before[1],
        )  # fmt: skip


Line = Callable[[Window, Chunk, Sequence[str]], str]
"""The call of one plane p: of the addresses of its part of each operand, outputs first, rows `first` to `last`."""


def pooled_rows(call: Call, window: Window, line: Line) -> tuple[Tiling, ...]:
    """Chunks of the rows of the outputs; the input's are those that their windows reach."""
    needed = Rows.read(window.size[0], window.steps[0], window.before[0], window.reach)
    return _tilings(call, window, window.out[0], needed, Rows(window.out[0]), line)


def spread_rows(call: Call, window: Window, line: Line) -> tuple[Tiling, ...]:
    """Chunks of the rows of the gradient by the input; the inputs' are those whose windows meet them."""
    needed = Rows.meeting(window.out[0], window.steps[0], window.before[0], window.reach)
    return _tilings(call, window, window.size[0], needed, Rows(window.size[0]), line)


def _tilings(call: Call, window: Window, extent: int, needed: Rows, made: Rows, line: Line) -> tuple[Tiling, ...]:
    inside = 0 <= window.before[0] <= window.reach and (window.out[0] - 1) * window.steps[0] < window.size[0]
    if extent < 2 or not inside:
        return ()

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        first, last = needed.in_c(begin, f"{begin} + {count}")
        tensors, parts = (*call.outputs, *call.inputs), (*chunk.outputs, *chunk.inputs)
        at = [
            "NULL" if t is None else f"PO_AT({part.at}, (uint32_t)(p * ({part.apart})) * {DTYPE_BYTES[t.dtype]}u)"
            for t, part in zip(tensors, parts, strict=True)
        ]
        body = "\n".join(f"    {text}" for text in line(window, chunk, at).splitlines())
        return block(
            f"const int32_t first = {first}, last = {last};",
            f"for (int32_t p = 0; p < {window.planes}; ++p) {{\n{body}\n}}",
        )

    def slices(tensors: Sequence[Tensor | None], rows: Rows) -> tuple[Slice | None, ...]:
        return tuple(
            None if t is None else Slice(OUTER, t.shape[-1] * DTYPE_BYTES[t.dtype], prod(t.shape[:2]), rows)
            for t in tensors
        )

    return (Tiling(Loop(extent), None, slices(call.inputs, needed), slices(call.outputs, made), code),)
