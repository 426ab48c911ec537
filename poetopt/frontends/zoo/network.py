"""A small builder of ONNX networks: layers with seeded weights, one method a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from poetopt.frontends.proto import node_proto
from poetopt.graph import Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPSET = 18
IR_VERSION = 8


class Network:
    """Collects nodes and weights; each layer method takes and returns the name of a tensor.

    name
        The graph's name.
    seed
        Of the generator that all weights are drawn from, in the order of the layers.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[ValueInfoProto] = []

    def input(self, name: str, shape: tuple[int, ...]) -> str:
        """A float input."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def add(self, op: str, inputs: list[str], name: str, **attributes: object) -> str:
        """A node called `name` that writes the one tensor `<name>_out`."""
        output = f"{name}_out"
        self.nodes.append(node_proto(Node(op, tuple(inputs), (output,), attributes, name=name)))
        return output

    def weight(self, name: str, array: NDArray[np.float32]) -> str:
        """An initializer."""
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def he(self, name: str, shape: tuple[int, ...], fan: int) -> str:
        """An initializer drawn from N(0, 2 / fan): He et al., "Delving Deep into Rectifiers", 2015."""
        scale = np.float32(np.sqrt(2.0 / fan))
        return self.weight(name, self.rng.standard_normal(shape, dtype=np.float32) * scale)

    def conv(
        self,
        x: str,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        stride: int = 1,
        *,
        pad: int = 0,
        bias: bool = False,
    ) -> str:
        """A square 2-D convolution; `channels` are those in and out."""
        inside, outside = channels
        operands = [x, self.he(f"{name}.weight", (outside, inside, kernel, kernel), inside * kernel * kernel)]
        if bias:
            operands.append(self.weight(f"{name}.bias", np.zeros(outside, dtype=np.float32)))
        return self.add("Conv", operands, name, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        """BatchNormalization in training mode, with the updated statistics as its second and third output."""
        ones, zeros = np.ones(channels, dtype=np.float32), np.zeros(channels, dtype=np.float32)
        operands = (
            x,
            self.weight(f"{name}.weight", ones),
            self.weight(f"{name}.bias", zeros),
            self.weight(f"{name}.running_mean", zeros),
            self.weight(f"{name}.running_var", ones),
        )
        outputs = (f"{name}_out", f"{name}.running_mean.new", f"{name}.running_var.new")
        settings = {"training_mode": 1, "momentum": 0.9, "epsilon": 1e-5}
        self.nodes.append(node_proto(Node("BatchNormalization", operands, outputs, settings, name=name)))
        return outputs[0]

    def linear(self, x: str, name: str, inside: int, outside: int) -> str:
        """x W' + b."""
        operands = [x, self.he(f"{name}.weight", (outside, inside), inside)]
        operands.append(self.weight(f"{name}.bias", np.zeros(outside, dtype=np.float32)))
        return self.add("Gemm", operands, name, transB=1)

    def relu(self, x: str, name: str) -> str:
        """max(x, 0)."""
        return self.add("Relu", [x], name)

    def max_pool(self, x: str, name: str, size: int = 2) -> str:
        """Maximum over squares that tile the image."""
        return self.add("MaxPool", [x], name, kernel_shape=[size] * 2, strides=[size] * 2)

    def model(self, output: str, shape: tuple[int, ...]) -> ModelProto:
        """The finished model; `output` is renamed to `logits`."""
        for node in self.nodes:
            node.input[:] = ["logits" if name == output else name for name in node.input]
            node.output[:] = ["logits" if name == output else name for name in node.output]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, self.name, self.inputs, [logits], self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, producer_name="poetopt", opset_imports=opsets, ir_version=IR_VERSION)
