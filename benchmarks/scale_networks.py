"""Networks of as many operators as one likes: deep, wide, with blocks, and with skips of any length."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

KINDS = ("chain", "resnet", "wide", "skips")


class _Nodes:
    """Nodes under construction; weights are random, so that no two are alike."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, *shape: int) -> str:
        """A new one."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(self._random.normal(size=shape).astype(np.float32), name))
        return name

    def add(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """One node; the result is what it writes."""
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))  # type: ignore[arg-type]
        return output

    def model(self, kind: str, shape: tuple[int, ...]) -> ModelProto:
        """The model, whose output is that of the last node."""
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            kind,
            [info("x", TensorProto.FLOAT, shape)],
            [info(self.nodes[-1].output[0], TensorProto.FLOAT, None)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def build(kind: str, operators: int) -> ModelProto:
    """One of `KINDS`, with this many forward operators or a few more."""
    return {"chain": _chain, "resnet": _resnet, "wide": _wide, "skips": _skips}[kind](operators)


def _chain(operators: int) -> ModelProto:
    net, x = _Nodes(), "x"
    while len(net.nodes) < operators:
        x = net.add("Relu", net.add("MatMul", x, net.weight(8, 8)))
    return net.model("chain", (4, 8))


def _resnet(operators: int) -> ModelProto:
    """Blocks of two convolutions with BatchNormalization and a sum."""
    net, x = _Nodes(), "x"

    def layer(x: str) -> str:
        y = net.add("Conv", x, net.weight(4, 4, 3, 3), pads=[1, 1, 1, 1], kernel_shape=[3, 3])
        return net.add("BatchNormalization", y, *(net.weight(4) for _ in range(4)))

    while len(net.nodes) < operators:
        x = net.add("Relu", net.add("Add", x, layer(net.add("Relu", layer(x)))))
    return net.model("resnet", (2, 4, 8, 8))


def _wide(operators: int) -> ModelProto:
    """One tensor that all heads read, and a Concat of them."""
    net = _Nodes()
    shared = net.add("MatMul", "x", net.weight(8, 8))
    heads = [net.add("Relu", net.add("MatMul", shared, net.weight(8, 2))) for _ in range(operators // 2 - 1)]
    net.add("Concat", *heads, axis=1)
    return net.model("wide", (4, 8))


def _skips(operators: int) -> ModelProto:
    """Sums with what stands anywhere before."""
    net, random, seen = _Nodes(), np.random.default_rng(1), ["x"]
    while len(net.nodes) < operators:
        y = net.add("Add", net.add("MatMul", seen[-1], net.weight(8, 8)), seen[random.integers(len(seen))])
        seen.append(net.add("Tanh", y))
    return net.model("skips", (4, 8))
