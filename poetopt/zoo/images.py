"""Perceptrons and convolutional networks for images: MLP, LeNet, VGG, ResNet, MobileNetV2."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from poetopt.zoo.network import Network


def mlp(batch: int) -> ModelProto:
    """A perceptron 784-256-128-10 with ReLU: the smallest network that has something to schedule.

    Input [batch, 784], output [batch, 10]; 6 parameters.
    """
    net = Network("mlp", 1)
    x = net.input("input", (batch, 784))
    x = net.relu(net.linear(x, "fc1", 784, 256), "relu1")
    x = net.relu(net.linear(x, "fc2", 256, 128), "relu2")
    return net.model(net.linear(x, "fc3", 128, 10), (batch, 10))


def lenet(batch: int) -> ModelProto:
    """LeNet-5 (LeCun et al., 1998) as it is trained today: ReLU for tanh, max pooling, all channels connected.

    Input [batch, 1, 28, 28], output [batch, 10]; 10 parameters.
    """
    net = Network("lenet", 5)
    x = net.input("input", (batch, 1, 28, 28))
    x = net.max_pool(net.relu(net.conv(x, "conv1", (1, 6), 5, pad=2, bias=True), "relu1"), "pool1")
    x = net.max_pool(net.relu(net.conv(x, "conv2", (6, 16), 5, bias=True), "relu2"), "pool2")
    x = net.add("Flatten", [x], "flatten", axis=1)
    x = net.relu(net.linear(x, "fc1", 400, 120), "relu3")
    x = net.relu(net.linear(x, "fc2", 120, 84), "relu4")
    return net.model(net.linear(x, "fc3", 84, 10), (batch, 10))


VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and number of convolutions before each pooling."""


def vgg16(batch: int) -> ModelProto:
    """VGG-16 for 32x32 images: configuration D of Simonyan and Zisserman (2015), 13 convolutions with biases.

    Input [batch, 3, 32, 32], output [batch, 10]; 32 parameters.

    The variant: no BatchNormalization, no Dropout, and the three fully connected layers narrowed to 512-512-10,
    as commonly done for CIFAR-10 (after five poolings one pixel of 512 channels is left).
    """
    net = Network("vgg16-cifar", 16)
    x = net.input("input", (batch, 3, 32, 32))
    before = 3
    for stage, (channels, convolutions) in enumerate(VGG_STAGES, start=1):
        for index in range(1, convolutions + 1):
            x = net.conv(x, f"conv{stage}_{index}", (before, channels), 3, pad=1, bias=True)
            x = net.relu(x, f"relu{stage}_{index}")
            before = channels
        x = net.max_pool(x, f"pool{stage}")
    x = net.add("Flatten", [x], "flatten", axis=1)
    x = net.relu(net.linear(x, "fc1", 512, 512), "relu_fc1")
    x = net.relu(net.linear(x, "fc2", 512, 512), "relu_fc2")
    return net.model(net.linear(x, "fc3", 512, 10), (batch, 10))


RESNET18_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and first stride of each stage of two blocks."""


def resnet18(batch: int) -> ModelProto:
    """ResNet-18 for 32x32 images: the stages of He et al. ("Deep Residual Learning", 2016, table 1) behind a 3x3 stem.

    Input [batch, 3, 32, 32], output [batch, 10]; 62 parameters.

    As commonly trained on CIFAR-10: the stem has stride 1 and no pooling, so that the four stages see 32, 16,
    8 and 4 pixels a side; shortcuts that change shape are 1x1 convolutions with their own BatchNormalization.
    All BatchNormalization is in training mode.
    """
    net = Network("resnet18-cifar", 18)
    x = net.input("input", (batch, 3, 32, 32))
    x = net.relu(net.batch_norm(net.conv(x, "conv1", (3, 64), 3, pad=1), "bn1", 64), "relu1")
    before = 64
    for stage, (channels, stride) in enumerate(RESNET18_STAGES, start=1):
        for place in range(2):
            x = residual(net, x, f"layer{stage}.{place}", (before, channels), stride if place == 0 else 1)
            before = channels
    x = net.add("GlobalAveragePool", [x], "avgpool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "fc", 512, 10), (batch, 10))


def residual(net: Network, x: str, name: str, channels: tuple[int, int], stride: int) -> str:
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


RESNET50_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Inner channels, blocks and first stride of each stage."""

