"""dW of a convolution."""

from __future__ import annotations

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.rules.geometry import Window
from poetopt.graph import Tensor


def weight_gradient(k: OperatorBuilder, x: Tensor, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    """The gradient of w [M, C/group, ...], given x [N, C, ...] and that of the output [N, M, ...]."""
    return swap(k, x, dy, w, window, group)


def swap(k: OperatorBuilder, x: Tensor, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    """Roles swapped: x is convolved with dY, images for channels, strides for dilations."""
    batch, inputs = x.shape[0], w.shape[1]
    outputs = w.shape[0] // group
    axes = range(window.rank)
    images = k.transpose(k.reshape(x, (batch, group, inputs, *window.size)), [2, 1, 0, *(3 + a for a in axes)])
    images = k.reshape(images, (inputs, group * batch, *window.size))
    kernels = k.transpose(dy, [1, 0, *(2 + a for a in axes)])
    after = [max(a, 0) for a in window.after]
    result = k.conv(
        images, kernels, strides=window.dilations, dilations=window.strides, pads=[*window.before, *after], group=group
    )
    result = k.slice(result, [0] * window.rank, window.kernel, [2 + a for a in axes])
    result = k.transpose(result, [1, 0, *(2 + a for a in axes)])
    return k.reshape(result, (group * outputs, inputs, *window.kernel))
