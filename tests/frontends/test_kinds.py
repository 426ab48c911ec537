"""What is trained of files as exporters write them, and that it is said, wherever the file keeps its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.util.notes import important
from tests.frontends.kinds import KINDS, PADDLE, SKLEARN, Kind, double, kind, node
from tests.frontends.support import floats

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
ALL = pytest.mark.parametrize("found", KINDS.values(), ids=KINDS)


@ALL
def test_what_is_trained_is_the_same_in_nodes_and_in_initializers(found: Kind) -> None:
    graph = load_onnx(found.model())
    twin = load_onnx(found.model(in_nodes=found.weights))
    assert set(graph.trained) == set(twin.trained) == found.trained
    assert sorted(graph.notes) == sorted(twin.notes)


@ALL
def test_what_is_data_is_said(found: Kind) -> None:
    said = "\n".join(important(load_onnx(found.model()).notes))
    statistics = {name for node in found.nodes if node.op_type == "BatchNormalization" for name in node.input[3:]}
    assert all(name in said for name in found.data - statistics if "full" not in name)
    assert not any(f" {name}," in said for name in found.trained)


@ALL
def test_gradients_against_finite_differences_in_float64(found: Kind) -> None:
    model = double(found.model(in_nodes=found.weights))
    step = differentiate(load_onnx(model), loss="mse")
    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal(step.tensors[name].shape) for name in step.inputs}
    names = [step.gradients[name] for name in step.trained]
    found_gradients = ReferenceEvaluator(model_proto(step, names)).run(None, feeds)
    target = feeds[step.added_inputs[0]]

    def loss(name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        moved = Kind(found.nodes, found.shape, {**found.weights, name: value}, opset=found.opset)
        (y,) = ReferenceEvaluator(double(moved.model())).run(None, {"x": feeds["x"]})
        return float(np.mean((np.asarray(y) - target) ** 2))

    assert set(step.trained) == found.trained
    for name, gradient in zip(step.trained, found_gradients, strict=True):
        value = np.asarray(found.weights[name], np.float64)
        direction = rng.standard_normal(value.shape)
        slope = (loss(name, value + 1e-5 * direction) - loss(name, value - 1e-5 * direction)) / 2e-5
        assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("in_nodes", ["linear_0.b_0", "linear_1.b_0", "linear_0.b_0 linear_1.b_0"])
def test_a_file_may_keep_biases_in_nodes(in_nodes: str) -> None:
    found = PADDLE["mlp"]
    assert set(load_onnx(found.model(in_nodes=in_nodes.split())).trained) == found.trained


def test_a_weight_in_a_node_is_data_where_others_are_initializers() -> None:
    graph = load_onnx(PADDLE["mlp"].model(in_nodes=["linear_0.w_0"]))
    assert "linear_0.w_0" not in graph.trained
    assert any("linear_0.w_0" in note for note in important(graph.notes))


def test_what_normalises_is_trained_where_it_is_named() -> None:
    assert load_onnx(SKLEARN["scaled"].model(), train="Su_*").trained == ("Su_Subcst",)


def test_a_network_of_nothing_else_trains_it() -> None:
    only = kind([node("Sub", "x m", "s"), node("Div", "s d", "y")], [3, 4], {"m": floats(4), "d": np.abs(floats(4))})
    assert set(load_onnx(only.model()).trained) == {"m", "d"}


@pytest.mark.parametrize("twin", ["constants_as_nodes", "constants_as_initializers"])
def test_the_shared_twins(twin: str) -> None:
    path = CASES / f"{twin}.onnx"
    if not path.exists():
        pytest.skip("no shared cases here")
    graph = load_onnx(path)
    assert set(graph.trained) == {"fc1.w", "fc1.b", "fc2.w", "fc2.b"}
    assert any(note.startswith("4 of 4 float tensors are trained") for note in graph.notes)


def test_the_shared_normalization() -> None:
    path = CASES / "input_normalization.onnx"
    if not path.exists():
        pytest.skip("no shared cases here")
    assert set(load_onnx(path).trained) == {"k", "b", "d"}
    assert set(load_onnx(path, train="norm*").trained) == {"normalization/mean", "normalization/std"}
