"""GroupNormalization and InstanceNormalization: one operator gives all gradients, for they share their sums.

With rows of H elements (a group of channels of one image; for InstanceNormalization a channel), x' the
normalized row and g = scale dY: dX = inv (g - mean(g) - x' mean(g x')). Sums over a channel's positions are taken once
and give dScale, dBias and both means. Reads X and dY; two temporaries of X's size are alive at once.
"""

from __future__ import annotations

import math

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import rows_affine
from poetopt.graph import Tensor


@register_vjp("InstanceNormalization", since=6)
def instance_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """Every channel of every image is a row."""
    return _grouped(op, op.only(cotangents), op.x.shape[1])


@register_vjp("GroupNormalization", since=18)
def group_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """`num_groups` rows an image; scale and bias have an element a channel, before opset 21 a group."""
    return _grouped(op, op.only(cotangents), op.attr_int("num_groups", 1))


def _grouped(op: Primal, dy: Tensor, groups: int) -> Gradients:
    x, scale = op.x, op.input(1)
    batch, channels = x.shape[:2]
    positions = math.prod(x.shape[2:])
    each = channels // groups
    rows, columns = batch * groups, each * positions
    k = op.emit("grad_input")
    normal, inv = _normalized(k, k.reshape(x, (rows, columns)), op.attr_float("epsilon", 1e-5))
    d = k.reshape(dy, (batch * channels, positions))
    tilted = k.reduce_sum(k.mul(k.reshape(normal, d.shape), d), [1])
    plain = k.reduce_sum(d, [1])
    factors = k.reshape(scale, (1, channels)) if scale.size == channels else _spread(k, scale, each)
    dscale = dbias = dx = None
    if op.need(1):
        dscale = _per_parameter(k, tilted, batch, channels, scale)
    if op.need(2):
        dbias = _per_parameter(k, plain, batch, channels, op.input(2))
    if op.need(0):
        slopes = [
            k.mul(
                k.reduce_sum(k.reshape(k.mul(k.reshape(t, (batch, channels)), factors), (rows, each)), [1]),
                k.mul(inv, -1.0 / columns),
            )
            for t in (tilted, plain)
        ]
        spread = k.mul(k.reshape(inv, (batch, groups, 1)), k.reshape(factors, (1, groups, each)))
        pulled = k.reshape(rows_affine(k, d, spread, None, None), x.shape)
        dx = k.add(pulled, k.reshape(rows_affine(k, normal, slopes[0], slopes[1], None), x.shape))
    return dx, dscale, dbias


def _normalized(k: OperatorBuilder, x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The normalized rows of x, and 1 / sqrt(variance + epsilon) [rows, 1]: LayerNormalization has both."""
    rows = (x.shape[0], 1)
    normal, inv = k.out(x.shape, x.dtype), k.out(rows, "float32", f"{k.name}/inverse_deviation")
    mean = k.out(rows, "float32", f"{k.name}/mean")
    ones = k.graph.constant(np.ones(x.shape[1], x.dtype))
    k.write("LayerNormalization", [x, ones], [normal, mean, inv], axis=1, epsilon=epsilon)
    return normal, k.cast(inv, x.dtype)


def _spread(k: OperatorBuilder, scale: Tensor, each: int) -> Tensor:
    """A group's factor for each of its channels, [1, channels]."""
    column = k.expand(k.reshape(scale, (scale.size, 1)), (scale.size, each))
    return k.reshape(column, (1, scale.size * each))


def _per_parameter(k: OperatorBuilder, sums: Tensor, batch: int, channels: int, like: Tensor) -> Tensor:
    """Sums for each image and channel, added up for each element of a parameter."""
    split = k.reshape(sums, (batch, like.size, channels // like.size))
    return k.reshape(k.reduce_sum(split, [0, 2]), like.shape)
