"""Infer the types of outputs from those of the inputs, and fold nodes whose inputs are all constant.

ONNX's reference implementation evaluates small nodes that move, compare or count, onnxruntime the others. onnxruntime's
sines and products differ from numpy's in the last bit, and folding must not change the model's results. And the
reference implementation takes minutes for a pooling that takes onnxruntime milliseconds. These nodes are never folded:
random ones, those over the budget (`poetopt.frontends.draft`), quantized weights, and nodes that depend on a trained
parameter (which is never among the constants).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from poetopt.frontends.draft import Draft, Type, most_elements, work
from poetopt.frontends.proto import attribute_int, dtype_name, elem_type
from poetopt.frontends.read import LIBRARY_ERRORS, check_size
from poetopt.frontends.structure import first_line
from poetopt.frontends.values import is_setting, value_options
from poetopt.graph import DTYPE_BYTES, VIEW_OPS
from poetopt.ops.op import Steps, op_of
from poetopt.util.errors import ModelError, UnsupportedOpError

if TYPE_CHECKING:
    from poetopt.graph import Array


def computed(node: NodeProto, feeds: Mapping[str, Array], opset: int) -> dict[str, Array] | None:
    """Return the outputs of `node` by name, computed by onnxruntime on one thread; None if it refuses the node.

    `feeds` has all inputs of the node by name.
    """
    import onnxruntime as ort

    written = [name for name in node.output if name]
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # an arena allocates twice the requested bytes
    errors = ort.capi.onnxruntime_pybind11_state
    try:
        infos = [helper.make_tensor_value_info(n, elem_type(a.dtype.name), a.shape) for n, a in feeds.items()]
        graph = helper.make_graph([node], "node", infos, [ValueInfoProto(name=name) for name in written])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results = session.run(written, dict(feeds))
    except (errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.NotImplemented, errors.RuntimeException):
        return None
    except (ModelError, *LIBRARY_ERRORS):
        return None
    return dict(zip(written, (np.asarray(value) for value in results), strict=True))


_SMALL = 2**15
"""Work (elements) up to which a plain node is not worth a session."""


def evaluate(
    node: NodeProto, constants: Mapping[str, Array], opset: int, steps: int, shape: tuple[int, ...] | None
) -> dict[str, Array] | None:
    """Return the outputs of `node` as read-only arrays; None if neither implementation supports it.

    Parameters
    ----------
    constants
        Has every input of the node.
    steps
        Work of the node in elements.
    shape
        Shape of the first output; None if unknown.
    """
    first = constants[node.input[0]] if node.input and node.input[0] else None
    if node.op_type == "Identity" and first is not None:
        return {node.output[0]: first}
    if node.op_type in VIEW_OPS and first is not None and shape is not None:
        return {node.output[0]: first.reshape(shape)} if first.size == math.prod(shape) else None
    feeds = {name: np.asarray(constants[name]) for name in node.input if name}
    floats = any(array.dtype.kind == "f" for array in feeds.values())
    op = op_of(node.op_type)
    is_plain = op.steps is Steps.PLAIN
    results = None
    if not is_plain or steps > _SMALL or (floats and op.computes):
        results = computed(node, feeds, opset)
    if results is None and (is_plain or steps <= _SMALL):
        results = _evaluate_by_reference(node, feeds, opset)
    for array in (results or {}).values():
        if array.dtype.kind in "OUS":
            return None
        array.setflags(write=False)
    return results


def _evaluate_by_reference(node: NodeProto, feeds: Mapping[str, Array], opset: int) -> dict[str, Array] | None:
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(node, opsets={"": opset}).run(None, dict(feeds))
    except LIBRARY_ERRORS:
        return None
    return {name: np.asarray(value) for name, value in zip(node.output, results, strict=False) if name}


def infer(draft: Draft, node: NodeProto, declared: Mapping[str, Type], must: bool = True) -> dict[str, Type]:
    """Return the types of the outputs of `node`; raise for unknown ones, or skip them if `must` is false."""
    at = draft.at(node)
    protos: dict[str, onnx.TypeProto] = {}
    problem = ""
    try:
        protos = _infer_alone(draft, node)
    except LIBRARY_ERRORS as error:
        problem = first_line(error)
        # A declared output type replaces one that can't be inferred, but not one of inconsistent inputs.
        is_misfit = isinstance(error, onnx.shape_inference.InferenceError)
        if must and (is_misfit or not all(name in declared for name in node.output if name)):
            problem = f"{_describe_misfit(draft, node)}{problem}. The model is inconsistent: export it again"
            raise ModelError(f"{at}: {problem}") from error
    types: dict[str, Type] = {}
    for name in filter(None, node.output):
        proto = protos.get(name)
        if proto is not None and proto.WhichOneof("value") not in (None, "tensor_type"):
            raise UnsupportedOpError(f"{at}: its output {name!r} is no plain tensor. Export the model without it")
        type_ = (_static_type(proto) if proto is not None else None) or declared.get(name)
        if type_ is None:
            if not must:
                continue
            remedy = _inputs_to_fix(draft, node)
            raise UnsupportedOpError(
                f"{at}: the shape of its output {name!r} is unknown before it runs{': ' + problem if problem else ''}"
                f"{_why_not_folded(draft, node)}. "
                f"Schedules need static shapes: {remedy or 'export the model with them'}"
            )
        check_size(f"{at}: output {name!r}", type_[1], type_[0])
        try:
            dtype_name(type_[0])
        except ModelError as error:
            raise ModelError(f"{at}: output {name!r}: {error}") from error
        types[name] = type_
    return types


def _inputs_to_fix(draft: Draft, node: NodeProto) -> str:
    """Return the remedy if inputs of the model decide the integers that `node` reads; else an empty text."""
    known = draft.constants.keys() | {name for other in draft.nodes for name in other.output}
    inputs = {name: is_setting(*kind) for name, kind in draft.types.items() if name not in known}
    unknown = [name for name in node.input if name and name not in draft.constants]
    integers = [name for name in unknown if dtype_name(draft.types[name][0]).startswith(("int", "uint", "bool"))]
    options = value_options(draft.nodes, inputs, draft.constants.get, integers)
    return options and f"give the value of the input that decides it: {options}"


def _why_not_folded(draft: Draft, node: NodeProto) -> str:
    """Return the reason why a constant operand, or result, of a node isn't folded; empty if all are."""
    name = next((name for name in (*node.input, *node.output) if name in draft.unfolded), None)
    return "" if name is None else f", because {name!r} is not computed ahead: {draft.unfolded[name]}"


