"""ResNet-18 for 32x32 images: the stages of He et al. ("Deep Residual Learning", 2016, table 1) behind a 3x3 stem.

As commonly trained on CIFAR-10: the stem has stride 1 and no pooling, so that the four stages see 32, 16,
8 and 4 pixels a side; shortcuts that change shape are 1x1 convolutions with their own BatchNormalization.
All BatchNormalization is in training mode.
"""

from __future__ import annotations

from onnx import ModelProto

from poetopt.zoo.network import Network

SEED = 18
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and first stride of each stage of two blocks."""


def build(batch: int) -> ModelProto:
    """Input [batch, 3, 32, 32], output [batch, 10]; 62 parameters."""
    net = Network("resnet18-cifar", SEED)
    x = net.input("input", (batch, 3, 32, 32))
    x = net.relu(net.batch_norm(net.conv(x, "conv1", (3, 64), 3, pad=1), "bn1", 64), "relu1")
    before = 64
    for stage, (channels, stride) in enumerate(STAGES, start=1):
        for place in range(2):
            x = block(net, x, f"layer{stage}.{place}", (before, channels), stride if place == 0 else 1)
            before = channels
    x = net.add("GlobalAveragePool", [x], "avgpool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "fc", 512, 10), (batch, 10))


def block(net: Network, x: str, name: str, channels: tuple[int, int], stride: int) -> str:
    """Two 3x3 convolutions beside a shortcut."""
    outside = channels[1]
    y = net.conv(x, f"{name}.conv1", channels, 3, stride, pad=1)
    y = net.relu(net.batch_norm(y, f"{name}.bn1", outside), f"{name}.relu1")
    y = net.conv(y, f"{name}.conv2", (outside, outside), 3, pad=1)
    y = net.batch_norm(y, f"{name}.bn2", outside)
    if stride != 1 or channels[0] != outside:
        x = net.conv(x, f"{name}.shortcut.0", channels, 1, stride)
        x = net.batch_norm(x, f"{name}.shortcut.1", outside)
    return net.relu(net.add("Add", [y, x], f"{name}.add"), f"{name}.relu2")
