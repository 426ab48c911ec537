"""Pooling."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder, Spread
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.geometry import Window, transposed, window
from poetopt.autodiff.rules.pieces import masked, sign
from poetopt.graph import Tensor


@register_vjp("MaxPool", since=8)
def max_pool(op: Primal, cotangents: Cotangents) -> Gradients:
    """Each maximum's place in X, which the forward operator wrote, gets its gradient added."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    dx = _put(k, dy, op)
    op.builder.spreads[dx.name] = Spread(op.y, dy, k.kind, partial(_put, op=op))
    return (dx,)


def _put(k: OperatorBuilder, dy: Tensor, op: Primal) -> Tensor:
    """`dy` added up where the maxima of the MaxPool `op` were found."""
    indices = k.reshape(_row_major(k, op), (dy.size,))
    flat = k.scatter_add(k.zeros((op.x.size,), op.x.dtype), indices, k.reshape(dy, (dy.size,)), 0)
    dx = k.reshape(flat, op.x.shape)
    if len(op.outputs) > 1 and op.outputs[1] is not None and not op.attr_int("storage_order", 0):
        k.amounts_to("MaxPool.grad_input", [dy, op.output(1)], [dx])
    return dx


def _row_major(k: OperatorBuilder, op: Primal) -> Tensor:
    """The indices, found again where the model wants them column by column."""
    if len(op.operator.nodes) == 1 and op.attr_int("storage_order", 0):
        again, indices = k.out(op.y.shape, op.y.dtype), k.out(op.y.shape, "int64", f"{k.name}/indices")
        k.write("MaxPool", [op.x], [again, indices], **{**op.node.attributes, "storage_order": 0})
        return indices
    return op.output(1)


@register_vjp("AveragePool", since=7)
def average_pool(op: Primal, cotangents: Cotangents) -> Gradients:
    """dY divided by each window's count of elements, then the adjoint of a convolution with ones."""
    dy, x = op.only(cotangents), op.x
    frame = window(op, op.attr_ints("kernel_shape") or ())
    k = op.emit("grad_input")
    counts = _counts(frame, padded=bool(op.attr_int("count_include_pad", 0)))
    share = np.float64(1.0) / np.maximum(counts, 1)
    same = bool(np.all(counts == counts.flat[0]))
    factor = k.graph.constant(np.asarray(share.flat[0] if same else share, x.dtype))
    planes = k.reshape(k.mul(dy, factor), (x.shape[0] * x.shape[1], 1, *frame.out))
    ones = k.graph.constant(np.ones((1, 1, *frame.kernel), x.dtype))
    dx = k.reshape(transposed(k, planes, ones, frame), x.shape)
    k.amounts_to(
        "AveragePool.grad_input", [dy], [dx], kernel_shape=list(frame.kernel), strides=list(frame.strides),
        dilations=list(frame.dilations), pads=[*frame.before, *frame.declared_after],
        count_include_pad=op.attr_int("count_include_pad", 0),
    )  # fmt: skip
    return (dx,)


@register_vjp("LpPool", since=2)
def lp_pool(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = X |X|^(p - 2) times the adjoint of a convolution with ones of dY Y^(1 - p), 0 where a window's norm is.

    Reads X, and Y unless p is 1; two temporaries of X's size.
    """
    dy, x, power = op.only(cotangents), op.x, op.attr_int("p", 2)
    frame = window(op, op.attr_ints("kernel_shape") or ())
    k = op.emit("grad_input")
    if power > 1:
        norm = k.add(op.y, k.cast(k.compare("Equal", op.y, 0.0), dy.dtype))
        dy = k.div(dy, norm if power == 2 else _raised(k, norm, power - 1))
    planes = k.reshape(dy, (x.shape[0] * x.shape[1], 1, *frame.out))
    ones = k.graph.constant(np.ones((1, 1, *frame.kernel), x.dtype))
    spread = k.reshape(transposed(k, planes, ones, frame), x.shape)
    if power == 1:
        return (masked(k, spread, sign(k, x)),)
    return (k.mul(x if power == 2 else k.mul(x, _raised(k, k.unary("Abs", x), power - 2)), spread),)


def _raised(k: OperatorBuilder, x: Tensor, power: int) -> Tensor:
    return x if power == 1 else k.binary("Pow", x, k.graph.scalar(float(power), x.dtype))


def _counts(frame: Window, *, padded: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """How many elements each window averages: those of x, or of x with its declared pads."""
    counts = np.ones((), np.int64)
    for axis in range(frame.rank):
        low = -frame.before[axis] if padded else 0
        high = frame.size[axis] + (frame.declared_after[axis] if padded else 0)
        line = []
        for position, tap in itertools.product(range(frame.out[axis]), range(frame.kernel[axis])):
            at = position * frame.strides[axis] + tap * frame.dilations[axis] - frame.before[axis]
            line.append(low <= at < high)
        counts = np.multiply.outer(counts, np.reshape(line, (frame.out[axis], frame.kernel[axis])).sum(1))
    return counts


@register_vjp("GlobalAveragePool", since=1)
def global_average_pool(op: Primal, cotangents: Cotangents) -> Gradients:
    """Every element gets its share of the mean's gradient."""
    dy, x = op.only(cotangents), op.x
    k = op.emit("grad_input")
    return (k.expand(k.mul(dy, 1.0 / math.prod(x.shape[2:])), x.shape),)
