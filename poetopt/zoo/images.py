"""Perceptrons and convolutional networks for images: MLP, LeNet, VGG, ResNet, MobileNetV2."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from poetopt.zoo.network import Network


def mlp(batch: int) -> ModelProto:
    """Build a perceptron 784-256-128-10 with ReLU, the smallest network with something to schedule.

    Input [batch, 784], output [batch, 10]; 6 parameters.
    """
    net = Network("mlp", 1)
    x = net.input("input", (batch, 784))
    x = net.relu(net.linear(x, "fc1", 784, 256), "relu1")
    x = net.relu(net.linear(x, "fc2", 256, 128), "relu2")
    return net.model(net.linear(x, "fc3", 128, 10), (batch, 10))


def lenet(batch: int) -> ModelProto:
    """Build LeNet-5 (LeCun et al., 1998) as trained today: ReLU for tanh, max pooling, all channels connected.

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
    """Build VGG-16 for 32x32 images: configuration D of Simonyan and Zisserman (2015), 13 convolutions with biases.

    Input [batch, 3, 32, 32], output [batch, 10]; 32 parameters.

    This variant has no BatchNormalization and no Dropout. Its three fully connected layers are narrowed to 512-512-10,
    as is common for CIFAR-10 (five poolings leave one pixel of 512 channels).
    """
    net = Network("vgg16-cifar", 16)
    x = net.input("input", (batch, 3, 32, 32))
    in_channels = 3
    for stage, (channels, convolutions) in enumerate(VGG_STAGES, start=1):
        for index in range(1, convolutions + 1):
            x = net.conv(x, f"conv{stage}_{index}", (in_channels, channels), 3, pad=1, bias=True)
            x = net.relu(x, f"relu{stage}_{index}")
            in_channels = channels
        x = net.max_pool(x, f"pool{stage}")
    x = net.add("Flatten", [x], "flatten", axis=1)
    x = net.relu(net.linear(x, "fc1", 512, 512), "relu_fc1")
    x = net.relu(net.linear(x, "fc2", 512, 512), "relu_fc2")
    return net.model(net.linear(x, "fc3", 512, 10), (batch, 10))


RESNET18_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and first stride of each stage of two blocks."""


def resnet18(batch: int) -> ModelProto:
    """Build ResNet-18 for 32x32 images: stages of He et al. ("Deep Residual Learning", 2016, table 1), 3x3 stem.

    Input [batch, 3, 32, 32], output [batch, 10]; 62 parameters.

    As is common for CIFAR-10, the stem has stride 1 and no pooling, so that the four stages see 32, 16, 8 and 4 pixels
    per side. Shortcuts that change the shape are 1x1 convolutions with BatchNormalization.
    All BatchNormalization is in training mode.
    """
    net = Network("resnet18-cifar", 18)
    x = net.input("input", (batch, 3, 32, 32))
    x = net.relu(net.batch_norm(net.conv(x, "conv1", (3, 64), 3, pad=1), "bn1", 64), "relu1")
    in_channels = 64
    for stage, (channels, stride) in enumerate(RESNET18_STAGES, start=1):
        for block in range(2):
            x = residual(net, x, f"layer{stage}.{block}", (in_channels, channels), stride if block == 0 else 1)
            in_channels = channels
    x = net.add("GlobalAveragePool", [x], "avgpool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "fc", 512, 10), (batch, 10))


def residual(net: Network, x: str, name: str, channels: tuple[int, int], stride: int) -> str:
    """Add two 3x3 convolutions with a shortcut."""
    out_channels = channels[1]
    y = net.conv(x, f"{name}.conv1", channels, 3, stride, pad=1)
    y = net.relu(net.batch_norm(y, f"{name}.bn1", out_channels), f"{name}.relu1")
    y = net.conv(y, f"{name}.conv2", (out_channels, out_channels), 3, pad=1)
    y = net.batch_norm(y, f"{name}.bn2", out_channels)
    if stride != 1 or channels[0] != out_channels:
        x = net.conv(x, f"{name}.shortcut.0", channels, 1, stride)
        x = net.batch_norm(x, f"{name}.shortcut.1", out_channels)
    return net.relu(net.add("Add", [y, x], f"{name}.add"), f"{name}.relu2")


RESNET50_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Inner channels, blocks and first stride of each stage."""

EXPANSION = 4
"""Ratio of a block's output channels to its inner channels."""


