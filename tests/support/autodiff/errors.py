"""How far a row's gradients are from finite differences, relative to the larger of their norm and one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx.reference
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, TrainingGraph
from tests.support.autodiff.float64 import NEW_OPS
from tests.support.autodiff.specs import Spec, graph_of

Array = NDArray[Any]
TOLERANCE = 1e-5


def evaluator(graph: Graph, outputs: tuple[str, ...]) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Runs the graph with other values of its parameters: on onnxruntime, or where it has no float64 kernel, numpy."""
    import onnxruntime as ort

    model = model_proto(graph, outputs)
    for name in graph.trained:
        tensor = graph.tensors[name]
        elem = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, elem, tensor.shape))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    kinds = {node.op_type for operator in graph.operators for node in operator.nodes}
    double = any(t.dtype == "float64" for t in graph.tensors.values())
    errors = ort.capi.onnxruntime_pybind11_state
    try:
        if double and kinds & {"GRU", "LSTM", "RNN"}:
            raise errors.NotImplemented  # it says so only when it runs
        fixed = None if "RandomUniform" in kinds else ort.InferenceSession(model.SerializeToString(), options)
    except (errors.Fail, errors.NotImplemented, errors.InvalidGraph):
        reference = onnx.reference.ReferenceEvaluator(model, new_ops=NEW_OPS)
        return lambda feeds: [np.asarray(y) for y in reference.run(list(outputs), dict(feeds))]
    # A fresh session draws the same random mask again.
    return lambda feeds: (fixed or ort.InferenceSession(model.SerializeToString(), options)).run(
        list(outputs), {name: np.asarray(feed) for name, feed in feeds.items()}
    )


def gradients(graph: TrainingGraph) -> dict[str, Array]:
    """The gradients, by parameter."""
    outputs = tuple(graph.gradients.values())
    found = evaluator(graph, outputs)({name: graph.values[name] for name in graph.trained})
    return dict(zip(graph.gradients, found, strict=True))


def finite_difference_error(spec: Spec, directions: int = 3) -> float:
    """The worst of a few random directions for each trained input, in float64."""
    graph = differentiate(graph_of(spec), loss="none")
    found = gradients(graph)
    loss = evaluator(graph, (graph.loss,))
    step, rng, worst = 1e-4, np.random.default_rng(3), 0.0
    for name, gradient in found.items():
        assert gradient.shape == graph.tensors[name].shape
        for _ in range(directions):
            direction = rng.standard_normal(gradient.shape)
            direction /= max(1.0, float(np.abs(direction).max()) / 3)
            sides = []
            for sign in (1, -1):
                values: dict[str, Array] = {n: graph.values[n] for n in graph.trained}
                values[name] = np.asarray(values[name] + sign * step * direction)
                sides.append(float(loss(values)[0]))
            slope = (sides[0] - sides[1]) / (2 * step)
            scale = max(1.0, float(np.linalg.norm(gradient) * np.linalg.norm(direction)))
            worst = max(worst, abs(slope - float(np.sum(gradient * direction))) / scale)
    return worst
