"""ResNet-50 for 224x224 images (He et al., "Deep Residual Learning for Image Recognition", 2016, table 1).

The variant known as v1.5, which PyTorch and its successors train: where a block halves the image, its 3x3
convolution has the stride, not its first 1x1. All BatchNormalization is in training mode.
"""

from __future__ import annotations

from onnx import ModelProto

from poetopt.zoo.network import Network

SEED = 50
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Inner channels, blocks and first stride of each stage."""

EXPANSION = 4
"""A block's output has this many times its inner channels."""


def build(batch: int) -> ModelProto:
    """Input [batch, 3, 224, 224], output [batch, 1000]; 161 parameters."""
    net = Network("resnet50", SEED)
    x = net.input("input", (batch, 3, 224, 224))
    x = net.relu(net.batch_norm(net.conv(x, "conv1", (3, 64), 7, 2, pad=3), "bn1", 64), "relu")
    x = net.add("MaxPool", [x], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    before = 64
    for stage, (inner, blocks, stride) in enumerate(STAGES, start=1):
        for block in range(blocks):
            x = _block(net, x, f"layer{stage}.{block}", (before, inner), stride if block == 0 else 1)
            before = inner * EXPANSION
    x = net.add("GlobalAveragePool", [x], "avgpool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "fc", before, 1000), (batch, 1000))


def _block(net: Network, x: str, name: str, channels: tuple[int, int], stride: int) -> str:
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
