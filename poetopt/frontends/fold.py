"""Evaluate what is constant: Constant nodes and the arithmetic on shapes that exporters leave behind.

One node at a time, with ONNX's reference implementation. Arithmetic on floats is left to onnxruntime: its sines and
products differ from numpy's in the last bit, and folding must not change what the model computes. Nothing random is
folded, nothing huge, and nothing that a trained parameter leads to (its reader is simply never given as constant).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator

from poetopt.errors import ModelError
from poetopt.frontends.proto import elem_type
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
        rounded = _run(node, feeds, opset)
        if rounded is not None:
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


def _run(node: NodeProto, feeds: Mapping[str, Array], opset: int) -> dict[str, Array] | None:
    """The outputs of `node` on onnxruntime, one thread, or None where it has no kernel for these types."""
    import onnxruntime as ort

    written = [name for name in node.output if name]
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    errors = ort.capi.onnxruntime_pybind11_state
    try:
        infos = [helper.make_tensor_value_info(n, elem_type(a.dtype.name), a.shape) for n, a in feeds.items()]
        graph = helper.make_graph([node], "node", infos, [ValueInfoProto(name=name) for name in written])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = session.run(written, dict(feeds))
    except (errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.NotImplemented, errors.RuntimeException):
        return None
    except (ModelError, *LIBRARY_ERRORS):
        return None
    results = dict(zip(written, (np.asarray(value) for value in found), strict=True))
    for array in results.values():
        array.setflags(write=False)
    return results
