"""Quantized tensors: how their elements share scales and zero points.

`DequantizeLinear` writes y = (x - z) s, element by element, in the type of s. z has the type of x, and is 0 if it is
left out. There is one s (and z) for all elements, or one for each step of an axis, or one for each block along an axis.
With blocks, s has the shape of x, except for ceil(K / block) steps along that axis. No gradient passes to x, s or z.

Source: ONNX, DequantizeLinear-21.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from poetopt.graph import PACKED, Node, Tensor

if TYPE_CHECKING:
    from poetopt.graph import Array


def halves(packed: Array) -> Array:
    """Unpack bytes along the last axis into two elements of four bits each, from 0 to 15; low bits come first."""
    bits = packed.astype(np.uint8)
    return np.stack([bits & 15, bits >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


class Sharing(NamedTuple):
    """The elements that share a scale.

    Attributes
    ----------
    axis
        The axis along which scales differ; None if there is one for all.
    block
        Steps of the axis that share a scale, if scales differ along the other axes too; 0 if they differ along `axis`
        alone.
    """

    axis: int | None
    block: int = 0


def sharing(shape: Sequence[int], scale: Sequence[int], axis: int, block: int) -> Sharing:
    """Return how elements share scales, from the shapes of tensor and scale and the attributes `axis` and `block_size`.

    Raises
    ------
    ValueError
        They don't fit each other; the message says how.
    """
    if block < 0:
        raise ValueError(f"its block_size is {block}, but must be 0 or more")
    if prod(scale) == 1 and len(scale) < 2:
        if block:
            raise ValueError(f"its block_size is {block}, but it has one scale for all (scale of shape {list(scale)})")
        return Sharing(None)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"its axis is {axis}, but its input has {len(shape)} axes (shape {list(shape)})")
    axis %= len(shape)
    expected = [-(-n // block) if k == axis else n for k, n in enumerate(shape)] if block else [shape[axis]]
    if list(scale) != expected:
        each = f"block of {block} along axis {axis}" if block else f"step of axis {axis}"
        raise ValueError(
            f"its scale has shape {list(scale)}, but must have one element for each {each} of its input of shape "
            f"{list(shape)}: {expected}"
        )
    return Sharing(axis, block)


def settings(node: Node) -> tuple[int, int]:
    """Return the attributes `axis` and `block_size` of a DequantizeLinear."""
    axis, block = (node.attributes.get(name, default) for name, default in (("axis", 1), ("block_size", 0)))
    return int(axis), int(block)  # type: ignore[call-overload]


def cut_in_bytes(tensor: Tensor, axis: int) -> bool:
    """Return whether each step of an axis is whole bytes."""
    return prod(tensor.shape[axis + 1 :]) % PACKED.get(tensor.dtype, 1) == 0
