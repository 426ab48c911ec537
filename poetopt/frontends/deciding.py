"""Which inputs decide a condition or a shape, so that a message can name `--value`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, numpy_helper

from poetopt.frontends.proto import constant_tensor
from poetopt.frontends.read import LIBRARY_ERRORS, Document

FEW = 16
"""Integers and lists of them up to so long are settings; longer ones, tensors of a higher rank, and floats are data."""

_COMPARED = frozenset({"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"})

_WHOLE = frozenset({
    TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
})  # fmt: skip

Lookup = Callable[[str], NDArray[np.generic] | None]


def is_setting(elem: int, dims: Sequence[int]) -> bool:
    """Whether an input of this type and shape (a size below 1 is not known) can be a setting rather than data."""
    return elem in _WHOLE and len(dims) < 2 and all(size <= FEW for size in dims)


def value_options(
    nodes: Iterable[NodeProto], inputs: Mapping[str, bool], constant: Lookup, names: Iterable[str]
) -> str:
    """The options that would decide `names`: `--value sr=16000`; "" where data decides.

    inputs
        Of the graph, and whether each can be a setting.
    constant
        The value of a tensor that has one.

    A value is one that the file compares the input with, where it does, else `...`.
    """
    producers = {output: node for node in nodes for output in node.output if output}
    found: dict[str, str] = {}
    seen: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in inputs:
            if not inputs[name]:
                return ""
            found.setdefault(name, "...")
        node = producers.get(name)
        if node is None or node.op_type in ("Shape", "Size"):
            continue
        todo.extend(filter(None, node.input))
        if node.op_type not in _COMPARED or len(node.input) != 2:
            continue
        for asked, other in (node.input, reversed(node.input)):
            value = constant(other)
            if asked in inputs and value is not None and value.size == 1 and value.dtype.kind in "iufb":
                found[asked] = str(value.reshape(-1)[0])
    return " ".join(f"--value {shlex.quote(name)}={value}" for name, value in found.items())


def deciding(document: Document, name: str) -> str:
    """`value_options` of one tensor of a file."""
    graph = document.proto.graph
    nodes = {output: node for node in graph.node for output in node.output if output}

    def constant(name: str) -> NDArray[np.generic] | None:
        tensor = document.weights.get(name) or (constant_tensor(nodes[name]) if name in nodes else None)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        try:
            return numpy_helper.to_array(tensor)
        except LIBRARY_ERRORS:
            return None

    inputs = {}
    for info in graph.input:
        tensor = info.type.tensor_type
        inputs[info.name] = is_setting(tensor.elem_type, [dim.dim_value for dim in tensor.shape.dim])
    return value_options(graph.node, inputs, constant, [name])
