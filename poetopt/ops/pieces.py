"""Small constructions that several rules share, each in as few passes over memory as onnxruntime's kernels allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.graph import Tensor

if TYPE_CHECKING:
    from poetopt.graph import Array


STEEP = 3e38
"""Slope near the largest float32: it takes any normal positive number beyond one."""


def affine(k: OperatorBuilder, x: Tensor, scale: float, bias: float) -> Tensor:
    """Return scale x + bias in one pass: BatchNormalization of a single channel."""
    if x.dtype not in {"float32", "float64"}:
        scaled = k.mul(x, scale)
        return k.add(scaled, k.graph.scalar(bias, x.dtype)) if bias else scaled
    if not bias:
        return k.mul(x, scale)
    vector = [k.graph.constant(np.full(1, value, x.dtype)) for value in (scale, bias, 0.0, 1.0)]
    flat = k.reshape(x, (1, 1, x.size))
    return k.reshape(k.node("BatchNormalization", [flat, *vector], flat.shape, x.dtype, epsilon=0.0), x.shape)


def rows_affine(k: OperatorBuilder, x: Tensor, scale: Tensor, bias: Tensor | None, mean: Tensor | None) -> Tensor:
    """Return scale (x - mean) + bias in one pass over x [rows, columns].

    It is a BatchNormalization whose channels are the rows.

    Parameters
    ----------
    scale, bias, mean
        Vectors with one element per row of x; None for 0.
    """
    rows, columns = x.shape
    zeros, ones = (k.graph.constant(np.full(rows, value, x.dtype)) for value in (0.0, 1.0))
    vectors = [zeros if t is None else k.reshape(t, (rows,)) for t in (scale, bias, mean)]
    wide = k.reshape(x, (1, rows, columns))
    return k.reshape(k.node("BatchNormalization", [wide, *vectors, ones], wide.shape, x.dtype, epsilon=0.0), x.shape)


def positive(k: OperatorBuilder, x: Tensor) -> Tensor:
    """Return 1 where x > 0, else 0, in one pass.

    It is a HardSigmoid so steep that only denormal numbers lie on its slope. It takes half the time of Greater and
    Cast, and a third of Sign's. Types without that kernel get Greater and Cast.
    """
    if x.dtype != "float32":
        return k.cast(k.compare("Greater", x, 0.0), x.dtype)
    return k.unary("HardSigmoid", x, alpha=STEEP, beta=0.0)


def masked(k: OperatorBuilder, dy: Tensor, factor: Tensor) -> Tensor:
    """Return dy times `factor`, and 0 wherever the factor is 0.

    The product can be written over the factor. Where the gradient may be infinite, inf times 0 would be NaN. Then a
    Where follows, whose kernel allocates twice the output.
    """
    product = k.mul(dy, factor)
    return k.where(k.cast(factor, "bool"), product, 0.0) if k.graph.flowing else product


def strictly_inside(k: OperatorBuilder, y: Tensor, bound: Array | None, below: bool) -> Tensor | None:
    """Return 1 where y differs from `bound`, else 0, for y that never lies beyond it.

    Return None where one pass can't decide this exactly.

    It is a HardSigmoid with the slope 2^k that takes the neighbouring float to 1. Scaling by a power of two is exact,
    and so is the difference of two floats that are this close.

    Parameters
    ----------
    bound
        The bound's value, where it is a constant.
    below
        Whether it is y's lower bound.
    """
    if bound is None or bound.size != 1 or y.dtype != "float32":
        return None
    value = np.float32(bound.reshape(-1)[0])
    if value and not 1e-18 < abs(float(value)) < 1e18:
        return None
    if not value:
        return positive(k, y) if below else k.unary("HardSigmoid", y, alpha=-STEEP, beta=0.0)
    towards = np.float32(np.inf if below else -np.inf)
    slope = 1.0 / float(np.nextafter(value, towards) - value)
    return k.unary("HardSigmoid", y, alpha=slope, beta=-slope * float(value))


def sign(k: OperatorBuilder, x: Tensor) -> Tensor:
    """Return the sign of x (-1, 0 or 1) by a steep HardSigmoid: two passes in half the time of Sign's one."""
    if x.dtype != "float32":
        return k.sign(x)
    return affine(k, k.unary("HardSigmoid", x, alpha=STEEP, beta=0.5), 2.0, -1.0)


def column_sum(k: OperatorBuilder, x: Tensor) -> Tensor:
    """Return the sum over the rows of x [rows, columns] as [columns]; a product with ones is the fastest way."""
    ones = k.graph.constant(np.ones((1, x.shape[0]), x.dtype))
    return k.reshape(k.gemm(ones, x), (x.shape[1],))
