"""MobileNetV2 (Sandler et al., 2018, table 2): width 1.0 for 224x224 images, and 0.35 for 128x128.

All BatchNormalization is in training mode; ReLU6 is a Clip between 0 and 6. The Dropout in front of the
classifier is left out.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from poetopt.zoo.network import Network

SEED = 2
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, output channels, blocks and first stride of each stage."""


WIDTHS = {"mobilenetv2": (1.0, 224), "mobilenetv2-035": (0.35, 128)}
"""Width, and pixels a side."""


def build(batch: int, name: str = "mobilenetv2") -> ModelProto:
    """Input [batch, 3, side, side], output [batch, 1000]; 158 parameters."""
    width, side = WIDTHS[name]
    net = Network(name, SEED)
    x = net.input("input", (batch, 3, side, side))
    net.constant("zero", np.zeros((), np.float32))
    net.constant("six", np.full((), 6.0, np.float32))
    before, index = _widened(32, width), 1
    x = _convolution(net, x, "features.0", (3, before), 3, 2)
    for expansion, full, blocks, stride in STAGES:
        channels = _widened(full, width)
        for block in range(blocks):
            sizes = (before, before * expansion, channels)
            x = _block(net, x, f"features.{index}.conv", sizes, stride if block == 0 else 1)
            before, index = channels, index + 1
    x = _convolution(net, x, f"features.{index}", (before, 1280), 1, 1)
    x = net.add("GlobalAveragePool", [x], "pool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "classifier.1", 1280, 1000), (batch, 1000))


def _widened(channels: int, width: float) -> int:
    """The multiple of 8 that is nearest to `width` of the channels, and no more than a tenth below it."""
    wanted = channels * width
    found = max(8, int(wanted + 4) // 8 * 8)
    return found if found >= 0.9 * wanted else found + 8


def _convolution(
    net: Network, x: str, name: str, channels: tuple[int, int], kernel: int, stride: int, group: int = 1
) -> str:
    x = net.conv(x, f"{name}.0", channels, kernel, stride, pad=kernel // 2, group=group)
    x = net.batch_norm(x, f"{name}.1", channels[1])
    return net.add("Clip", [x, "zero", "six"], f"{name}.2")


def _block(net: Network, x: str, name: str, channels: tuple[int, int, int], stride: int) -> str:
    """Expansion, depthwise 3x3 convolution and linear projection, with a shortcut where the shape stays."""
    before, inner, after = channels
    y, layer = x, 0
    if inner != before:
        y, layer = _convolution(net, y, f"{name}.0", (before, inner), 1, 1), 1
    y = _convolution(net, y, f"{name}.{layer}", (inner, inner), 3, stride, group=inner)
    y = net.batch_norm(net.conv(y, f"{name}.{layer + 1}", (inner, after), 1), f"{name}.{layer + 2}", after)
    return net.add("Add", [x, y], f"{name}.add") if stride == 1 and before == after else y
