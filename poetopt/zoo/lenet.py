"""LeNet-5 (LeCun et al., 1998) as it is trained today: ReLU for tanh, max pooling, all channels connected."""

from __future__ import annotations

from onnx import ModelProto

from poetopt.zoo.network import Network

SEED = 5


def build(batch: int) -> ModelProto:
    """Input [batch, 1, 28, 28], output [batch, 10]; 10 parameters."""
    net = Network("lenet", SEED)
    x = net.input("input", (batch, 1, 28, 28))
    x = net.max_pool(net.relu(net.conv(x, "conv1", (1, 6), 5, pad=2, bias=True), "relu1"), "pool1")
    x = net.max_pool(net.relu(net.conv(x, "conv2", (6, 16), 5, bias=True), "relu2"), "pool2")
    x = net.add("Flatten", [x], "flatten", axis=1)
    x = net.relu(net.linear(x, "fc1", 400, 120), "relu3")
    x = net.relu(net.linear(x, "fc2", 120, 84), "relu4")
    return net.model(net.linear(x, "fc3", 84, 10), (batch, 10))
