"""Evaluate what is constant: Constant nodes and the arithmetic on shapes that exporters leave behind.

One node at a time: small ones that move, compare or count with ONNX's reference implementation, others with
onnxruntime. Its sines and products differ from numpy's in the last bit, and folding must not change what the model
computes; and the reference implementation takes minutes for a pooling that onnxruntime does in milliseconds. Nothing
random is folded, nothing over the budget (`poetopt.frontends.budget`), and nothing that a trained parameter leads to
(its reader is simply never given as constant).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto
from onnx.reference import ReferenceEvaluator

from poetopt.frontends.budget import PLAIN
from poetopt.frontends.one_node import computed
from poetopt.frontends.read import LIBRARY_ERRORS

if TYPE_CHECKING:
    from poetopt.graph import Array

RANDOM = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
"""Operators whose result differs from run to run."""

_ROUNDED = frozenset({
    "Acos", "Acosh", "Add", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "CumSum", "Div", "Einsum", "Elu",
    "Erf", "Exp", "Gelu", "Gemm", "HardSigmoid", "HardSwish", "LayerNormalization", "Log", "LogSoftmax", "MatMul",
    "Mean", "Mish", "Mod", "Mul", "Pow", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Selu", "Sigmoid", "Sin", "Sinh",
    "Softmax", "Softplus", "Sqrt", "Sub", "Sum", "Tan", "Tanh",
})  # fmt: skip
"""Operators whose result depends on who rounds it, where it is of floats; all others move, compare or count."""

_SMALL = 2**15
"""Work up to which a plain node is not worth a session."""
_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


def evaluate(
    node: NodeProto, constants: Mapping[str, Array], opset: int, steps: int, shape: tuple[int, ...] | None
) -> dict[str, Array] | None:
    """The outputs of `node`, or None where neither implementation can tell.

    Every input is in `constants`; `steps` is the node's work, `shape` that of its first output where it is known.
    Arrays are read-only.
    """
    first = constants[node.input[0]] if node.input and node.input[0] else None
    if node.op_type == "Identity" and first is not None:
        return {node.output[0]: first}
    if node.op_type in _VIEWS and first is not None and shape is not None:
        return {node.output[0]: first.reshape(shape)} if first.size == math.prod(shape) else None
    feeds = {name: np.asarray(constants[name]) for name in node.input if name}
    floats = any(array.dtype.kind == "f" for array in feeds.values())
    plain = node.op_type in PLAIN
    results = None
    if not plain or (floats if node.op_type in _ROUNDED else steps > _SMALL):
        results = computed(node, feeds, opset)
    if results is None and (plain or steps <= _SMALL):
        results = _by_reference(node, feeds, opset)
    for array in (results or {}).values():
        if array.dtype.kind in "OUS":
            return None
        array.setflags(write=False)
    return results


def _by_reference(node: NodeProto, feeds: Mapping[str, Array], opset: int) -> dict[str, Array] | None:
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(node, opsets={"": opset}).run(None, dict(feeds))
    except LIBRARY_ERRORS:
        return None
    return {name: np.asarray(value) for name, value in zip(node.output, found, strict=False) if name}
