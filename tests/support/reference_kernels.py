"""Kernels of another runtime: onnx's reference evaluator, on tensors that lie at given addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from poetopt.frontends.proto import node_proto
from poetopt.graph import Graph, Node, Tensor
from poetopt.ops.runtimes.contract import Runtime


def at(address: int, tensor: Tensor) -> NDArray[Any]:
    """The bytes from an address on as the array that `tensor` is."""
    raw = memoryview((ctypes.c_uint8 * tensor.nbytes).from_address(address)).cast("B")
    return np.frombuffer(raw, tensor.dtype).reshape(tensor.shape)


class ReferenceKernels:
    """Every node is evaluated by onnx, and its outputs are copied to where they are to lie."""

    def __init__(self, graph: Graph, runtime: Runtime) -> None:
        self.graph = graph
        self.runtime = runtime
        self.run: list[str] = []

    def bound(
        self, node: Node, addresses: Mapping[str, int], shapes: Mapping[str, Tensor] | None = None
    ) -> Callable[[], object]:
        tensors = self.graph.tensors if shapes is None else shapes
        read, written = ([name for name in names if name] for names in (node.inputs, node.outputs))
        values = {name: helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in (*read, *written)}
        body = helper.make_graph(
            [node_proto(node)], "node", [values[n] for n in dict.fromkeys(read)], [values[n] for n in written]
        )
        model = helper.make_model(body, opset_imports=[helper.make_opsetid("", self.graph.opset)])
        evaluator = ReferenceEvaluator(model)

        def act() -> None:
            self.run.append(node.op_type)
            found = evaluator.run(None, {name: at(addresses[name], tensors[name]).copy() for name in read})
            for name, value in zip(written, found, strict=True):
                at(addresses[name], tensors[name])[...] = value

        return act

    def draws(self, node: Node) -> bool:
        return False

    def give_back(self) -> None:
        return None

    def errors(self) -> tuple[type[Exception], ...]:
        return (ValueError,)

    def reason(self, error: BaseException) -> str:
        return str(error)
