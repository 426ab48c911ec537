"""What is trained of files as exporters write them: what it calls a parameter, else what is in a layer's place."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph
from poetopt.util.errors import ModelError
from poetopt.util.notes import important
from tests.autodiff.oracle import run as run_graph
from tests.frontends.kinds import KINDS, Kind, double, kind, node
from tests.frontends.support import floats, model_of, run

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def left(graph: Graph) -> set[str]:
    """What is said to be data."""
    text = next((note for note in important(graph.notes) if "in no layer's place" in note), "")
    return set(text.partition(": ")[2].partition("; ")[0].split(", ")) - {""}


def attention(signature: str = "") -> onnx.ModelProto:
    """Attention of x with itself under an additive bias, as torch's newer exporter writes it at opset 23."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["q"]),
        helper.make_node("Attention", ["q", "q", "q", "bias"], ["a"], name="attend"),
        helper.make_node("Clip", ["a", "low"], ["y"], name="cut"),
    ]
    weights = {"scale": floats(4), "bias": floats(1, 2, 3, 3, seed=2), "low": np.array(-9, np.float32)}
    model = model_of(nodes, {"x": [2, 2, 3, 4]}, ["y"], weights, opset=23)
    if signature:
        model.graph.metadata_props.add(key=SIGNATURE, value=signature)
    return model


def test_a_mask_is_trained_where_the_file_or_the_user_says_so() -> None:
    assert load_onnx(attention()).trained == ("scale",)
    said = "p_scale: PARAMETER target='scale'\np_bias: PARAMETER target='bias'"
    assert load_onnx(attention(said)).trained == ("scale", "bias")
    assert load_onnx(attention(), train="bi*").trained == ("bias",)
    assert load_onnx(attention(), train="*").trained == ("scale",)


def scaled(signature: str = "") -> onnx.ModelProto:
    """y = (x w) t, with a temperature."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Mul", ["h", "t"], ["y"])]
    model = model_of(nodes, {"x": [2, 3]}, ["y"], {"w": floats(3, 4), "t": np.array(0.5, np.float32)}, opset=18)
    if signature:
        model.graph.metadata_props.add(key=SIGNATURE, value=signature)
    return model


def test_scalars_are_trained_where_the_file_calls_them_parameters_and_named_where_not() -> None:
    silent = load_onnx(scaled())
    assert silent.trained == ("w",)
    assert left(silent) == {"t"}
    assert load_onnx(scaled("t: PARAMETER target='t'\nw: PARAMETER target='w'")).trained == ("w", "t")
    buffer = load_onnx(scaled("t: BUFFER target='t'\nw: PARAMETER target='w'"))
    assert buffer.trained == ("w",)
    assert not left(buffer)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("kind", ["value", "value_floats"])
def test_a_weight_in_a_node_is_trained_however_it_is_written(kind: str, opset: int) -> None:
    bias = floats(3)
    value = numpy_helper.from_array(bias) if kind == "value" else bias.tolist()
    nodes = [
        helper.make_node("Constant", [], ["b"], **{kind: value}),
        helper.make_node("Constant", [], ["t"], value_float=0.5),
        helper.make_node("Constant", [], ["shape"], value_ints=[3, 2]),
        helper.make_node("Gemm", ["x", "k", "b"], ["h"]),
        helper.make_node("Mul", ["h", "t"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["y"]),
    ]
    model = model_of(nodes, {"x": [2, 4]}, ["y"], {"k": floats(4, 3)}, opset=opset)
    graph, feeds = load_onnx(model), {"x": floats(2, 4)}
    assert set(graph.trained) == {"k", "b"}
    assert np.array_equal(graph.values["b"], bias)
    assert np.array_equal(run_graph(graph, feeds)["y"], run(model, feeds)[0])


@pytest.mark.parametrize("root", ["Sqrt", "Pow"])
@pytest.mark.parametrize("centred", [True, False])
def test_the_scale_and_the_bias_of_a_norm_that_is_written_out_are_a_layers(root: str, centred: bool) -> None:
    nodes = [node("MatMul", "x k", "h")]
    if centred:
        nodes += [node("ReduceMean", "h", "mean", axes=[-1]), node("Sub", "h mean", "c")]
    c = "c" if centred else "h"
    nodes += [
        node("Mul", f"{c} {c}", "q"), node("ReduceMean", "q", "v", axes=[-1]), node("Add", "v eps", "e"),
        node(root, "e" if root == "Sqrt" else "e half", "r"), node("Div", f"{c} r", "n"),
        node("Mul", "n g", "s"), node("Add", "s b", "o"), node("Mul", "o gate", "t"), node("MatMul", "t k2", "y"),
    ]  # fmt: skip
    weights = {"k": floats(5, 4), "g": floats(4), "b": floats(4), "gate": floats(4), "k2": floats(4, 3)}
    scalars = {"eps": np.array(1e-5, np.float32), "half": np.array(0.5, np.float32)}
    graph = load_onnx(kind(nodes, [2, 5], {**weights, **scalars}, opset=13).model())
    assert set(graph.trained) == weights.keys() - {"gate"}
    assert "gate" in left(graph)


def test_pairs_of_lora_are_trained_alone() -> None:
    nodes = [
        node("MatMul", "x w", "h"), node("MatMul", "x q.lora_A.weight", "a"), node("MatMul", "a q.lora_B.weight", "b"),
        node("Add", "h b", "y"),
    ]  # fmt: skip
    weights = {"w": floats(5, 4), "q.lora_A.weight": floats(5, 2), "q.lora_B.weight": floats(2, 4)}
    model = kind(nodes, [2, 5], weights).model()
    assert load_onnx(model).trained == ("q.lora_A.weight", "q.lora_B.weight")
    assert len(load_onnx(model, train="*").trained) == 3


def test_what_is_frozen_is_left_as_it_is() -> None:
    """`--freeze` is `!` before a pattern; alone it takes away of what is trained otherwise."""
    whole = po.load("lenet", batch=2)
    assert isinstance(whole, po.Model)
    every = whole.graph.trained
    cases: list[tuple[Any, list[str]]] = [
        ("!conv*", [name for name in every if not name.startswith("conv")]),
        ("fc*,!fc3.bias", [name for name in every if name.startswith("fc") and name != "fc3.bias"]),
        (["*", "!fc1.*", "!fc2.*"], [name for name in every if not name.startswith(("fc1", "fc2"))]),
    ]
    for train, left in cases:
        found = po.load("lenet", batch=2, train=train)
        assert isinstance(found, po.Model)
        assert list(found.graph.trained) == left
    for train, why in (
        ("!nothing", "--freeze 'nothing' matches nothing that is trained"),
        ("fc3.*,!conv1.*", "--freeze 'conv1.*' matches nothing that is trained; there are fc3"),
        ("!*", "leaves nothing that is trained"),
        ("!", "--train has no pattern"),
    ):
        with pytest.raises(ModelError, match=re.escape(why)):
            po.load("lenet", batch=2, train=train)


ALL = pytest.mark.parametrize("found", KINDS.values(), ids=KINDS)


@ALL
def test_what_is_trained_is_the_same_in_nodes_and_in_initializers(found: Kind) -> None:
    graph = load_onnx(found.model())
    twin = load_onnx(found.model(in_nodes=found.weights))
    assert set(graph.trained) == set(twin.trained) == found.trained
    assert sorted(graph.notes) == sorted(twin.notes)


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
