"""One pass over the nodes in order: infer each output's static shape, and fold what is constant.

Shapes of intermediate tensors that the file declares are used only where inference can't tell: they
may be stale (another batch), and inference from the inputs catches what does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from poetopt.errors import ModelError, UnsupportedOpError
from poetopt.frontends.attributes import check_attributes, check_window
from poetopt.frontends.budget import Budget, most_elements, readers, released, work
from poetopt.frontends.deciding import is_setting, value_options
from poetopt.frontends.fold import RANDOM, evaluate
from poetopt.frontends.operand_shapes import check_operands
from poetopt.frontends.operands import FIRST_STATES
from poetopt.frontends.proto import attribute_int, copied, dtype_name, elem_type
from poetopt.frontends.read import LIBRARY_ERRORS, check_size
from poetopt.frontends.resizes import agreed
from poetopt.frontends.sizes import Shape
from poetopt.frontends.states import fitted
from poetopt.frontends.structure import describe, first_line
from poetopt.graph import DTYPE_BYTES, VIEW_OPS

if TYPE_CHECKING:
    from poetopt.graph import Array

Type = tuple[int, Shape]
"""ONNX element type and static shape."""

_READ_BY_INFERENCE = 4096
"""Constants of at most this many elements are shown to shape inference."""

_LIKE_FIRST_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Operators that ONNX defines by a function alone, without shape inference."""

_OPTIONAL_SCALES_SINCE = 13
"""From this opset on a Resize with sizes has no scales."""

_POOLS, _POOLS_AS_COMPUTED = frozenset({"AveragePool", "LpPool", "MaxPool"}), 22
"""From this opset on ONNX says what torch and onnxruntime do in all: a window that would begin in the padding behind
isn't there, in ceil mode either."""


@dataclass(frozen=True)
class Rebatch:
    """Baked-in shapes to rewrite for another batch: types of all tensors before, old batch, new batch."""

    before: Mapping[str, Type]
    old: int
    new: int


