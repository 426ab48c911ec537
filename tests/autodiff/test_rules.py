"""Every rule against float64 finite differences, against torch, and in float32 on onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx.reference
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.autodiff.registry import registered
from poetopt.autodiff.rules.loss import ATTACHED
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, TrainingGraph
from tests.autodiff.float64 import NEW_OPS
from tests.autodiff.oracle import run
from tests.autodiff.specs import Spec, graph_of, weights_of
from tests.autodiff.table import ROWS

Array = NDArray[Any]
TOLERANCE = 1e-5
NOT_A_NODE = ATTACHED
"""Made by `--loss mse` alone; checked in test_losses."""


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
        list(outputs), dict(feeds)
    )


def close(got: Array, want: Array) -> bool:
    """Within the tolerance, relative to the larger of the norm and one."""
    return bool(np.linalg.norm(got - want) <= TOLERANCE * max(1.0, float(np.linalg.norm(want))))


def gradients(graph: TrainingGraph) -> dict[str, Array]:
    """The gradients, by parameter."""
    outputs = tuple(graph.gradients.values())
    found = evaluator(graph, outputs)({name: graph.values[name] for name in graph.trained})
    return dict(zip(graph.gradients, found, strict=True))


@pytest.mark.parametrize("spec", ROWS, ids=lambda spec: spec.name)
def test_finite_differences(spec: Spec) -> None:
    graph = differentiate(graph_of(spec), loss="none")
    found = gradients(graph)
    loss = evaluator(graph, (graph.loss,))
    step, rng = 1e-4, np.random.default_rng(3)
    for name, gradient in found.items():
        assert gradient.shape == graph.tensors[name].shape
        for _ in range(3):
            direction = rng.standard_normal(gradient.shape)
            moved = step * direction
            values: dict[str, Array] = dict(graph.values)
            sides = [
                loss({n: values[n] + (sign * moved if n == name else 0.0) for n in graph.trained})[0]
                for sign in (1, -1)
            ]
            slope = float(sides[0] - sides[1]) / (2 * step)
            scale = max(1.0, float(np.linalg.norm(gradient) * np.linalg.norm(direction)))
            assert abs(slope - float(np.sum(gradient * direction))) <= TOLERANCE * scale, name


@pytest.mark.torch
@pytest.mark.parametrize("spec", [s for s in ROWS if s.torch], ids=lambda spec: spec.name)
def test_torch(spec: Spec) -> None:
    torch = pytest.importorskip("torch")
    found = gradients(differentiate(graph_of(spec), loss="none"))
    inputs = [
        None if a is None else torch.tensor(a, requires_grad=k in spec.trained) for k, a in enumerate(spec.inputs)
    ]
    assert spec.torch is not None
    made = spec.torch(*inputs)
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    weighed = weights_of([y.detach().numpy() for y in results], spec)
    sum((results[k] * torch.tensor(w)).sum() for k, w in weighed).backward()
    for k in spec.trained:
        tensor = inputs[k]
        assert tensor is not None
        assert close(found[f"i{k}"], tensor.grad.numpy()), f"input {k}"


@pytest.mark.parametrize("spec", ROWS, ids=lambda spec: spec.name)
def test_float32_on_onnxruntime(spec: Spec) -> None:
    if spec.op == "Cast":
        pytest.skip("the row casts to float64")
    exact = gradients(differentiate(graph_of(spec), loss="none"))
    graph = differentiate(graph_of(spec, "float32"), loss="none")
    found = run(graph, {}, tuple(graph.gradients.values()))
    for name, gradient in exact.items():
        got = found[graph.gradients[name]]
        assert got.dtype == np.float32
        if spec.op != "Dropout":
            assert close(got.astype(np.float64), gradient), name


def test_every_rule_has_a_row() -> None:
    rules = {op for domain, op in registered() if not domain}
    assert rules - {spec.op for spec in ROWS} - NOT_A_NODE == set()
