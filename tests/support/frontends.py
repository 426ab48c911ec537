"""Models to import, and onnxruntime to say what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper, parser

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poetopt.graph import Array

F32 = onnx.TensorProto.FLOAT


def text_model(body: str, *, opset: int = 18, ir_version: int = 8) -> onnx.ModelProto:
    """A model from ONNX's text form: `name (inputs) => (outputs) <initializers> { nodes }`."""
    header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>'
    return parser.parse_model(f"{header}\n{body}")


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Sequence[str],
    weights: Mapping[str, Array] | None = None,
    *,
    opset: int = 18,
    ir_version: int = 8,
) -> onnx.ModelProto:
    """A model with float inputs; outputs have no declared shape."""
    infos = [helper.make_tensor_value_info(name, F32, list(shape)) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, F32, None) for name in outputs]
    stored = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", infos, results, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def floats(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normal random numbers."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def run(model: onnx.ModelProto | str, feeds: Mapping[str, Array]) -> list[NDArray[np.float32]]:
    """The (float) outputs of `model` on onnxruntime, nothing optimised away. Unknown feeds are left out."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    content = model if isinstance(model, str) else model.SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    known = {info.name for info in session.get_inputs()}
    return list(session.run(None, {name: array for name, array in feeds.items() if name in known}))
