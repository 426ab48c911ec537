"""Convert between the project's data and ONNX protobufs: nodes, element types, whole graphs.

`poetopt.graph` imports no ONNX; this module is the only bridge. Every `Graph` and `TrainingGraph` can be
written as a standard ONNX model that any runtime loads.
"""

from __future__ import annotations

import json
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from poetopt.frontends.checks import attribute_int as attribute_int
from poetopt.graph import DTYPE_BYTES, PACKED, Graph, Node, Operator, Tensor, TrainingGraph
from poetopt.util.errors import ModelError
from poetopt.util.files import replacing, write_atomically

if TYPE_CHECKING:
    from enum import Enum

    from poetopt.graph import Array


def unique(name: str, taken: Iterable[str], numbers: MutableMapping[str, int] | None = None) -> str:
    """Return `name`, with a number appended if it is in `taken`.

    Parameters
    ----------
    numbers
        The last number of each name, updated: it saves callers of many names the search from 2.
    """
    taken = taken if isinstance(taken, (set, frozenset, dict)) else set(taken)
    candidate, number = name, 1 if numbers is None else numbers.get(name, 1)
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    if numbers is not None and number > 1:
        numbers[name] = number
    return candidate


ANEW = ("lr", "step")
"""Hyperparameters without a default in a file, so that a loop that forgets one fails."""

PARAMETERS = "poetopt.parameters"
"""Metadata key for the names of a file's parameters, one per line."""
BATCH = "poetopt.batch"
"""Metadata key for the default size of a symbolic batch in an exported file."""

PROTOBUF_LIMIT_BYTES = 2**31 - 1
"""Limit of a protobuf message; larger weights go to a separate file."""

_ROOM_FOR_NODES_BYTES = 64 * 2**20

_ELEM_TYPES: Mapping[str, int] = {
    "bool": TensorProto.BOOL, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "int32": TensorProto.INT32, "uint32": TensorProto.UINT32, "float32": TensorProto.FLOAT,
    "int64": TensorProto.INT64, "uint64": TensorProto.UINT64, "float64": TensorProto.DOUBLE,
    "complex64": TensorProto.COMPLEX64, "complex128": TensorProto.COMPLEX128,
    "int4": TensorProto.INT4, "uint4": TensorProto.UINT4,
}  # fmt: skip
_DTYPES: Mapping[int, str] = {elem: name for name, elem in _ELEM_TYPES.items()}


def elem_type(dtype: str) -> int:
    """Return the ONNX element type of numpy's `dtype`. Raise `ModelError` if there is none."""
    try:
        return _ELEM_TYPES[dtype]
    except KeyError:
        raise ModelError(f"element type {dtype!r} isn't an ONNX type. Use one of {', '.join(DTYPE_BYTES)}") from None


def dtype_name(elem: int) -> str:
    """Return numpy's name of ONNX's element type `elem`.

    Raise `ModelError` for types without fixed-size numeric elements (strings, float8, ...).
    """
    try:
        return _DTYPES[elem]
    except KeyError:
        name = TensorProto.DataType.Name(elem) if elem in TensorProto.DataType.values() else str(elem)
        raise ModelError(f"element type {name} is not supported. Convert the model to float32") from None


@cache
def _schema_types(op_type: str, domain: str) -> Mapping[str, int]:
    """Return the types of an op's attributes in its newest schema; empty for unknown ops."""
    if not onnx.defs.has(op_type, domain):
        return {}
    schema = onnx.defs.get_schema(op_type, domain)
    return {name: int(cast("Enum", attribute.type).value) for name, attribute in schema.attributes.items()}


