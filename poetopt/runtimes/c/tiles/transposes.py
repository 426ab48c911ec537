"""Tilings of transposed tensors: chunks of each axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from poetopt.graph import DTYPE_BYTES, Tensor
from poetopt.runtimes.c.kernel import C_TYPES, Call
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.tiling import OUTER, Chunk, Loop, Part, Rows, Slice, Tiling


def transposed(call: Call, perm: Sequence[int]) -> tuple[Tiling, ...]:
    """y's axis k is x's axis perm[k]."""
    x, y = call.input(0), call.output()
    axes = [axis for axis, extent in enumerate(y.shape) if extent > 1]
    if len(axes) < 2:
        return ()
    return tuple(
        Tiling(Loop(y.shape[axis]), None, (_slice(x, perm[axis]),), (_slice(y, axis),), _Chunks(axis, tuple(perm)))
        for axis in axes
    )


def _slice(tensor: Tensor, axis: int) -> Slice:
    """Chunks of an axis; what lies in pieces goes through windows."""
    unit, pieces = prod(tensor.shape[axis + 1 :]) * DTYPE_BYTES[tensor.dtype], prod(tensor.shape[:axis])
    return Slice(OUTER, unit, pieces, Rows(tensor.shape[axis]) if pieces > 1 else None)


class _Chunks:
    """The code of a chunk of one axis."""

    def __init__(self, axis: int, perm: tuple[int, ...]) -> None:
        self.axis, self.perm = axis, perm

    def __call__(self, call: Call, chunk: Chunk) -> str:
        x, y = call.input(0), call.output()
        own = _steps(x, self.perm[self.axis], chunk.inputs[0])
        steps = _steps(y, self.axis, chunk.outputs[0])
        axes = [axis for axis, extent in enumerate(y.shape) if extent > 1]
        to = " + ".join(f"i{axis} * {steps[axis]}" for axis in axes)
        at = " + ".join(f"i{axis} * {own[self.perm[axis]]}" for axis in axes)
        body = f"y[{to}] = x[{at}];"
        for axis in reversed(axes):
            count = chunk.count[OUTER] if axis == self.axis else str(y.shape[axis])
            body = f"for (int32_t i{axis} = 0; i{axis} < {count}; ++i{axis}) {{\n    {body}\n}}"
        kind = C_TYPES[y.dtype]
        return block(f"const {kind} *x = {chunk.inputs[0].at};", f"{kind} *y = {chunk.outputs[0].at};", body)


def _steps(tensor: Tensor, axis: int, part: Part) -> list[str]:
    """Elements between neighbours along each axis of a chunk of one: as far apart as its pieces are before it."""
    shape = tensor.shape
    return [
        str(prod(shape[k + 1 :])) if k >= axis else f"{prod(shape[k + 1 : axis])} * ({part.apart})"
        for k in range(len(shape))
    ]
