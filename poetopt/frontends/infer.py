"""Infer the static types of a node's outputs from those of its inputs, or refuse it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from poetopt.frontends.deciding import is_setting, value_options
from poetopt.frontends.draft import Draft, Type
from poetopt.frontends.proto import attribute_int, dtype_name
from poetopt.frontends.read import LIBRARY_ERRORS, check_size
from poetopt.frontends.structure import first_line
from poetopt.graph import VIEW_OPS
from poetopt.util.errors import ModelError, UnsupportedOpError

_READ_BY_INFERENCE = 4096
"""Constants of at most this many elements are shown to shape inference."""

_LIKE_FIRST_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Operators that ONNX defines by a function alone, without shape inference."""
_POOLS, _POOLS_AS_COMPUTED = frozenset({"AveragePool", "LpPool", "MaxPool"}), 22
"""From this opset on ONNX says what torch and onnxruntime do in all: a window that would begin in the padding behind
isn't there, in ceil mode either."""


def infer(draft: Draft, node: NodeProto, declared: Mapping[str, Type], must: bool = True) -> dict[str, Type]:
    """Types of the outputs of `node`; where `must` is false, unknown ones are left out instead of refused."""
    at = draft.at(node)
    protos: dict[str, onnx.TypeProto] = {}
    problem = ""
    try:
        protos = _infer_alone(draft, node)
    except LIBRARY_ERRORS as error:
        problem = first_line(error)
        # What a file declares of an output helps where inference can't tell, not where inputs don't fit each other.
        misfit = isinstance(error, onnx.shape_inference.InferenceError)
        if must and (misfit or not all(name in declared for name in node.output if name)):
            problem = f"{_shapes(draft, node)}{problem}; the model is inconsistent, export it again"
            raise ModelError(f"{at}: {problem}") from error
    types: dict[str, Type] = {}
    for name in filter(None, node.output):
        proto = protos.get(name)
        if proto is not None and proto.WhichOneof("value") not in (None, "tensor_type"):
            raise UnsupportedOpError(f"{at}: its output {name!r} is not a plain tensor, which is not supported")
        kind = (_static(proto) if proto is not None else None) or declared.get(name)
        if kind is None:
            if not must:
                continue
            decided = _deciding(draft, node)
            raise UnsupportedOpError(
                f"{at}: the shape of its output {name!r} is unknown before it runs{': ' + problem if problem else ''}"
                f"{_why(draft, node)}; "
                f"schedules need static shapes, so {decided or 'export the model with them'}"
            )
        check_size(f"{at}: output {name!r}", kind[1], kind[0])
        try:
            dtype_name(kind[0])
        except ModelError as error:
            raise ModelError(f"{at}: output {name!r}: {error}") from error
        types[name] = kind
    return types


def _deciding(draft: Draft, node: NodeProto) -> str:
    """What to say where inputs decide the integers that `node` reads."""
    known = draft.constants.keys() | {name for one in draft.nodes for name in one.output}
    inputs = {name: is_setting(*kind) for name, kind in draft.types.items() if name not in known}
    open_ = [name for name in node.input if name and name not in draft.constants]
    integers = [name for name in open_ if dtype_name(draft.types[name][0]).startswith(("int", "uint", "bool"))]
    options = value_options(draft.nodes, inputs, draft.constants.get, integers)
    return options and f"say the value of the input that decides it: {options}"


def _why(draft: Draft, node: NodeProto) -> str:
    """Which constant operand, or result, of a node isn't computed ahead."""
    name = next((name for name in (*node.input, *node.output) if name in draft.unfolded), None)
    return "" if name is None else f", as {name!r} is not computed ahead: {draft.unfolded[name]}"


def check_view(draft: Draft, node: NodeProto) -> None:
    """Shape inference takes a Reshape's word for the number of elements; a graph must not."""
    if node.op_type not in VIEW_OPS:
        return
    before, after = (draft.types[name][1] for name in (node.input[0], node.output[0]))
    if math.prod(before) != math.prod(after):
        at = draft.at(node)
        raise ModelError(f"{at}: can't turn shape {list(before)} into {list(after)}; the model is inconsistent")


def _shapes(draft: Draft, node: NodeProto) -> str:
    shown = ", ".join(f"{name} {list(draft.types[name][1])}" for name in node.input if name)
    return f"its inputs don't fit ({shown}): " if shown else ""


def _proto(draft: Draft, name: str) -> onnx.TypeProto:
    elem, shape = draft.types[name]
    return helper.make_tensor_type_proto(elem, list(shape))


def _small(draft: Draft, node: NodeProto) -> dict[str, TensorProto]:
    found = {name: draft.constants[name] for name in node.input if name in draft.constants}
    return {
        name: numpy_helper.from_array(np.asarray(array), name)
        for name, array in found.items()
        if array.size <= _READ_BY_INFERENCE
    }


def _infer_alone(draft: Draft, node: NodeProto) -> dict[str, onnx.TypeProto]:
    if node.op_type in _LIKE_FIRST_INPUT:
        return {node.output[0]: _proto(draft, node.input[0])}
    opset = draft.opset
    if node.op_type in _POOLS and attribute_int(node, "ceil_mode", 0):
        opset = max(opset, _POOLS_AS_COMPUTED)
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    types = {name: _proto(draft, name) for name in node.input if name}
    imports = [helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_node_outputs(
        schema, node, types, _small(draft, node), opset_imports=imports, ir_version=8
    )


def _static(proto: onnx.TypeProto) -> Type | None:
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    if not proto.tensor_type.elem_type or any(dim.WhichOneof("value") != "dim_value" for dim in dims):
        return None
    return int(proto.tensor_type.elem_type), tuple(int(dim.dim_value) for dim in dims)