def check_view(draft: Draft, node: NodeProto) -> None:
    """Raise `ModelError` if a view changes the number of elements: shape inference doesn't check a Reshape."""
    if node.op_type not in VIEW_OPS:
        return
    before, after = (draft.types[name][1] for name in (node.input[0], node.output[0]))
    if math.prod(before) != math.prod(after):
        at = draft.at(node)
        raise ModelError(
            f"{at}: can't turn shape {list(before)} into {list(after)}. The model is inconsistent: export it again"
        )


def _describe_misfit(draft: Draft, node: NodeProto) -> str:
    shown = ", ".join(f"{name} {list(draft.types[name][1])}" for name in node.input if name)
    return f"its inputs don't fit ({shown}): " if shown else ""


def _type_proto(draft: Draft, name: str) -> onnx.TypeProto:
    elem, shape = draft.types[name]
    return helper.make_tensor_type_proto(elem, list(shape))


def _small_constants(draft: Draft, node: NodeProto) -> dict[str, TensorProto]:
    known = {name: draft.constants[name] for name in node.input if name in draft.constants}
    # larger constants are never shapes, and slow shape inference down
    return {
        name: numpy_helper.from_array(np.asarray(array), name) for name, array in known.items() if array.size <= 4096
    }


def _infer_alone(draft: Draft, node: NodeProto) -> dict[str, onnx.TypeProto]:
    op, opset = op_of(node.op_type), draft.opset
    # from opset 22 on, ONNX specifies what torch and onnxruntime do in all opsets: even in ceil mode, they drop a
    # window that would begin in the trailing padding
    if op.window and attribute_int(node, "ceil_mode", 0):
        opset = max(opset, 22)
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    if op.normalizes and not schema.has_type_and_shape_inference_function:  # ONNX defines it only as a function
        return {node.output[0]: _type_proto(draft, node.input[0])}
    types = {name: _type_proto(draft, name) for name in node.input if name}
    imports = [helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_node_outputs(
        schema, node, types, _small_constants(draft, node), opset_imports=imports, ir_version=8
    )


def _static_type(proto: onnx.TypeProto) -> Type | None:
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    if not proto.tensor_type.elem_type or any(dim.WhichOneof("value") != "dim_value" for dim in dims):
        return None
    return int(proto.tensor_type.elem_type), tuple(int(dim.dim_value) for dim in dims)


def fold(draft: Draft, node: NodeProto, declared: Mapping[str, Type]) -> bool:
    """Fold `node` into constants if all its inputs are constant and the budget allows; return whether it did."""
    if op_of(node.op_type).asks_shape:
        shape = np.array(draft.types[node.input[0]][1], dtype=np.int64)
        if node.op_type == "Size":
            value = np.array(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
        else:
            start, end = attribute_int(node, "start", 0), attribute_int(node, "end", len(shape))
            value = shape[_clamp(start, len(shape)) : _clamp(end, len(shape))]
        draft.put(node.output[0], value.copy())
        return True
    if op_of(node.op_type).random or any(name and name not in draft.constants for name in node.input):
        draft.unfolded.update(_inherited_reasons(draft, node))
        return False
    if stays(draft, node):
        return False
    types = infer(draft, node, {}, must=False)
    if node.op_type == "Range":
        types = _range_type(draft, node)
    read = [draft.constants[name] for name in node.input if name]
    unknown = sum(map(bool, node.output)) - len(types)
    most = most_elements(node, read) if unknown else 0
    shapes = [array.shape for array in read]
    steps = None if most is None else work(node, shapes, [*(shape for _, shape in types.values()), (most * unknown,)])
    nbytes = sum(map(_nbytes, types.values())) + 8 * (most or 0) * unknown
    reason = draft.budget.excess(nbytes, sum(array.nbytes for array in read), steps)
    if reason:
        draft.unfolded.update((name, reason) for name in node.output if name)
        return False
    first = types.get(node.output[0])
    results = evaluate(node, draft.constants, draft.opset, steps or 0, first[1] if first else None)
    expected = {**declared, **types}
    if results is None or any(expected.get(name, _kind(array)) != _kind(array) for name, array in results.items()):
        return False
    draft.budget.take(sum(array.nbytes for array in results.values()), steps or 0)
    for name, array in results.items():
        draft.put(name, array)
    return True


def stays(draft: Draft, node: NodeProto) -> bool:
    """Return whether `node` dequantizes a weight: then it stays an operator, and the weight stays quantized.

    Tensors of at most one axis (biases, scalars) are folded, and so are those that are no larger as floats.
    """
    if node.op_type != "DequantizeLinear":
        return False
    (data, shape), (scale, _) = (draft.types[name] for name in node.input[:2])
    return len(shape) > 1 and DTYPE_BYTES[dtype_name(data)] < DTYPE_BYTES[dtype_name(scale)]


def _inherited_reasons(draft: Draft, node: NodeProto) -> dict[str, str]:
    """Return the reasons for the outputs of a node that reads only constants, some of them not folded."""
    names = [name for name in node.input if name]
    if op_of(node.op_type).random or not all(name in draft.constants or name in draft.unfolded for name in names):
        return {}
    reason = next(draft.unfolded[name] for name in names if name in draft.unfolded)
    return {name: reason for name in node.output if name}


def _range_type(draft: Draft, node: NodeProto) -> dict[str, Type]:
    """Return the type of a Range of constants: inference takes a count beyond 64 bits for an empty one."""
    at = draft.at(node)
    start, limit, delta = (draft.constants[name] for name in node.input)
    if any(value.size != 1 for value in (start, limit, delta)):
        raise ModelError(
            f"{at}: start, limit and delta must be one number each. The model is inconsistent: export it again"
        )
    first, end, step = (value.reshape(-1)[0].item() for value in (start, limit, delta))
    try:
        count = max(0, math.ceil((end - first) / step))
    except (ArithmeticError, ValueError) as error:
        raise ModelError(
            f"{at}: from {first} to {end} in steps of {step} is not a finite number of elements. Export the model again"
        ) from error
    check_size(f"{at}: output {node.output[0]!r}", (count,), elem_type(start.dtype.name))
    return {node.output[0]: (elem_type(start.dtype.name), (count,))}


def _clamp(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)


def _kind(array: Array) -> Type:
    return elem_type(array.dtype.name), array.shape


def _nbytes(kind: Type) -> int:
    elem, shape = kind
    return math.prod(shape) * DTYPE_BYTES[dtype_name(elem)]
