"""A small builder of ONNX networks: layers with seeded weights, one method per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from poetopt.frontends.proto import PARAMETERS, node_proto
from poetopt.graph import Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPSET = 18
IR_VERSION = 8


class Network:
    """Builder of a network; each layer method takes and returns the name of a tensor.

    Parameters
    ----------
    name
        Name of the graph.
    seed
        Seed of the generator of all weights, in the order of the layers.
    opset
        Version of the operators.
    """

    def __init__(self, name: str, seed: int, opset: int = OPSET) -> None:
        self.rng = np.random.default_rng(seed)
        opsets = [helper.make_opsetid("", opset)]
        self.proto = ModelProto(producer_name="poetopt", opset_import=opsets, ir_version=IR_VERSION)
        self.proto.graph.name = name
        self.nodes: list[NodeProto] = []

    def input(self, name: str, shape: tuple[int, ...], elem_type: int = TensorProto.FLOAT) -> str:
        """Add an input, float32 by default."""
        self.proto.graph.input.append(helper.make_tensor_value_info(name, elem_type, shape))
        return name

    def add(self, op: str, inputs: list[str], name: str, **attributes: object) -> str:
        """Add a node called `name` with the output `<name>_out`."""
        output = f"{name}_out"
        self.nodes.append(node_proto(Node(op, tuple(inputs), (output,), attributes, name=name)))
        return output

    def split(self, x: str, name: str, outputs: tuple[str, ...], *, axis: int) -> None:
        """Split x into equal parts along `axis`, called `outputs`."""
        settings: dict[str, object] = {"axis": axis, "num_outputs": len(outputs)}
        self.nodes.append(node_proto(Node("Split", (x,), outputs, settings, name=name)))

    def weight(self, name: str, array: NDArray[np.float32]) -> str:
        """Add an initializer, in place: large networks leave no memory for copies."""
        elem = TensorProto.FLOAT if array.dtype == np.float32 else helper.np_dtype_to_tensor_dtype(array.dtype)
        self.proto.graph.initializer.add(name=name, data_type=elem, dims=array.shape, raw_data=array.tobytes())
        return name

    def constant(self, name: str, array: NDArray[np.generic]) -> str:
        """Add a Constant node: a tensor that belongs to the structure, not a weight."""
        self.nodes.append(node_proto(Node("Constant", (), (name,), {"value": np.asarray(array)}, name=name)))
        return name

    def he(self, name: str, shape: tuple[int, ...], fan: int) -> str:
        """Add an initializer drawn from N(0, 2 / fan): He et al., "Delving Deep into Rectifiers", 2015."""
        scale = np.float32(np.sqrt(2.0 / fan))
        return self.weight(name, self.rng.standard_normal(shape, dtype=np.float32) * scale)

    def conv(
        self,
        x: str,
        name: str,
        channels: tuple[int, int],
        kernel: int | tuple[int, int],
        stride: int = 1,
        *,
        pad: int | tuple[int, int, int, int] = 0,
        bias: bool = False,
        group: int = 1,
    ) -> str:
        """Add a 2-D convolution; `channels` are in and out, `pad` is for all sides or top, left, bottom, right."""
        inside, outside = channels[0] // group, channels[1]
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        operands = [x, self.he(f"{name}.weight", (outside, inside, height, width), inside * height * width)]
        if bias:
            operands.append(self.weight(f"{name}.bias", np.zeros(outside, dtype=np.float32)))
        pads = [pad] * 4 if isinstance(pad, int) else list(pad)
        grouped: dict[str, object] = {"group": group} if group > 1 else {}
        return self.add(
            "Conv", operands, name, kernel_shape=[height, width], strides=[stride] * 2, pads=pads, **grouped
        )

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        """Add BatchNormalization in training mode, with the updated statistics as second and third output."""
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

    def linear(self, x: str, name: str, in_features: int, out_features: int) -> str:
        """Add x W' + b."""
        operands = [x, self.he(f"{name}.weight", (out_features, in_features), in_features)]
        operands.append(self.weight(f"{name}.bias", np.zeros(out_features, dtype=np.float32)))
        return self.add("Gemm", operands, name, transB=1)

    def relu(self, x: str, name: str) -> str:
        """Add max(x, 0)."""
        return self.add("Relu", [x], name)

    def max_pool(self, x: str, name: str, size: int = 2) -> str:
        """Add the maximum over squares that tile the image."""
        return self.add("MaxPool", [x], name, kernel_shape=[size] * 2, strides=[size] * 2)

    def model(self, output: str, shape: tuple[int, ...]) -> ModelProto:
        """Return the finished model, with `output` renamed to `logits`."""
        graph = self.proto.graph
        statistics = {name for node in self.nodes if node.op_type == "BatchNormalization" for name in node.input[3:]}
        parameters = [weight.name for weight in graph.initializer if weight.name not in statistics]
        helper.set_model_props(self.proto, {PARAMETERS: "\n".join(parameters)})
        for node in self.nodes:
            node.input[:] = ["logits" if name == output else name for name in node.input]
            node.output[:] = ["logits" if name == output else name for name in node.output]
        graph.node.extend(self.nodes)
        graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape))
        return self.proto
