"""Small constructions that several rules share, each in as few passes over memory as onnxruntime has kernels for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.graph import Tensor

if TYPE_CHECKING:
    from poetopt.graph import Array


STEEP = 3e38
"""Near the largest float32: what multiplies any normal positive number beyond one."""


def affine(k: OperatorBuilder, x: Tensor, scale: float, bias: float) -> Tensor:
    """scale x + bias in one pass: BatchNormalization of a single channel."""
    if x.dtype not in {"float32", "float64"}:
        scaled = k.mul(x, scale)
        return k.add(scaled, k.graph.scalar(bias, x.dtype)) if bias else scaled
    if not bias:
        return k.mul(x, scale)
    vector = [k.graph.constant(np.full(1, value, x.dtype)) for value in (scale, bias, 0.0, 1.0)]
    flat = k.reshape(x, (1, 1, x.size))
    return k.reshape(k.node("BatchNormalization", [flat, *vector], flat.shape, x.dtype, epsilon=0.0), x.shape)


def rows_affine(k: OperatorBuilder, x: Tensor, scale: Tensor, bias: Tensor | None, mean: Tensor | None) -> Tensor:
    """scale (x - mean) + bias in one pass over x [rows, columns]: BatchNormalization whose channels are the rows.

    scale, bias, mean
        As many elements as x has rows.
    """
    rows, columns = x.shape
    zeros, ones = (k.graph.constant(np.full(rows, value, x.dtype)) for value in (0.0, 1.0))
    vectors = [zeros if t is None else k.reshape(t, (rows,)) for t in (scale, bias, mean)]
    wide = k.reshape(x, (1, rows, columns))
    return k.reshape(k.node("BatchNormalization", [wide, *vectors, ones], wide.shape, x.dtype, epsilon=0.0), x.shape)


def positive(k: OperatorBuilder, x: Tensor) -> Tensor:
    """1 where x > 0, else 0, in one pass: a HardSigmoid so steep that only denormal numbers lie on its slope.

    It takes half the time of Greater and Cast, and a third of Sign's. Types without that kernel get the former.
    """
    if x.dtype != "float32":
        return k.cast(k.compare("Greater", x, 0.0), x.dtype)
    return k.unary("HardSigmoid", x, alpha=STEEP, beta=0.0)


def masked(k: OperatorBuilder, dy: Tensor, factor: Tensor) -> Tensor:
    """dy times `factor`, and 0 wherever that is 0.

    A product, which can be written over the factor; where the gradient may be infinite, and inf times 0 would be NaN,
    a choice behind it, whose kernel takes twice the output.
    """
    product = k.mul(dy, factor)
    return k.where(k.cast(factor, "bool"), product, 0.0) if k.graph.flowing else product


def strictly_inside(k: OperatorBuilder, y: Tensor, bound: Array | None, below: bool) -> Tensor | None:
    """1 where y lies off `bound`, else 0, for y that never lies beyond it; None where one pass can't tell exactly.

    bound
        The bound's value, where it is a constant.
    below
        Whether it is y's lower bound.

    A HardSigmoid with the slope 2^k that takes the neighbouring float to 1: scaling by a power of two is exact, and so
    is the difference of two floats that close to each other.
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
    """-1, 0 or 1 as x is, by a steep HardSigmoid: two passes in half the time of Sign's one."""
    if x.dtype != "float32":
        return k.sign(x)
    return affine(k, k.unary("HardSigmoid", x, alpha=STEEP, beta=0.5), 2.0, -1.0)


def column_sum(k: OperatorBuilder, x: Tensor) -> Tensor:
    """The sum over the rows of x [rows, columns], as [columns]: a product with ones is the fastest way."""
    ones = k.graph.constant(np.ones((1, x.shape[0]), x.dtype))
    return k.reshape(k.gemm(ones, x), (x.shape[1],))