EXPANSION = 4
"""A block's output has this many times its inner channels."""


def resnet50(batch: int) -> ModelProto:
    """ResNet-50 for 224x224 images (He et al., "Deep Residual Learning for Image Recognition", 2016, table 1).

    Input [batch, 3, 224, 224], output [batch, 1000]; 161 parameters.

    The variant known as v1.5, which PyTorch and its successors train: where a block halves the image, its 3x3
    convolution has the stride, not its first 1x1. All BatchNormalization is in training mode.
    """
    net = Network("resnet50", 50)
    x = net.input("input", (batch, 3, 224, 224))
    x = net.relu(net.batch_norm(net.conv(x, "conv1", (3, 64), 7, 2, pad=3), "bn1", 64), "relu")
    x = net.add("MaxPool", [x], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    before = 64
    for stage, (inner, blocks, stride) in enumerate(RESNET50_STAGES, start=1):
        for block in range(blocks):
            x = _bottleneck(net, x, f"layer{stage}.{block}", (before, inner), stride if block == 0 else 1)
            before = inner * EXPANSION
    x = net.add("GlobalAveragePool", [x], "avgpool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "fc", before, 1000), (batch, 1000))


def _bottleneck(net: Network, x: str, name: str, channels: tuple[int, int], stride: int) -> str:
    """A 1x1, a 3x3 and a 1x1 convolution beside a shortcut."""
    before, inner = channels
    outside = inner * EXPANSION
    y = net.relu(net.batch_norm(net.conv(x, f"{name}.conv1", channels, 1), f"{name}.bn1", inner), f"{name}.relu1")
    y = net.conv(y, f"{name}.conv2", (inner, inner), 3, stride, pad=1)
    y = net.relu(net.batch_norm(y, f"{name}.bn2", inner), f"{name}.relu2")
    y = net.batch_norm(net.conv(y, f"{name}.conv3", (inner, outside), 1), f"{name}.bn3", outside)
    if before != outside:
        x = net.conv(x, f"{name}.downsample.0", (before, outside), 1, stride)
        x = net.batch_norm(x, f"{name}.downsample.1", outside)
    return net.relu(net.add("Add", [y, x], f"{name}.add"), f"{name}.relu3")


MOBILENET_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, output channels, blocks and first stride of each stage."""


WIDTHS = {"mobilenetv2": (1.0, 224), "mobilenetv2-035": (0.35, 128)}
"""Width, and pixels a side."""


def mobilenetv2(batch: int, name: str = "mobilenetv2") -> ModelProto:
    """MobileNetV2 (Sandler et al., 2018, table 2): width 1.0 for 224x224 images, and 0.35 for 128x128.

    Input [batch, 3, side, side], output [batch, 1000]; 158 parameters.

    All BatchNormalization is in training mode; ReLU6 is a Clip between 0 and 6. The Dropout in front of the
    classifier is left out.
    """
    width, side = WIDTHS[name]
    net = Network(name, 2)
    x = net.input("input", (batch, 3, side, side))
    net.constant("zero", np.zeros((), np.float32))
    net.constant("six", np.full((), 6.0, np.float32))
    before, index = _widened(32, width), 1
    x = _convolution(net, x, "features.0", (3, before), 3, 2)
    for expansion, full, blocks, stride in MOBILENET_STAGES:
        channels = _widened(full, width)
        for block in range(blocks):
            sizes = (before, before * expansion, channels)
            x = _inverted(net, x, f"features.{index}.conv", sizes, stride if block == 0 else 1)
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


def _inverted(net: Network, x: str, name: str, channels: tuple[int, int, int], stride: int) -> str:
    """Expansion, depthwise 3x3 convolution and linear projection, with a shortcut where the shape stays."""
    before, inner, after = channels
    y, layer = x, 0
    if inner != before:
        y, layer = _convolution(net, y, f"{name}.0", (before, inner), 1, 1), 1
    y = _convolution(net, y, f"{name}.{layer}", (inner, inner), 3, stride, group=inner)
    y = net.batch_norm(net.conv(y, f"{name}.{layer + 1}", (inner, after), 1), f"{name}.{layer + 2}", after)
    return net.add("Add", [x, y], f"{name}.add") if stride == 1 and before == after else y