def resnet50(batch: int) -> ModelProto:
    """Build ResNet-50 for 224x224 images (He et al., "Deep Residual Learning for Image Recognition", 2016, table 1).

    Input [batch, 3, 224, 224], output [batch, 1000]; 161 parameters.

    This is the variant v1.5 of PyTorch: in a block that halves the image, the 3x3 convolution has the stride, not the
    first 1x1 convolution. All BatchNormalization is in training mode.
    """
    net = Network("resnet50", 50)
    x = net.input("input", (batch, 3, 224, 224))
    x = net.relu(net.batch_norm(net.conv(x, "conv1", (3, 64), 7, 2, pad=3), "bn1", 64), "relu")
    x = net.add("MaxPool", [x], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    in_channels = 64
    for stage, (inner, blocks, stride) in enumerate(RESNET50_STAGES, start=1):
        for block in range(blocks):
            x = _bottleneck(net, x, f"layer{stage}.{block}", (in_channels, inner), stride if block == 0 else 1)
            in_channels = inner * EXPANSION
    x = net.add("GlobalAveragePool", [x], "avgpool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "fc", in_channels, 1000), (batch, 1000))


def _bottleneck(net: Network, x: str, name: str, channels: tuple[int, int], stride: int) -> str:
    """Add a 1x1, a 3x3 and a 1x1 convolution with a shortcut."""
    in_channels, inner = channels
    out_channels = inner * EXPANSION
    y = net.relu(net.batch_norm(net.conv(x, f"{name}.conv1", channels, 1), f"{name}.bn1", inner), f"{name}.relu1")
    y = net.conv(y, f"{name}.conv2", (inner, inner), 3, stride, pad=1)
    y = net.relu(net.batch_norm(y, f"{name}.bn2", inner), f"{name}.relu2")
    y = net.batch_norm(net.conv(y, f"{name}.conv3", (inner, out_channels), 1), f"{name}.bn3", out_channels)
    if in_channels != out_channels:
        x = net.conv(x, f"{name}.downsample.0", (in_channels, out_channels), 1, stride)
        x = net.batch_norm(x, f"{name}.downsample.1", out_channels)
    return net.relu(net.add("Add", [y, x], f"{name}.add"), f"{name}.relu3")


MOBILENET_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, output channels, blocks and first stride of each stage."""


WIDTHS = {"mobilenetv2": (1.0, 224), "mobilenetv2-035": (0.35, 128)}
"""Width factor, and pixels per side."""


def mobilenetv2(batch: int, name: str = "mobilenetv2") -> ModelProto:
    """Build MobileNetV2 (Sandler et al., 2018, table 2): width 1.0 for 224x224 images, and 0.35 for 128x128.

    Input [batch, 3, side, side], output [batch, 1000]; 158 parameters.

    All BatchNormalization is in training mode; ReLU6 is a Clip between 0 and 6. The Dropout before the classifier is
    omitted.
    """
    width, side = WIDTHS[name]
    net = Network(name, 2)
    x = net.input("input", (batch, 3, side, side))
    net.constant("zero", np.zeros((), np.float32))
    net.constant("six", np.full((), 6.0, np.float32))
    in_channels, index = _round_channels(32, width), 1
    x = _conv_norm_clip(net, x, "features.0", (3, in_channels), 3, 2)
    for expansion, base_channels, blocks, stride in MOBILENET_STAGES:
        channels = _round_channels(base_channels, width)
        for block in range(blocks):
            sizes = (in_channels, in_channels * expansion, channels)
            x = _inverted_residual(net, x, f"features.{index}.conv", sizes, stride if block == 0 else 1)
            in_channels, index = channels, index + 1
    x = _conv_norm_clip(net, x, f"features.{index}", (in_channels, 1280), 1, 1)
    x = net.add("GlobalAveragePool", [x], "pool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "classifier.1", 1280, 1000), (batch, 1000))


def _round_channels(channels: int, width: float) -> int:
    """Return the multiple of 8 nearest to `width * channels`, but at least 90 % of it."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * scaled else rounded + 8


def _conv_norm_clip(
    net: Network, x: str, name: str, channels: tuple[int, int], kernel: int, stride: int, group: int = 1
) -> str:
    x = net.conv(x, f"{name}.0", channels, kernel, stride, pad=kernel // 2, group=group)
    x = net.batch_norm(x, f"{name}.1", channels[1])
    return net.add("Clip", [x, "zero", "six"], f"{name}.2")


def _inverted_residual(net: Network, x: str, name: str, channels: tuple[int, int, int], stride: int) -> str:
    """Add expansion, depthwise 3x3 convolution and linear projection, with a shortcut if the shape doesn't change."""
    in_channels, inner, after = channels
    y, layer = x, 0
    if inner != in_channels:
        y, layer = _conv_norm_clip(net, y, f"{name}.0", (in_channels, inner), 1, 1), 1
    y = _conv_norm_clip(net, y, f"{name}.{layer}", (inner, inner), 3, stride, group=inner)
    y = net.batch_norm(net.conv(y, f"{name}.{layer + 1}", (inner, after), 1), f"{name}.{layer + 2}", after)
    return net.add("Add", [x, y], f"{name}.add") if stride == 1 and in_channels == after else y