def _make_attribute(name: str, value: object, declared: int | None) -> AttributeProto:
    """Return one attribute; the schema's type resolves ambiguous Python values (int for float, empty list)."""
    if isinstance(value, AttributeProto):
        copy = AttributeProto()
        copy.CopyFrom(value)
        copy.name = name
        return copy
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(value))
    if isinstance(value, (bool, numbers.Integral)):
        value = int(value)
    if isinstance(value, numbers.Real) and declared == AttributeProto.FLOAT:
        value = float(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        value = [numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for v in value]
        if declared == AttributeProto.FLOATS:
            value = [float(v) for v in value]
    return helper.make_attribute(name, value, attr_type=declared if value == [] else None)


def node_proto(node: Node) -> NodeProto:
    """Return `node` as a protobuf, with attributes sorted by name."""
    proto = NodeProto(op_type=node.op_type, domain=node.domain, name=node.name)
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    declared = _schema_types(node.op_type, node.domain)
    for name in sorted(node.attributes):
        proto.attribute.append(_make_attribute(name, node.attributes[name], declared.get(name)))
    return proto


def _attribute_value(attribute: AttributeProto) -> object:
    """Return the Python value of an attribute; graphs, types, empty lists and references stay protobufs."""
    if attribute.ref_attr_name:
        return attribute
    match attribute.type:
        case AttributeProto.INT:
            return int(attribute.i)
        case AttributeProto.FLOAT:
            return float(attribute.f)
        case AttributeProto.STRING:
            return _decode(attribute.s)
        case AttributeProto.TENSOR:
            return numpy_helper.to_array(attribute.t)
        case AttributeProto.INTS if attribute.ints:
            return list(attribute.ints)
        case AttributeProto.FLOATS if attribute.floats:
            return list(attribute.floats)
        case AttributeProto.STRINGS if attribute.strings:
            return [_decode(s) for s in attribute.strings]
        case AttributeProto.TENSORS if attribute.tensors:
            return [numpy_helper.to_array(t) for t in attribute.tensors]
        case _:
            return attribute


def _decode(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def from_node_proto(proto: NodeProto) -> Node:
    """Return `proto` as a `Node`, with attributes sorted by name."""
    attributes = {a.name: _attribute_value(a) for a in sorted(proto.attribute, key=lambda a: a.name)}
    return Node(
        op_type=proto.op_type,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=attributes,
        domain="" if proto.domain == "ai.onnx" else proto.domain,
        name=proto.name,
    )


def copied(node: NodeProto) -> NodeProto:
    """Return a copy of `node`, which outlives its graph."""
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def subgraphs(node: NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes: branches and bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the dense numbers of a Constant node; None for text, a sparse tensor, or another node."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    for attribute in node.attribute:
        match attribute.name:
            case "value":
                tensor: TensorProto = attribute.t
                return tensor
            case "value_float" | "value_floats":
                floats = np.array(helper.get_attribute_value(attribute), np.float32)
                return numpy_helper.from_array(floats)
            case "value_int" | "value_ints":
                return numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), np.int64))
    return None


def value_info(tensor: Tensor) -> onnx.ValueInfoProto:
    """Return name, element type and shape of `tensor` as a protobuf."""
    return helper.make_tensor_value_info(tensor.name, elem_type(tensor.dtype), list(tensor.shape))


def default_outputs(graph: Graph) -> tuple[str, ...]:
    """Return the default outputs of `model_proto`: the graph's outputs.

    For a `TrainingGraph`: the loss, the model's outputs that the step computes, each parameter's gradient, and the
    updated carried tensors (parameters, optimizer states, BatchNormalization statistics), without duplicates.
    """
    if not isinstance(graph, TrainingGraph):
        return graph.outputs
    aside_outputs = {name for operator in graph.aside for name in operator.outputs}
    outputs = (name for name in graph.outputs if name not in aside_outputs)
    gradients = (graph.gradients[name] for name in graph.trained if name in graph.gradients)
    return tuple(dict.fromkeys((graph.loss, *outputs, *gradients, *graph.carried.values())))


def model_proto(graph: Graph, outputs: Sequence[str] | None = None) -> onnx.ModelProto:
    """Return `graph` as one standard ONNX model.

    Initializers are `graph.values`: the parameters, and the constants that some node reads. Nodes are in the order of
    the operators. Weights are inline, however large; use `save_model` to write a file.

    A whole step (`outputs` is None) has its carried tensors and hyperparameters as inputs: initializers that callers
    may override, without initializers for `ANEW`. Its metadata have the optimizer and the carried tensors.

    Parameters
    ----------
    outputs
        Outputs of the model; only nodes that lead to them are kept. Default: `default_outputs`.
    """
    return _build_model(graph, outputs, {})


