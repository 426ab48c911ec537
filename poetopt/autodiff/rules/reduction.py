"""Reductions: the gradient is spread over what was reduced."""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import masked
from poetopt.autodiff.vocabulary import normalized
from poetopt.graph import Tensor


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
