"""Evaluate what is constant: Constant nodes and the arithmetic on shapes that exporters leave behind.

One node at a time, with ONNX's reference implementation. Arithmetic on floats is left to onnxruntime: its sines and
products differ from numpy's in the last bit, and folding must not change what the model computes. Nothing random is
folded, nothing huge, and nothing that a trained parameter leads to (its reader is simply never given as constant).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto
from onnx.reference import ReferenceEvaluator

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

LARGEST_FOLDED_BYTES = 2**31
"""A constant beyond this is left to be computed."""


def evaluate(node: NodeProto, constants: Mapping[str, Array], opset: int) -> dict[str, Array] | None:
    """The outputs of `node`, or None where the reference implementation can't tell.

    Every input is in `constants`. Arrays are read-only.
    """
    if node.op_type == "Identity":
        return {node.output[0]: constants[node.input[0]]}
    feeds = {name: np.asarray(constants[name]) for name in node.input if name}
    if node.op_type in _ROUNDED and any(array.dtype.kind == "f" for array in feeds.values()):
        rounded = computed(node, feeds, opset)
        if rounded is not None:
            for array in rounded.values():
                array.setflags(write=False)
            return rounded
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(node, opsets={"": opset}).run(None, feeds)
    except LIBRARY_ERRORS:
        return None
    results: dict[str, Array] = {}
    for name, value in zip(node.output, found, strict=False):
        if name:
            array = np.array(value)
            if array.dtype.kind in "OUS":
                return None
            array.setflags(write=False)
            results[name] = array
    return results