def save_model(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write `graph` as an ONNX file: beside `path` first, then renamed, so that no partial file is visible.

    If the weights exceed the 2 GB of a protobuf, they go to `<path>.data`. Raise `OutputError` if the file can't be
    written.
    """
    if sum(array.nbytes for array in graph.values.values()) <= PROTOBUF_LIMIT_BYTES - _ROOM_FOR_NODES_BYTES:
        write_atomically(path, model_proto(graph).SerializeToString(deterministic=True))
        return
    data = Path(os.path.realpath(path) + ".data")
    with replacing(path) as model_path, replacing(data) as data_path:
        external = _write_external(graph, data_path, data.name)
        model_path.write_bytes(_build_model(graph, None, external).SerializeToString(deterministic=True))


def _build_model(graph: Graph, outputs: Sequence[str] | None, external: Mapping[str, TensorProto]) -> onnx.ModelProto:
    names = tuple(default_outputs(graph) if outputs is None else outputs)
    missing = [name for name in names if name not in graph.tensors]
    if missing:
        raise ModelError(f"{graph.name}: no tensor {missing[0]!r} can be an output. Its outputs are {graph.outputs}")
    operators = graph.operators if outputs is None else _needed_operators(graph, names)
    nodes = [node for operator in operators for node in operator.nodes]
    read = {name for node in nodes for name in node.inputs} | set(names) | set(graph.trained)
    written = {name for node in nodes for name in node.outputs}
    model = onnx.ModelProto(producer_name="poetopt")
    domains = sorted({node.domain for node in nodes} - {"", "ai.onnx"})
    model.opset_import.append(helper.make_opsetid("", graph.opset))
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in domains)
    model.ir_version = max(8, _ir_version(graph.opset))
    body = model.graph
    body.name = graph.name or "graph"
    body.node.extend(node_proto(node) for node in nodes)
    extra_inputs: tuple[str, ...] = ()
    without_default: set[str] = set()
    if isinstance(graph, TrainingGraph) and graph.carried and outputs is None:
        extra_inputs = (*graph.carried, *graph.hyperparameters.values())
        without_default = {tensor for name, tensor in graph.hyperparameters.items() if name in ANEW}
        carried = json.dumps(dict(graph.carried))
        helper.set_model_props(model, {"poetopt.optimizer": graph.optimizer, "poetopt.carried": carried})
    elif not isinstance(graph, TrainingGraph):
        helper.set_model_props(model, {PARAMETERS: "\n".join(graph.trained)})
    body.input.extend(value_info(graph.tensors[name]) for name in (*graph.inputs, *extra_inputs))
    body.output.extend(value_info(graph.tensors[name]) for name in names)
    listed = {*graph.inputs, *extra_inputs, *names}
    body.value_info.extend(value_info(t) for t in graph.tensors.values() if t.name in written and t.name not in listed)
    for name, array in graph.values.items():
        if name in read and name not in without_default:
            body.initializer.append(external[name] if name in external else _initializer(graph.tensors[name], array))
    return model


def _initializer(tensor: Tensor, array: Array) -> TensorProto:
    if tensor.dtype not in PACKED:
        return numpy_helper.from_array(array, tensor.name)
    return TensorProto(name=tensor.name, data_type=elem_type(tensor.dtype), dims=tensor.shape, raw_data=array.tobytes())


def _ir_version(opset: int) -> int:
    try:
        return int(helper.find_min_ir_version_for([helper.make_opsetid("", opset)], ignore_unknown=True))
    except ValueError:
        return int(onnx.IR_VERSION)


def _needed_operators(graph: Graph, names: Iterable[str]) -> Iterator[Operator]:
    wanted = set(names)
    kept: list[Operator] = []
    aside = graph.aside if isinstance(graph, TrainingGraph) else ()
    for operator in reversed((*graph.operators, *aside)):
        if wanted.intersection(operator.outputs):
            kept.append(operator)
            wanted.update(operator.inputs)
    return reversed(kept)


def _write_external(graph: Graph, path: Path, location: str) -> dict[str, TensorProto]:
    """Write the large arrays to `path`; return initializers that refer to them at `location`, beside the model."""
    protos: dict[str, TensorProto] = {}
    with path.open("wb") as file:
        for name, array in graph.values.items():
            tensor = graph.tensors[name]
            if array.nbytes < 1024:
                continue
            file.write(b"\0" * (-file.tell() % 4096))
            proto = TensorProto(name=name, data_type=elem_type(tensor.dtype), dims=tensor.shape)
            proto.data_location = TensorProto.EXTERNAL
            for key, value in (("location", location), ("offset", file.tell()), ("length", array.nbytes)):
                proto.external_data.add(key=key, value=str(value))
            little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
            np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8).tofile(file)
            protos[name] = proto
    return protos
