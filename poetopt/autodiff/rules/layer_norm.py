"""LayerNormalization and RMSNormalization: one operator gives all gradients, for they share their sums.

With rows of H elements, x' the normalized row and g = scale dY:

    dX = inv (g - mean(g) - x' mean(g x')),   dScale = sum over rows of dY x',   dBias = sum over rows of dY

(RMSNormalization: without mean(g).) Both factors of a row are affine maps of it, which BatchNormalization's
kernel evaluates in one pass. They read X, dY and one or two numbers a row that the forward operator writes; two
temporaries of X's size are alive at once.
"""

from __future__ import annotations

import math

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import column_sum, rows_affine
from poetopt.graph import Tensor


@register_vjp("LayerNormalization", since=17)
def layer_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """See above; mean and 1 / sqrt(variance + epsilon) of each row are the forward operator's outputs."""
    dy = cotangents[0]
    if dy is None:
        return (None,) * len(op.inputs)
    k = op.emit("grad_input")
    mean, inv = (k.cast(op.output(index), op.x.dtype) for index in (1, 2))
    found = row_norm(op, k, op.only((dy, *cotangents[1:])), mean, inv)
    if op.x.dtype == "float32" and op.has(1) and op.input(1).size == _matrix(op)[1]:
        k.amounts_to(
            "LayerNormalization.gradient", [dy, op.x, op.input(1), mean, inv], found, axis=op.attr_int("axis", -1)
        )
    return found


@register_vjp("RMSNormalization", since=23)
def rms_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """See above; 1 / sqrt(mean of squares + epsilon) is found again, from X."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    rows, columns = _matrix(op)
    squares = k.reduce_sum(k.mul(k.reshape(op.x, (rows, columns)), k.reshape(op.x, (rows, columns))), [1])
    epsilon = k.graph.scalar(op.attr_float("epsilon", 1e-5), op.x.dtype)
    inv = k.unary("Reciprocal", k.unary("Sqrt", k.add(k.mul(squares, 1.0 / columns), epsilon)))
    return row_norm(op, k, dy, None, inv)


def _matrix(op: Primal) -> tuple[int, int]:
    """Rows and columns: what is in front of the first normalized axis, and the rest."""
    shape = op.x.shape
    axis = op.attr_int("axis", -1) % len(shape)
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def row_norm(op: Primal, k: OperatorBuilder, dy: Tensor, mean: Tensor | None, inv: Tensor) -> Gradients:
    """The gradients, from the mean (None: not subtracted) and the inverse deviation of each row."""
    rows, columns = _matrix(op)
    inner = op.x.shape[op.attr_int("axis", -1) % len(op.x.shape) :]
    x, d = k.reshape(op.x, (rows, columns)), k.reshape(dy, (rows, columns))
    scale = k.expand(op.input(1), inner) if op.has(1) else k.graph.constant(np.ones(inner, x.dtype))
    normal = rows_affine(k, x, inv, None, mean)
    product = k.mul(normal, d)
    dscale = k.reshape(column_sum(k, product), inner) if op.need(1) else None
    dbias = k.reshape(column_sum(k, d), inner) if op.need(2) else None
    dx = None
    if op.need(0):
        slope = k.gemm(product, k.reshape(scale, (columns, 1)), alpha=-1.0 / columns)
        weighted = k.mul(d, k.reshape(scale, (1, columns)))
        middle = None if mean is None else k.mul(k.reduce_sum(weighted, [1]), 1.0 / columns)
        pulled = rows_affine(k, weighted, inv, None, middle)
        tilt = k.mul(k.mul(slope, k.reshape(inv, (rows, 1))), k.reshape(inv, (rows, 1)))
        dx = k.reshape(k.add(pulled, rows_affine(k, x, tilt, None, mean)), op.x.shape)
    return dx, dscale, dbias