@dataclass
class Draft:
    """A graph on its way: nodes with static types, constants evaluated.

    nodes
        In topological order, folded ones left out, Dropout in evaluation mode turned into Identity.
    types
        Of every tensor, folded ones included.
    constants
        Untrained weights and folded tensors.
    folded
        How many nodes were folded.
    gone
        Constants that were folded into others, and are kept no longer.
    unfolded
        What is constant but over the budget of folding, or depends on that, and why.
    repeated
        First states of recurrent layers that were for another batch, and the batch that they are repeated for.
    unread
        Outputs of the graph that can't be imported, and why.
    """

    where: str
    opset: int
    nodes: list[NodeProto] = field(default_factory=list)
    types: dict[str, Type] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    folded: int = 0
    gone: set[str] = field(default_factory=set)
    unfolded: dict[str, str] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    removed_dropouts: int = 0
    repeated: dict[str, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


def specialise(
    where: str,
    opset: int,
    nodes: Sequence[NodeProto],
    types: Mapping[str, Type],
    constants: Mapping[str, Array],
    declared: Mapping[str, Type],
    rebatch: Rebatch | None = None,
    outputs: Iterable[str] = (),
    budget: Budget | None = None,
    kept: Iterable[str] | None = None,
) -> Draft:
    """Infer and fold `nodes` (in topological order, opset `opset`).

    types
        Of inputs and of all weights.
    constants
        Weights that are not trained.
    declared
        What the file says of other tensors, where it is static.
    outputs
        Where one of these can be imported, others needn't be: the nodes that only those need are left out.
    budget
        What folding may cost.
    kept
        What is read besides by the nodes. Folded constants that are not, and that no operator reads, are dropped as
        soon as they have been folded into others; by default none is.

    Raises `ModelError` where shapes don't fit each other, `UnsupportedOpError` where they are unknown, naming node and
    tensor.
    """
    draft = Draft(where, opset, types=dict(types), constants=dict(constants), budget=budget or Budget())
    wanted = list(outputs)
    left, stay = readers(nodes), None if kept is None else {*constants, *kept}
    lost: dict[str, UnsupportedOpError] = {}
    for original in nodes:
        error = next((lost[name] for name in original.input if name in lost), None)
        if error is None:
            try:
                folded = _add(draft, original, declared, rebatch)
                if stay is not None:
                    if not folded:
                        stay.update(original.input)
                    _drop(draft, released(left, original, stay))
                continue
            except UnsupportedOpError as found:
                error = found
        lost.update((name, error) for name in original.output if name)
        if len(wanted) < 2 or all(name in lost for name in wanted):
            raise error
    draft.unread.update((name, str(lost[name])) for name in wanted if name in lost)
    return draft


def _drop(draft: Draft, names: Iterable[str]) -> None:
    for name in names:
        array = draft.constants.pop(name, None)
        if array is not None:
            draft.gone.add(name)
            draft.budget.give_back(array.nbytes)


def _add(draft: Draft, original: NodeProto, declared: Mapping[str, Type], rebatch: Rebatch | None) -> bool:
    """Fold a node, or put it behind the draft's with the types of its outputs; whether it was folded."""
    node = _plain(draft, original)
    if rebatch is not None:
        _rewrite(draft, node, rebatch)
    _measure(draft, node)
    _fit_states(draft, node)
    shapes = [draft.types[name][1] if name else None for name in node.input]
    at = describe(draft.where, node, draft.opset)
    check_attributes(at, node, shapes, draft.constants, draft.opset)
    check_operands(at, node, shapes, draft.constants)
    if _fold(draft, node, declared):
        draft.folded += 1
        return True
    found = _infer(draft, node, declared)
    check_window(at, node, shapes, [shape for _, shape in found.values()])
    draft.types.update(found)
    _check_view(draft, node)
    draft.nodes.append(node)
    return False


def _fit_states(draft: Draft, node: NodeProto) -> None:
    """Replace first states of a recurrent layer that are for another batch."""
    if node.op_type not in FIRST_STATES:
        return
    at = describe(draft.where, node, draft.opset)
    shapes = {name: draft.types[name][1] for name in node.input if name}
    for state in fitted(at, node, shapes, draft.constants):
        if state.name not in draft.types:
            if state.value is not None:
                _add_constant(draft, state.name, state.value)
            elif state.target is not None:
                _add_constant(draft, f"{state.name}.shape", state.target)
                draft.nodes.append(state.expansion(f"{state.name}.shape"))
                draft.types[state.name] = (draft.types[state.old][0], state.shape)
        node.input[state.place] = state.name
        draft.repeated[state.old] = state.shape[1]


def _plain(draft: Draft, node: NodeProto) -> NodeProto:
    """A copy of `node`; Dropout that drops nothing becomes Identity."""
    copy = copied(node)
    if node.op_type != "Dropout":
        return copy
    at = describe(draft.where, node, draft.opset)
    ratio, training = _setting(draft, at, node, 1, 0.5), _setting(draft, at, node, 2, 0.0)
    if training and ratio:
        return copy
    identity = helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name)
    if len(node.output) > 1 and node.output[1]:
        mask = np.ones(draft.types[node.input[0]][1], dtype=np.bool_)
        _add_constant(draft, node.output[1], mask)
    draft.removed_dropouts += 1
    return identity


def _setting(draft: Draft, at: str, node: NodeProto, index: int, default: float) -> float:
    name = node.input[index] if index < len(node.input) else ""
    if not name:
        return default
    if name not in draft.constants:
        raise UnsupportedOpError(
            f"{at}: its {'ratio' if index == 1 else 'training_mode'} ({name!r}) is not constant; "
            "export the model with it fixed"
        )
    return float(np.asarray(draft.constants[name]).reshape(-1)[0])


def _add_constant(draft: Draft, name: str, array: Array) -> None:
    array.setflags(write=False)
    draft.constants[name] = array
    draft.types[name] = (elem_type(array.dtype.name), array.shape)


def _rewrite(draft: Draft, node: NodeProto, rebatch: Rebatch) -> None:
    """Put the new batch into the constant shape of a Reshape or Expand that has the old one in front."""
    if node.op_type not in ("Reshape", "Expand") or len(node.input) < 2 or node.input[1] not in draft.constants:
        return
    shape = draft.constants[node.input[1]]
    data = rebatch.before.get(node.input[0])
    result = rebatch.before.get(node.output[0])
    if not shape.size or data is None or result is None or not data[1] or not result[1]:
        return
    leads = (rebatch.old,) if node.op_type == "Reshape" else (rebatch.old, 1)
    if int(shape.reshape(-1)[0]) == rebatch.old == result[1][0] and data[1][0] in leads:
        node.input[1] = _new_constant(draft, f"{node.output[0]}.shape", np.array([rebatch.new, *shape[1:]], np.int64))


