"""Plans of small networks, and data to train them with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

import poetopt as po
from poetopt.graph import TrainingGraph
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.zoo.network import Network
from tests.support.backends import NETWORKS

Data = dict[str, Any]


def small(batch: int = 4) -> ModelProto:
    """A perceptron of two layers."""
    net = Network("small", 5)
    x = net.relu(net.linear(net.input("input", (batch, 12)), "fc1", 12, 9), "relu")
    return net.model(net.linear(x, "fc2", 9, 5), (batch, 5))


def other() -> ModelProto:
    """The same with another activation: all names and shapes are alike."""
    model = small()
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Tanh"
    return model


def doubled() -> ModelProto:
    """The same in float64."""
    model = small()
    for proto in model.graph.initializer:
        proto.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(proto).astype(np.float64), proto.name))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = TensorProto.DOUBLE
    return model


MODELS: dict[str, Callable[[], ModelProto]] = {**NETWORKS, "small": small, "other": other, "doubled": doubled}


@cache
def plan_of(name: str = "small", optimizer: str = "sgd", parameters: str = "resident", loss: str = "auto") -> Plan:
    model = po.load(MODELS[name]())
    return lay_out(store_all(model.differentiate(optimizer=optimizer, loss=loss).cost("a72", parameters=parameters)))


def graph_of(plan: Plan) -> TrainingGraph:
    assert plan.problem.graph is not None
    return plan.problem.graph


def rows(plan: Plan, count: int, seed: int = 0) -> Data:
    """Random rows for each input; labels follow from the numbers, so that there is something to learn."""
    graph, rng = graph_of(plan), np.random.default_rng(seed)
    found: Data = {}
    for name in graph.inputs:
        shape = (count, *graph.tensors[name].shape[1:])
        found[name] = rng.standard_normal(shape).astype(graph.tensors[name].dtype)
    for name in graph.added_inputs:
        flat = found[graph.inputs[0]].reshape(count, -1)
        if graph.loss_kind == "cross-entropy":
            classes = graph.tensors[graph.outputs[0]].shape[-1]
            found[name] = np.argmax(flat[:, :classes], axis=1)
    return found
