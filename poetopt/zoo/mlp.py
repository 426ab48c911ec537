"""A perceptron 784-256-128-10 with ReLU: the smallest network that has something to schedule."""

from __future__ import annotations

from onnx import ModelProto

from poetopt.zoo.network import Network

SEED = 1


def build(batch: int) -> ModelProto:
    """Input [batch, 784], output [batch, 10]; 6 parameters."""
    net = Network("mlp", SEED)
    x = net.input("input", (batch, 784))
    x = net.relu(net.linear(x, "fc1", 784, 256), "relu1")
    x = net.relu(net.linear(x, "fc2", 256, 128), "relu2")
    return net.model(net.linear(x, "fc3", 128, 10), (batch, 10))
