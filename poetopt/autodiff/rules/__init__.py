"""The rules of the package, a file a family; importing this registers them all."""

from poetopt.autodiff.rules import (
    activation,
    arithmetic,
    convolution,
    indexing,
    loss,
    nondifferentiable,
    normalization,
    pointwise,
    pooling,
    product,
    reduction,
    shape,
)

__all__ = [
    "activation",
    "arithmetic",
    "convolution",
    "indexing",
    "loss",
    "nondifferentiable",
    "normalization",
    "pointwise",
    "pooling",
    "product",
    "reduction",
    "shape",
]
