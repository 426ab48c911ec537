"""LpNormalization, MeanVarianceNormalization and LRN."""

from __future__ import annotations

import math

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import sign
from poetopt.autodiff.vocabulary import normalized
from poetopt.graph import Tensor

TINY = float(np.finfo(np.float32).tiny)

MEAN_VARIANCE_AXES = (0, 2, 3)
MEAN_VARIANCE_EPSILON = 1e-9
"""Both as the operator's definition has them; the latter is added to the standard deviation, not to the variance."""


@register_vjp("LpNormalization", since=1)
def lp_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """With Y = X / |X| along the axis: dX = (dY - N sum(dY Y)) / |X|, N = Y for p = 2 and sign(X) for p = 1.

    Reads X, and Y where it is kept anyway; three temporaries of X's size.
    """
    dy, x = op.only(cotangents), op.x
    axis = op.attr_int("axis", -1) % len(x.shape)
    k = op.emit("grad_input")
    shape = tuple(1 if a == axis else d for a, d in enumerate(x.shape))
    first = op.attr_int("p", 2) == 1
    norm = k.node("ReduceL1" if first else "ReduceL2", [x, k.graph.ints([axis])], shape, x.dtype)
    norm = k.binary("Max", norm, k.graph.scalar(TINY, x.dtype))
    y = op.y if op.builder.kept(op.y) else k.div(x, norm)
    total = k.reduce_sum(k.mul(dy, y), [axis])
    slope = k.mul(sign(k, x) if first else y, total)
    return (k.div(k.sub(dy, slope), norm),)


@register_vjp("MeanVarianceNormalization", since=9)
def mean_variance(op: Primal, cotangents: Cotangents) -> Gradients:
    """With D the standard deviation over the axes and Y = (X - mean(X)) / D: dX = (dY - mean(dY) - Y mean(dY Y)) / D.

    Reads X, and Y where it is kept anyway; three temporaries of X's size.
    """
    dy, x = op.only(cotangents), op.x
    axes = normalized(op.attr_ints("axes") or MEAN_VARIANCE_AXES, len(x.shape))
    share = 1.0 / max(math.prod(x.shape[axis] for axis in axes), 1)
    k = op.emit("grad_input")
    centred = k.sub(x, k.mul(k.reduce_sum(x, axes), share))
    variance = k.mul(k.reduce_sum(k.mul(centred, centred), axes), share)
    deviation = k.add(k.unary("Sqrt", variance), k.graph.scalar(MEAN_VARIANCE_EPSILON, x.dtype))
    y = op.y if op.builder.kept(op.y) else k.div(centred, deviation)
    tilted = k.mul(k.reduce_sum(k.mul(dy, y), axes), share)
    plain = k.mul(k.reduce_sum(dy, axes), share)
    return (k.div(k.sub(k.sub(dy, plain), k.mul(y, tilted)), deviation),)


@register_vjp("LRN", since=1)
def local_response(op: Primal, cotangents: Cotangents) -> Gradients:
    """With D = bias + alpha / size (sum of squares of the nearest channels) and Y = X D^-beta:

    dX = dY D^-beta - 2 alpha beta / size X (sum over the channels that X reaches of dY Y / D). Sums over channels
    are averages of windows. Reads X and Y; three temporaries of X's size.
    """
    dy, x, y = op.only(cotangents), op.x, op.y
    size, alpha, beta = op.attr_int("size", 1), op.attr_float("alpha", 1e-4), op.attr_float("beta", 0.75)
    flat = (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:]))
    below, above = (size - 1) // 2, size // 2
    k = op.emit("grad_input")
    squares = _means(k, k.reshape(k.mul(x, x), flat), below, above)
    denominator = k.add(k.mul(squares, alpha), k.graph.scalar(op.attr_float("bias", 1.0), x.dtype))
    pulled = k.div(k.mul(k.reshape(dy, flat), k.reshape(y, flat)), denominator)
    reach = k.mul(k.mul(_means(k, pulled, above, below), -2.0 * alpha * beta), k.reshape(x, flat))
    power = k.binary("Pow", denominator, k.graph.scalar(-beta, x.dtype))
    return (k.reshape(k.add(k.mul(power, k.reshape(dy, flat)), reach), x.shape),)


def _means(k: OperatorBuilder, x: Tensor, below: int, above: int) -> Tensor:
    """Of each channel [N, 1, channels, positions] and so many below and above it, absent ones counted as zeros."""
    if not below and not above:
        return x
    return k.node(
        "AveragePool", [x], x.shape, x.dtype, kernel_shape=[below + above + 1, 1], pads=[below, 0, above, 0],
        strides=[1, 1], count_include_pad=1,
    )  # fmt: skip
