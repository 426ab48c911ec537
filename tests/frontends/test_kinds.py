"""What is trained of files as exporters write them, and that it is said, wherever the file keeps its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import copied, model_proto
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
def test_what_is_no_layers_and_what_is_data_is_said(found: Kind) -> None:
    said = important(load_onnx(found.model()).notes)
    beside = next((note for note in said if "no layer's weight or bias" in note), "")
    assert set(beside.partition(": ")[2].partition("; ")[0].split(", ")) - {""} == found.beside
    normalising = {name for name in found.data if "w_" not in name and "full" not in name and "batchnorm" not in name}
    for name in normalising:
        assert any("what normalises the input is not trained" in note and name in note for note in said)
    assert any("what normalises" in note for note in said) is bool(normalising)


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


@pytest.mark.parametrize("in_nodes", ["linear_0.w_0", "linear_0.b_0", "linear_1.w_0 linear_1.b_0", "linear_1.b_0"])
def test_a_file_may_keep_some_weights_in_nodes(in_nodes: str) -> None:
    found = PADDLE["mlp"]
    assert set(load_onnx(found.model(in_nodes=in_nodes.split())).trained) == found.trained


@pytest.mark.parametrize("producer", ["PaddlePaddle", "pytorch", ""])
def test_a_filter_of_torchs_exporter_is_data_and_another_ones_a_weight(producer: str) -> None:
    """Of names that say nothing the exporter decides: only torch's writes buffers, and nothing else, as nodes."""
    found = PADDLE["conv"]
    names = {"conv2d_0.w_0": "12", "linear_0.b_0": "bias"}
    weights = {names.get(name, name): array for name, array in found.weights.items()}
    nodes = [copied(original) for original in found.nodes]
    for made in nodes:
        made.input[:] = [names.get(name, name) for name in made.input]
    model = Kind(tuple(nodes), found.shape, weights).model(in_nodes=["12"])
    model.producer_name = producer
    others = {"conv2d_0.b_0", "linear_0.w_0", "bias"}
    assert set(load_onnx(model).trained) == others | ({"12"} if producer == "PaddlePaddle" else set())


def test_a_learned_sum_or_product_on_the_input_stays() -> None:
    """A table of positions, a gate with any sign, distances from centres: none of them normalises."""
    head = [node("MatMul", "h k", "y")]
    weights = {"k": floats(4, 2)}
    for nodes, more in (
        ([node("Add", "x positions", "h")], {"positions": floats(3, 4)}),
        ([node("Mul", "x two", "m"), node("Add", "m positions", "h")],
         {"two": np.array(2, np.float32), "positions": floats(3, 4)}),
        ([node("Mul", "x gate", "m"), node("Add", "m offset", "h")], {"gate": floats(4), "offset": floats(4)}),
        ([node("Unsqueeze", "x one", "u"), node("Sub", "u centres", "d"), node("Mul", "d d", "q"),
          node("ReduceSum", "q one", "h", keepdims=0)], {"one": np.array([1]), "centres": floats(5, 4)}),
    ):  # fmt: skip
        graph = load_onnx(kind([*nodes, *head], [3, 4], {**weights, **more}).model())
        own = {name for name, array in more.items() if array.dtype == np.float32 and array.ndim}
        assert set(graph.trained) == {"k", *own}
        assert any("no layer's weight or bias" in note for note in important(graph.notes))


def test_what_normalises_is_trained_where_it_is_named_or_read_elsewhere_too() -> None:
    assert load_onnx(SKLEARN["scaled"].model(), train="Su_*").trained == ("Su_Subcst",)
    nodes = [
        node("Sub", "x m", "s"), node("Div", "s d", "n"), node("MatMul", "n k", "h"), node("Mul", "h d", "y"),
    ]  # fmt: skip
    weights = {"m": floats(3), "d": np.abs(floats(3)) + 1, "k": floats(3, 3)}
    assert set(load_onnx(kind(nodes, [5, 3], weights).model()).trained) == {"d", "k"}


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