def _measure(draft: Draft, node: NodeProto) -> None:
    """Give a Resize sizes where shape inference would read its scales otherwise than the runtime."""
    scales = draft.constants.get(node.input[2]) if node.op_type == "Resize" and len(node.input) > 2 else None
    if scales is None or not scales.size or draft.opset < _OPTIONAL_SCALES_SINCE:
        return
    own = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    before = draft.types[node.input[0]][1]
    axes = own.get("axes") or range(len(before))
    if own.get("coordinate_transformation_mode") == b"tf_crop_and_resize" or len(axes) != scales.size:
        return
    if any(not -len(before) <= axis < len(before) for axis in axes):
        return
    found = agreed(
        [before[axis] for axis in axes], scales.astype(np.float32), nearest=own.get("mode", b"nearest") == b"nearest"
    )
    if found is not None:
        sized = found.dtype == np.int64
        name = _new_constant(draft, f"{node.output[0]}.{'sizes' if sized else 'scales'}", found)
        del node.input[1:]
        node.input.extend(["", "", name] if sized else ["", name])


def _new_constant(draft: Draft, name: str, array: Array) -> str:
    while name in draft.types:
        name += "_"
    _add_constant(draft, name, array)
    return name


def _fold(draft: Draft, node: NodeProto, declared: Mapping[str, Type]) -> bool:
    if node.op_type in ("Shape", "Size"):
        shape = np.array(draft.types[node.input[0]][1], dtype=np.int64)
        if node.op_type == "Size":
            found = np.array(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
        else:
            start, end = attribute_int(node, "start", 0), attribute_int(node, "end", len(shape))
            found = shape[_clamp(start, len(shape)) : _clamp(end, len(shape))]
        _add_constant(draft, node.output[0], found.copy())
        return True
    if node.op_type in RANDOM or any(name and name not in draft.constants for name in node.input):
        draft.unfolded.update(_inherited(draft, node))
        return False
    types = _infer(draft, node, {}, must=False)
    if node.op_type == "Range":
        types = _range(draft, node)
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
    if results is None or any(expected.get(name, _type(array)) != _type(array) for name, array in results.items()):
        return False
    draft.budget.take(sum(array.nbytes for array in results.values()), steps or 0)
    for name, array in results.items():
        _add_constant(draft, name, array)
    return True


def _inherited(draft: Draft, node: NodeProto) -> dict[str, str]:
    """What to say of the outputs of a node that reads only constants, some of which weren't folded."""
    names = [name for name in node.input if name]
    if node.op_type in RANDOM or not all(name in draft.constants or name in draft.unfolded for name in names):
        return {}
    reason = next(draft.unfolded[name] for name in names if name in draft.unfolded)
    return {name: reason for name in node.output if name}


def _range(draft: Draft, node: NodeProto) -> dict[str, Type]:
    """The type of a Range of constants; inference would take what doesn't fit 64 bits for nothing."""
    at = describe(draft.where, node, draft.opset)
    start, limit, delta = (draft.constants[name] for name in node.input)
    if any(value.size != 1 for value in (start, limit, delta)):
        raise ModelError(f"{at}: start, limit and delta must be one number each; the model is inconsistent")
    first, end, step = (value.reshape(-1)[0].item() for value in (start, limit, delta))
    try:
        count = max(0, math.ceil((end - first) / step))
    except (ArithmeticError, ValueError) as error:
        raise ModelError(
            f"{at}: from {first} to {end} in steps of {step} is no finite number of elements; export the model again"
        ) from error
    check_size(f"{at}: output {node.output[0]!r}", (count,), elem_type(start.dtype.name))
    return {node.output[0]: (elem_type(start.dtype.name), (count,))}


def _clamp(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)


def _type(array: Array) -> Type:
    return elem_type(array.dtype.name), array.shape


def _nbytes(kind: Type) -> int:
    elem, shape = kind
    return math.prod(shape) * DTYPE_BYTES[dtype_name(elem)]


def _infer(draft: Draft, node: NodeProto, declared: Mapping[str, Type], must: bool = True) -> dict[str, Type]:
    """Types of the outputs of `node`; where `must` is false, unknown ones are left out instead of refused."""
    at = describe(draft.where, node, draft.opset)
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


def _check_view(draft: Draft, node: NodeProto) -> None:
    """Shape inference takes a Reshape's word for the number of elements; a graph must not."""
    if node.op_type not in VIEW_OPS:
        return
    before, after = (draft.types[name][1] for name in (node.input[0], node.output[0]))
    if math.prod(before) != math.prod(after):
        at = describe(draft.where, node, draft.opset)
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
