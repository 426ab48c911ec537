"""Which weights are trained: what the file says and what `--train` says go before what operators suggest."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError
from tests.autodiff.oracle import run as run_graph
from tests.frontends.support import floats, model_of, run

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


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


def test_the_gradient_of_a_learned_mask() -> None:
    step = differentiate(load_onnx(attention(), train="bias"), loss="mse")
    rng = np.random.default_rng(1)
    labels = next(name for name in step.inputs if name != "x")
    feeds = {name: rng.standard_normal(step.tensors[name].shape).astype(np.float32) for name in ("x", labels)}
    found = run_graph(step, feeds)["bias.grad"]
    queries = feeds["x"] * np.asarray(step.values["scale"], np.float32)
    mask = np.asarray(step.values["bias"], np.float64)
    direction = rng.standard_normal(mask.shape)

    def loss(by: float) -> float:
        scores = queries @ queries.swapaxes(-1, -2) / 2 + mask + by * direction
        p = np.exp(scores)
        return float(np.mean((p / p.sum(-1, keepdims=True) @ queries - feeds[labels]) ** 2))

    assert np.sum(found * direction) == pytest.approx((loss(1e-5) - loss(-1e-5)) / 2e-5, rel=1e-3)


def test_a_setting_without_gradient_is_refused_as_such() -> None:
    with pytest.raises(ModelError, match=r"names 'low', which is input 1 of Clip \('cut'\): no gradient rule"):
        load_onnx(attention(), train="low")


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
    assert any("scalars are not trained (t)" in note for note in silent.notes)
    assert load_onnx(scaled("t: PARAMETER target='t'\nw: PARAMETER target='w'")).trained == ("w", "t")
    buffer = load_onnx(scaled("t: BUFFER target='t'\nw: PARAMETER target='w'"))
    assert buffer.trained == ("w",)
    assert not any("scalars" in note for note in buffer.notes)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_first_state_of_an_unrolled_cell_is_no_weight(transposed: bool) -> None:
    zero = helper.make_node("Constant", [], ["h0"], value=numpy_helper.from_array(np.zeros((2, 3), np.float32)))
    right = [helper.make_node("Transpose", ["r"], ["rt"], perm=[1, 0])] if transposed else []
    nodes = [
        zero, *right, helper.make_node("MatMul", ["h0", "rt" if transposed else "r"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["h1"]), helper.make_node("MatMul", ["h1", "r"], ["y"]),
    ]  # fmt: skip
    graph = load_onnx(model_of(nodes, {"x": [2, 3]}, ["y"], {"r": floats(3, 3)}))
    assert graph.trained == ("r",)


def test_a_constant_before_data_is_a_weight() -> None:
    weight = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(floats(4, 3)))
    graph = load_onnx(model_of([weight, helper.make_node("MatMul", ["w", "x"], ["y"])], {"x": [3, 2]}, ["y"], {}))
    assert graph.trained == ("w",)


def recurrent(op: str, first: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> onnx.ModelProto:
    """A recurrent layer whose first state (and cell) the file stores, before a Gemm."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    weights = {"w": floats(1, 4 * gates, 2), "r": floats(1, 4 * gates, 4), "h0": first, "k": floats(4, 2)}
    states = ["h0", "c0"] if op == "LSTM" else ["h0"]
    if op == "LSTM":
        weights["c0"] = first
    nodes = [
        helper.make_node(op, ["x", "w", "r", "", "", *states], ["", "last"], "layer", hidden_size=4),
        helper.make_node("Squeeze", ["last", "axis"], ["h"]),
        helper.make_node("Gemm", ["h", "k"], ["y"]),
    ]
    return model_of(nodes, {"x": [5, 3, 2]}, ["y"], {**weights, "axis": np.array([0])})


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_a_first_state_of_zeros_is_data(op: str) -> None:
    """Exporters of Keras store it as an initializer; the values of anything learned would differ."""
    states = ("h0", "c0") if op == "LSTM" else ("h0",)
    zero = recurrent(op, np.zeros((1, 3, 4), np.float32))
    graph = load_onnx(zero)
    assert graph.trained == ("w", "r", "k")
    assert any(f"all zero are data ({', '.join(states)})" in note for note in graph.notes)
    assert set(load_onnx(zero, train="w, ?0").trained) == {"w", *states}
    assert set(states) < set(load_onnx(recurrent(op, floats(1, 3, 4))).trained)


def normalized(in_nodes: set[str], scale: float = 1.0) -> onnx.ModelProto:
    """A Gemm and a LayerNormalization; the weights of `in_nodes` are Constant nodes."""
    values = {"k": floats(4, 4), "g": np.full(4, scale, np.float32), "b": np.zeros(4, np.float32)}
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
        for name, array in values.items()
        if name in in_nodes
    ]
    nodes += [
        helper.make_node("Gemm", ["x", "k"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "g", "b"], ["y"]),
    ]
    return model_of(nodes, {"x": [3, 4]}, ["y"], {n: a for n, a in values.items() if n not in in_nodes})


def test_a_normalization_without_weights_has_none() -> None:
    assert load_onnx(normalized({"g", "b"})).trained == ("k",)
    assert load_onnx(normalized({"g", "b"}), train="g").trained == ("g",)


def test_fresh_weights_of_a_normalization_are_trained() -> None:
    assert set(load_onnx(normalized(set())).trained) == {"k", "g", "b"}
    buffer = load_onnx(normalized({"g", "b"}, scale=0.5))
    assert buffer.trained == ("k",)
    assert any("Constant nodes, while weights are initializers (g)" in note for note in buffer.notes)
    # a file that keeps every weight in a node says nothing by it
    assert set(load_onnx(normalized({"k", "g", "b"})).trained) == {"k", "g", "b"}


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


def test_a_weight_whose_shape_or_type_is_asked_for_is_not_shared() -> None:
    nodes = [
        helper.make_node("Shape", ["w"], ["shape"], start=0, end=1),
        helper.make_node("CastLike", ["zero", "w"], ["cast"]),
        helper.make_node("Expand", ["cast", "shape"], ["b"]),
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Gemm", ["h", "v"], ["y"]),
    ]
    zero: Any = np.array(0, np.float64)
    weights = {"w": floats(4, 4), "v": floats(4, 4, seed=1), "zero": zero}
    alone = load_onnx(model_of(nodes, {"x": [2, 4]}, ["y"], weights, opset=18))
    assert not any("shared" in note for note in alone.notes)
    nodes[-1] = helper.make_node("Gemm", ["h", "w"], ["y"])
    twice = load_onnx(model_of(nodes, {"x": [2, 4]}, ["y"], {"w": floats(4, 4), "zero": zero}, opset=18))
    assert any("1 parameter is shared by several operators (w)" in note for note in twice.notes)
