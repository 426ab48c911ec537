"""Ops that cut, repeat, surround or shuffle: the gradient is cut, summed or shuffled back."""

from __future__ import annotations

import math

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder, normalized
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.errors import ModelError
from poetopt.graph import Tensor


@register_vjp("Slice", since=10)
def cut(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY in its place among zeros: Pad, after spreading steps and reversing where they are negative.

    Reads nothing else. No temporary for steps of one.
    """
    dy, x = op.only(cotangents), op.x
    rank = len(x.shape)
    starts, ends = _vector(op, 1), _vector(op, 2)
    axes = normalized_each(_vector(op, 3), rank) if op.has(3) else tuple(range(len(starts)))
    steps = _vector(op, 4) if op.has(4) else (1,) * len(starts)
    k = op.emit("grad_input")
    before, after, flipped, found = [0] * rank, [0] * rank, [], dy
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        taken = range(x.shape[axis])[slice(start, end if step > 0 or end >= -x.shape[axis] else None, step)]
        if not taken:
            return (k.zeros(x.shape, x.dtype), None)
        if step < 0:
            flipped.append(axis)
            taken = taken[::-1]
        found = _spread(k, found, axis, taken.step) if len(taken) > 1 else found
        before[axis], after[axis] = taken[0], x.shape[axis] - 1 - taken[-1]
    return (k.pad(k.flip(found, flipped), before, after), None)


def normalized_each(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`axes` without negative ones, in their order."""
    return tuple(axis % rank for axis in axes)


def _vector(op: Primal, index: int) -> tuple[int, ...]:
    return tuple(int(v) for v in np.asarray(op.known(index)).reshape(-1))


def _spread(k: OperatorBuilder, x: Tensor, axis: int, step: int) -> Tensor:
    """x with `step` - 1 zeros between its elements along `axis`."""
    if step == 1:
        return x
    rank = len(x.shape)
    wide = k.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    behind = [0] * (rank + 1)
    behind[axis + 1] = step - 1
    wide = k.pad(wide, [0] * (rank + 1), behind)
    wide = k.reshape(wide, (*x.shape[:axis], x.shape[axis] * step, *x.shape[axis + 1 :]))
    return k.slice(wide, [0], [wide.shape[axis] - step + 1], [axis])


@register_vjp("Expand", since=8)
def expand(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY summed over what was repeated, which the loop does."""
    return op.only(cotangents), None


@register_vjp("Tile", since=6)
def tile(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = the sum of the copies. Reads nothing else; no temporary."""
    dy, x = op.only(cotangents), op.x
    repeats = _vector(op, 1)
    k = op.emit("grad_input")
    split = [part for pair in zip(repeats, x.shape, strict=True) for part in pair]
    copies = k.reshape(dy, split)
    return (k.reshape(k.reduce_sum(copies, [2 * axis for axis, r in enumerate(repeats) if r > 1]), x.shape), None)


@register_vjp("Pad", since=11)
def pad(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = the middle of dY; what other modes than `constant` repeated is added to where it came from.

    Reads nothing else. For `reflect`, `edge` and `wrap`, axis by axis: a product with the 0-1 matrix of the axis.
    """
    dy, x = op.only(cotangents), op.x
    rank = len(x.shape)
    axes = normalized_each(_vector(op, 3), rank) if op.has(3) else tuple(range(rank))
    amounts = _vector(op, 1)
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = amounts[position], amounts[len(axes) + position]
    mode = op.attr_text("mode", "constant")
    fill = op.emit("grad_fill").reduce_sum(dy, range(rank), keepdims=False) if op.need(2) else None
    k = op.emit("grad_input")
    inner = k.pad(dy, [-b for b in before], [-a for a in after]) if mode == "constant" else dy
    if fill is not None:
        whole = op.emit("grad_fill")
        fill = whole.reshape(whole.sub(fill, whole.reduce_sum(inner, range(rank), keepdims=False)), op.input(2).shape)
    if mode == "constant":
        return inner, None, fill
    numpy_mode = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}.get(mode)
    if numpy_mode is None:
        raise ModelError(f"{op.where}: unknown mode {mode!r}")
    for axis in range(rank):
        if before[axis] or after[axis]:
            inner = along(k, inner, axis, padding_matrix(x.shape[axis], before[axis], after[axis], numpy_mode))
    return inner, None, None


def padding_matrix(size: int, before: int, after: int, mode: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[size, padded size]: 1 where an element of the padded axis repeats one of the axis."""
    source = np.arange(size)
    low, high = max(before, 0), max(after, 0)
    padded = np.pad(source, (low, high), mode=mode)  # type: ignore[call-overload]
    padded = padded[max(-before, 0) : padded.size - max(-after, 0)]
    return np.asarray(source[:, None] == padded[None, :], np.float64)


def along(
    k: OperatorBuilder, x: Tensor, axis: int, matrix: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> Tensor:
    """The product of `matrix` [n, m] with every line of x along `axis`, which has m elements."""
    outer, lines, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    shape = (*x.shape[:axis], matrix.shape[0], *x.shape[axis + 1 :])
    if inner == 1:
        constant = k.graph.constant(np.ascontiguousarray(matrix.T).astype(x.dtype))
        return k.reshape(k.gemm(k.reshape(x, (outer, lines)), constant), shape)
    constant = k.graph.constant(matrix.astype(x.dtype))
    if outer == 1:
        return k.reshape(k.gemm(constant, k.reshape(x, (lines, inner))), shape)
    return k.reshape(k.matmul(constant, k.reshape(x, (outer, lines, inner))), shape)


@register_vjp("DepthToSpace", since=1)
def depth_to_space(op: Primal, cotangents: Cotangents) -> Gradients:
    """The inverse shuffle. Reads nothing else; no temporary."""
    dy, (n, c, h, w) = op.only(cotangents), op.x.shape
    size = op.attr_int("blocksize", 1)
    k = op.emit("grad_input")
    blocks = k.reshape(dy, (n, c // size**2, h, size, w, size))
    perm = [0, 1, 3, 5, 2, 4] if op.attr_text("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    return (k.reshape(k.transpose(blocks, perm), op.x.shape),)


@register_vjp("SpaceToDepth", since=1)
def space_to_depth(op: Primal, cotangents: Cotangents) -> Gradients:
    """The inverse shuffle. Reads nothing else; no temporary."""
    dy, (n, c, h, w) = op.only(cotangents), op.x.shape
    size = op.attr_int("blocksize", 1)
    k = op.emit("grad_input")
    blocks = k.reshape(dy, (n, size, size, c, h // size, w // size))
    return (k.reshape(k.transpose(blocks, [0, 3, 4, 1, 5, 2]), op.x.shape),)
