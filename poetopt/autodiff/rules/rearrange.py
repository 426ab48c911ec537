"""Ops that repeat, surround or shuffle: the gradient is summed, cut or shuffled back."""

from __future__ import annotations

import math

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.errors import ModelError
from poetopt.graph import Tensor


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
    axes = [axis % rank for axis in _vector(op, 3)] if op.has(3) else list(range(rank))
    amounts = _vector(op, 1)
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = amounts[position], amounts[len(axes) + position]
    mode = op.attr_text("mode", "constant")
    k = op.emit("grad_input")
    if mode == "constant":
        return k.pad(dy, [-b for b in before], [-a for a in after]), None
    if mode not in {"reflect", "edge", "wrap"}:
        raise ModelError(f"{op.where}: unknown mode {mode!r}")
    for axis in range(rank):
        if min(before[axis], 0) + min(after[axis], 0) + x.shape[axis] <= 0:
            raise ModelError(f"{op.where}: cuts all of axis {axis} away before it repeats anything; export it without")
        if before[axis] or after[axis]:
            dy = along(k, dy, axis, padding_matrix(x.shape[axis], before[axis], after[axis], mode))
    return dy, None


def padding_matrix(size: int, before: int, after: int, mode: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[size, padded size]: 1 where an element of the padded axis repeats one of the axis."""
    source = np.arange(size)
    # onnxruntime cuts first, and repeats what is left
    left = source[max(-before, 0) : size - max(-after, 0)]
    padded = np.pad(left, (max(before, 0), max(after, 0)), mode=mode)  # type: ignore[call-overload]
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


def _vector(op: Primal, index: int) -> tuple[int, ...]:
    return tuple(int(v) for v in np.asarray(op.known(index)).reshape(-1))


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
