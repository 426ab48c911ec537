"""Gradients of reductions."""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.vocabulary import normalized
from poetopt.graph import Tensor
from poetopt.ops.pieces import masked, sign


def reduced_axes(op: Primal) -> tuple[int, ...]:
    """The axes that a reduction sums over: an attribute in older opsets, an input in newer ones."""
    rank = len(op.x.shape)
    axes = op.attr_ints("axes")
    if axes is None and op.has(1):
        axes = tuple(int(a) for a in np.asarray(op.known(1)).reshape(-1))
    if not axes:
        return () if op.attr_int("noop_with_empty_axes", 0) else tuple(range(rank))
    return normalized(axes, rank)


def kept_shape(op: Primal) -> tuple[int, ...]:
    """The input's shape with reduced axes of length one."""
    axes = reduced_axes(op)
    return tuple(1 if axis in axes else d for axis, d in enumerate(op.x.shape))


def _spread(op: Primal, dy: Tensor, factor: float) -> Tensor:
    k = op.emit("grad_input")
    return k.expand(k.reshape(k.mul(dy, factor), kept_shape(op)), op.x.shape)


@register_vjp("ReduceSum", since=1)
def reduce_sum(op: Primal, cotangents: Cotangents) -> Gradients:
    """Every element gets the gradient of its sum."""
    return (_spread(op, op.only(cotangents), 1.0), None)


@register_vjp("ReduceMean", since=1)
def reduce_mean(op: Primal, cotangents: Cotangents) -> Gradients:
    """Every element gets its share of the gradient of its mean."""
    return (_spread(op, op.only(cotangents), op.y.size / max(op.x.size, 1)), None)


def _extreme(op: Primal, cotangents: Cotangents) -> Gradients:
    """Elements that equal the result share its gradient evenly."""
    dy, shape = op.only(cotangents), kept_shape(op)
    k = op.emit("grad_input")
    mask = k.cast(k.compare("Equal", op.x, k.reshape(op.y, shape)), dy.dtype)
    winners = k.reduce_sum(mask, reduced_axes(op))
    return masked(k, k.div(k.reshape(dy, shape), winners), mask), None


@register_vjp("ReduceMax", since=1)
def reduce_max(op: Primal, cotangents: Cotangents) -> Gradients:
    """The largest elements share dY."""
    return _extreme(op, cotangents)


@register_vjp("ReduceMin", since=1)
def reduce_min(op: Primal, cotangents: Cotangents) -> Gradients:
    """The smallest elements share dY."""
    return _extreme(op, cotangents)


def _start(op: Primal, cotangents: Cotangents) -> tuple[OperatorBuilder, Tensor, Tensor]:
    """A builder, dY and Y with the reduced axes of length one."""
    k = op.emit("grad_input")
    shape = kept_shape(op)
    return k, k.reshape(op.only(cotangents), shape), k.reshape(op.y, shape)


@register_vjp("ReduceSumSquare", since=1)
def sum_of_squares(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = 2 X dY. Reads X; no temporary of its size."""
    k, dy, _ = _start(op, cotangents)
    return k.mul(op.x, k.mul(dy, 2.0)), None


@register_vjp("ReduceL1", since=1)
def sum_of_magnitudes(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = sign(X) dY. Reads X; two temporaries."""
    k, dy, _ = _start(op, cotangents)
    return masked(k, dy, sign(k, op.x)), None


@register_vjp("ReduceL2", since=1)
def length(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = X dY / Y, 0 where Y is. Reads X and Y; no temporary of X's size."""
    k, dy, y = _start(op, cotangents)
    return masked(k, k.div(dy, k.add(y, k.cast(k.compare("Equal", y, 0.0), y.dtype))), op.x), None


@register_vjp("ReduceLogSum", since=1)
def log_of_sum(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY exp(-Y). Reads Y; no temporary of X's size."""
    k, dy, y = _start(op, cotangents)
    return k.expand(k.mul(dy, k.unary("Exp", k.neg(y))), op.x.shape), None


@register_vjp("ReduceLogSumExp", since=1)
def log_of_sum_of_exponentials(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = exp(X - Y) dY. Reads X and Y; two temporaries."""
    k, dy, y = _start(op, cotangents)
    return k.mul(k.unary("Exp", k.sub(op.x, y)), dy), None


@register_vjp("ReduceProd", since=1)
def product(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY times the product of all others, also where there are zeros. Reads X; three temporaries.

    With X' = X, its zeros replaced by ones: the product of X' divided by X', where no other element is zero.
    """
    k, dy, _ = _start(op, cotangents)
    x, axes = op.x, reduced_axes(op)
    zeros = k.cast(k.compare("Equal", x, 0.0), x.dtype)
    filled = k.add(x, zeros)
    if not axes:  # an empty list would mean all of them
        whole = filled
    elif k.graph.opset >= 18:
        whole = k.node("ReduceProd", [filled, k.graph.ints(axes)], dy.shape, x.dtype)
    else:
        whole = k.node("ReduceProd", [filled], dy.shape, x.dtype, axes=list(axes))
    alone = k.cast(k.compare("Equal", k.reduce_sum(zeros, axes), zeros), x.dtype)
    return masked(k, k.div(k.mul(dy, whole), filled), alone), None


@register_vjp("GlobalMaxPool", since=1)
def global_max_pool(op: Primal, cotangents: Cotangents) -> Gradients:
    """The largest elements share dY evenly. Reads X and Y; two temporaries."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    mask = k.cast(k.compare("Equal", op.x, op.y), dy.dtype)
    winners = k.reduce_sum(mask, range(2, len(op.x.shape)))
    return (masked(k, k.div(dy, winners), mask),)


@register_vjp("CumSum", since=11)
def running_sum(op: Primal, cotangents: Cotangents) -> Gradients:
    """The running sum of dY from the other end. Reads nothing; no temporary."""
    dy = op.only(cotangents)
    settings: dict[str, object] = {"exclusive": op.attr_int("exclusive", 0), "reverse": 1 - op.attr_int("reverse", 0)}
    k = op.emit("grad_input")
    return k.node("CumSum", [dy, op.input(1)], dy.shape, dy.dtype, **settings), None
