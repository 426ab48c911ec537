"""Small networks of every kind that the executor has to deal with, and plans for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from onnx import ModelProto, TensorProto

from poetopt import zoo
from poetopt.autodiff import differentiate
from poetopt.devices import cost, device
from poetopt.frontends import load
from poetopt.graph import Graph
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.plan.schedule import Schedule
from poetopt.zoo.network import Network


def residual(batch: int = 2) -> ModelProto:
    """A residual network with training-mode BatchNormalization: two blocks, one of them strided."""
    net = Network("residual", 3)
    x = net.input("input", (batch, 3, 8, 8))
    x = net.relu(net.batch_norm(net.conv(x, "conv1", (3, 8), 3, pad=1), "bn1", 8), "relu1")
    y = net.relu(net.batch_norm(net.conv(x, "a.conv1", (8, 8), 3, pad=1), "a.bn1", 8), "a.relu1")
    y = net.batch_norm(net.conv(y, "a.conv2", (8, 8), 3, pad=1), "a.bn2", 8)
    x = net.relu(net.add("Add", [y, x], "a.add"), "a.relu2")
    y = net.batch_norm(net.conv(x, "b.conv1", (8, 16), 3, 2, pad=1), "b.bn1", 16)
    x = net.batch_norm(net.conv(x, "b.shortcut", (8, 16), 1, 2), "b.bn2", 16)
    x = net.relu(net.add("Add", [y, x], "b.add"), "b.relu")
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x], "pool")], "flatten", axis=1)
    return net.model(net.linear(x, "fc", 16, 10), (batch, 10))


def dropout(batch: int = 4) -> ModelProto:
    """A perceptron with two Dropout layers of the same shape and ratio in training mode."""
    net = Network("dropout", 7)
    x = net.input("input", (batch, 20))
    ratio = net.weight("ratio", np.array(0.4, np.float32))
    mode = net.weight("mode", np.array(True))
    for k in (1, 2):
        x = net.relu(net.linear(x, f"fc{k}", 20, 20), f"relu{k}")
        x = net.add("Dropout", [x, ratio, mode], f"drop{k}")
    return net.model(net.linear(x, "fc3", 20, 5), (batch, 5))


def embedding(batch: int = 3) -> ModelProto:
    """Two inputs, one of them indices into a table of eleven rows."""
    net = Network("embedding", 11)
    ids = net.input("ids", (batch, 4), TensorProto.INT64)
    x = net.input("input", (batch, 4, 6))
    table = net.weight("table", np.linspace(-1, 1, 66, dtype=np.float32).reshape(11, 6))
    x = net.add("Mul", [net.add("Gather", [table, ids], "gather", axis=0), x], "mul")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "fc", 24, 4), (batch, 4))


NETWORKS: dict[str, Callable[[], ModelProto]] = {
    "mlp": lambda: zoo.build("mlp", 4),
    "lenet": lambda: zoo.build("lenet", 2),
    "residual": residual,
    "dropout": dropout,
}


@cache
def problem(name: str) -> Problem:
    """The training step of a network of `NETWORKS` on a device with storage."""
    return problem_of(load(NETWORKS[name]()))


def problem_of(graph: object, loss: str = "auto") -> Problem:
    assert isinstance(graph, Graph)
    return cost(differentiate(graph, loss=loss), device("a72"))


def store_all(of: Problem) -> Plan:
    return lay_out(plan_of(of, Schedule()))
