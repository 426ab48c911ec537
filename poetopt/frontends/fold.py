"""Fold a node that reads only constants, or say why not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto

from poetopt.frontends.budget import most_elements, work
from poetopt.frontends.draft import Draft, Type
from poetopt.frontends.evaluate import RANDOM, evaluate
from poetopt.frontends.infer import infer
from poetopt.frontends.proto import attribute_int, dtype_name, elem_type
from poetopt.frontends.read import check_size
from poetopt.graph import DTYPE_BYTES
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array


def fold(draft: Draft, node: NodeProto, declared: Mapping[str, Type]) -> bool:
    if node.op_type in ("Shape", "Size"):
        shape = np.array(draft.types[node.input[0]][1], dtype=np.int64)
        if node.op_type == "Size":
            found = np.array(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
        else:
            start, end = attribute_int(node, "start", 0), attribute_int(node, "end", len(shape))
            found = shape[_clamp(start, len(shape)) : _clamp(end, len(shape))]
        draft.put(node.output[0], found.copy())
        return True
    if node.op_type in RANDOM or any(name and name not in draft.constants for name in node.input):
        draft.unfolded.update(_inherited(draft, node))
        return False
    types = infer(draft, node, {}, must=False)
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
        draft.put(name, array)
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
    at = draft.at(node)
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
