"""Tilings of kernels that treat all steps along an axis alike: they call the kernel itself with fewer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from poetopt.graph import DTYPE_BYTES, Tensor
from poetopt.ops.runtimes.c.kernel import Arguments, Call
from poetopt.ops.runtimes.c.tiling import OUTER, Chunk, ChunkSlice, Loop, Tiling, sliced

Code = Callable[[Call, Arguments], str]
"""The code of a kernel."""
Begun = Callable[[Call, Arguments, str], str]
"""The code of a kernel that also gets the begin of its chunk in C."""
Axes = Sequence[int | None]
"""For each operand in order the axis that is cut; None for an operand that stays whole."""


def along(
    code: Code,
    call: Call,
    inputs: Axes,
    outputs: Axes,
    begun: Begun | None = None,
    scratch_bytes: int = 0,
    *,
    merged: bool = False,
) -> tuple[Tiling, ...]:
    """Return the tiling along one axis of each operand; none if there is only one step.

    Parameters
    ----------
    merged
        Whether the axes before the axis are merged into it.
    begun
        Writer of the code, if the code depends on the begin of the chunk.
    scratch_bytes
        Bytes that this code keeps from chunk to chunk.
    """
    if merged:
        call = replace(call, inputs=_merge_leading(call.inputs, inputs), outputs=_merge_leading(call.outputs, outputs))
    operands = zip((*call.outputs, *call.inputs), (*outputs, *inputs), strict=True)
    extent = next((t.shape[a] for t, a in operands if t is not None and a is not None), 0)
    if extent < 2:
        return ()

    def cut(tensors: Sequence[Tensor | None], axes: Axes) -> tuple[ChunkSlice | None, ...]:
        return tuple(None if t is None or a is None else sliced(t, a) for t, a in zip(tensors, axes, strict=True))

    def fewer(tensors: Sequence[Tensor | None], axes: Axes, count: int) -> tuple[Tensor | None, ...]:
        return tuple(
            t if t is None or a is None else replace(t, shape=(*t.shape[:a], count, *t.shape[a + 1 :]))
            for t, a in zip(tensors, axes, strict=True)
        )

    def one(call: Call, chunk: Chunk) -> str:
        count = int(chunk.count[OUTER])
        if merged:
            call = replace(
                call, inputs=_merge_leading(call.inputs, inputs), outputs=_merge_leading(call.outputs, outputs)
            )
        cut_call = replace(call, inputs=fewer(call.inputs, inputs, count), outputs=fewer(call.outputs, outputs, count))
        arguments = arguments_of(chunk)
        return code(cut_call, arguments) if begun is None else begun(cut_call, arguments, chunk.begin[OUTER])

    operand_slices = cut(call.inputs, inputs), cut(call.outputs, outputs)
    tiling = Tiling(Loop(extent), None, *operand_slices, one, fixed=True, scratch_bytes=lambda outer: scratch_bytes)
    return (tiling,)


def _merge_leading(tensors: Sequence[Tensor | None], axes: Axes) -> tuple[Tensor | None, ...]:
    """Return tensors whose axes before the cut axis have one step each."""
    return tuple(
        t
        if t is None or a is None
        else replace(t, shape=(*(1 for _ in t.shape[:a]), prod(t.shape[: a + 1]), *t.shape[a + 1 :]))
        for t, a in zip(tensors, axes, strict=True)
    )


def arguments_of(chunk: Chunk) -> Arguments:
    """Return a chunk as the arguments of a kernel's code."""
    return Arguments(tuple(p.at for p in chunk.inputs), tuple(p.at for p in chunk.outputs), chunk.scratch)


def flat(code: Code, call: Call) -> tuple[Tiling, ...]:
    """Return the tiling of any length for operands with the result's elements in the same order; scalars stay whole."""
    y = call.output()

    def fits(t: Tensor | None) -> bool:
        return t is None or t.size in (1, y.size)

    if y.size < 2 or not all(map(fits, call.inputs)) or any(t is not None and t.size != y.size for t in call.outputs):
        return ()

    def cut(t: Tensor | None) -> ChunkSlice | None:
        return ChunkSlice(OUTER, DTYPE_BYTES[t.dtype]) if t is not None and t.size == y.size else None

    def one(call: Call, chunk: Chunk) -> str:
        count = int(chunk.count[OUTER])

        def fewer(t: Tensor | None) -> Tensor | None:
            return t if t is None or t.size != y.size else replace(t, shape=(count,))

        ins, outs = tuple(map(fewer, call.inputs)), tuple(map(fewer, call.outputs))
        ins = tuple(t if t is None or t.size == count else replace(t, shape=()) for t in ins)
        return code(replace(call, inputs=ins, outputs=outs), arguments_of(chunk))

    tiling = Tiling(Loop(y.size), None, tuple(map(cut, call.inputs)), tuple(map(cut, call.outputs)), one, fixed=True)
    return (tiling,)


def broadcast(code: Code, call: Call) -> tuple[Tiling, ...]:
    """Return the tilings of an element-wise op: of any length, or along each axis of the result."""
    y = call.output()
    tilings = list(flat(code, call))
    for axis, extent in enumerate(y.shape):
        if extent > 1:
            inputs = [aligned(t, axis, len(y.shape)) for t in call.inputs]
            outputs = [axis] * len(call.outputs)
            tilings += along(code, call, inputs, outputs)
            if any(step > 1 for step in y.shape[:axis]) and all(_can_merge(t, axis, y) for t in call.inputs):
                tilings += along(code, call, inputs, outputs, merged=True)
    return tuple(tilings)


def _can_merge(tensor: Tensor | None, axis: int, y: Tensor) -> bool:
    """Return whether an operand has all steps up to an axis of the result, or one for all of them."""
    if tensor is None:
        return True
    shape = (*(1 for _ in range(len(y.shape) - len(tensor.shape))), *tensor.shape)[: axis + 1]
    return shape == y.shape[: axis + 1] or prod(shape) == 1


def aligned(tensor: Tensor | None, axis: int, rank: int) -> int | None:
    """Return the axis of an operand that matches `axis` of a result of `rank` axes; None if it is broadcast there."""
    own_axis = axis - (rank - len(tensor.shape)) if tensor is not None else -1
    return own_axis if tensor is not None and own_axis >= 0 and tensor.shape[own_axis] > 1 else None


def by_row(code: Code, wide_inputs: tuple[int, ...], outputs: int) -> Callable[[Call], tuple[Tiling, ...]]:
    """Return a function for tilings by rows along the node's axis: of `wide_inputs` and the first `outputs` outputs."""

    def tilings(call: Call) -> tuple[Tiling, ...]:
        shape = call.output().shape
        axis = call.integer("axis", -1) % len(shape) - 1
        if axis < 0:
            return ()
        inputs = [axis if k in wide_inputs else None for k in range(len(call.inputs))]
        axes = [axis if k < outputs else None for k in range(len(call.outputs))]
        result = along(code, call, inputs, axes, merged=True)
        first = leading(shape, axis)
        if first is not None:  # the cut that a product of matrices before it may have
            inputs, axes = ([a if a is None else first for a in of] for of in (inputs, axes))
            result += along(code, call, inputs, axes, merged=True)
        return result

    return tilings


def leading(shape: Sequence[int], end: int) -> int | None:
    """Return the first axis before `end` that has more than one step; None if there is none."""
    return next((axis for axis in range(end) if shape[axis] > 1), None)
