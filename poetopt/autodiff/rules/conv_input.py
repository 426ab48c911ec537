"""dX of a convolution: ConvTranspose, or a Conv with the flipped kernel."""

from __future__ import annotations

import math

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.rules.geometry import Window, transposed
from poetopt.graph import DTYPE_BYTES, Tensor


def input_gradient(k: OperatorBuilder, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    """The gradient of x [N, C, ...], given that of the output and w [M, C/group, ...].

    Both constructions give the same sums. ConvTranspose's kernel holds a column buffer of one image,
    C * taps * out elements, which no arena shows; the flipped kernel, for unit strides only, costs two copies of W.
    The smaller of the two is taken.
    """
    if _flippable(window) and 2 * w.nbytes < column_bytes(w, window):
        return _flipped(k, dy, w, window, group)
    return transposed(k, dy, w, window, group)


def column_bytes(w: Tensor, window: Window) -> int:
    """What the ConvTranspose kernel allocates for one group of one image."""
    return w.shape[1] * window.taps * math.prod(window.out) * DTYPE_BYTES[w.dtype]


def _flippable(window: Window) -> bool:
    reach = [(k - 1) * d for k, d in zip(window.kernel, window.dilations, strict=True)]
    pads = zip(reach, window.before, window.declared_after, strict=True)
    return window.unit_stride and all(0 <= b <= r and 0 <= a <= r for r, b, a in pads)


def _flipped(k: OperatorBuilder, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    outputs, inputs = w.shape[:2]
    spatial = window.kernel
    axes = range(len(spatial))
    swapped = k.reshape(w, (group, outputs // group, inputs, *spatial))
    swapped = k.transpose(swapped, [0, 2, 1, *(3 + a for a in axes)])
    kernel = k.flip(k.reshape(swapped, (group * inputs, outputs // group, *spatial)), [2 + a for a in axes])
    reach = [(s - 1) * d for s, d in zip(spatial, window.dilations, strict=True)]
    pads = [*(r - b for r, b in zip(reach, window.before, strict=True)),
            *(r - a for r, a in zip(reach, window.declared_after, strict=True))]  # fmt: skip
    return k.conv(dy, kernel, strides=window.strides, dilations=window.dilations, pads=pads, group=group)
