"""VGG-16 for 32x32 images: configuration D of Simonyan and Zisserman (2015), 13 convolutions with biases.

The variant: no BatchNormalization, no Dropout, and the three fully connected layers narrowed to 512-512-10,
as commonly done for CIFAR-10 (after five poolings one pixel of 512 channels is left).
"""

from __future__ import annotations

from onnx import ModelProto

from poetopt.zoo.network import Network

SEED = 16
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and number of convolutions before each pooling."""


def build(batch: int) -> ModelProto:
    """Input [batch, 3, 32, 32], output [batch, 10]; 32 parameters."""
    net = Network("vgg16-cifar", SEED)
    x = net.input("input", (batch, 3, 32, 32))
    before = 3
    for stage, (channels, convolutions) in enumerate(STAGES, start=1):
        for index in range(1, convolutions + 1):
            x = net.conv(x, f"conv{stage}_{index}", (before, channels), 3, pad=1, bias=True)
            x = net.relu(x, f"relu{stage}_{index}")
            before = channels
        x = net.max_pool(x, f"pool{stage}")
    x = net.add("Flatten", [x], "flatten", axis=1)
    x = net.relu(net.linear(x, "fc1", 512, 512), "relu_fc1")
    x = net.relu(net.linear(x, "fc2", 512, 512), "relu_fc2")
    return net.model(net.linear(x, "fc3", 512, 10), (batch, 10))
