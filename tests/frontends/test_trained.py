"""What is trained: what the file calls a parameter, else what stands in a layer's place; the rest is named."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import Graph
from poetopt.util.errors import ModelError
from poetopt.util.notes import important
from tests.support.autodiff.oracle import run as run_graph
from tests.support.each import each
from tests.support.frontends import floats, model_of, run
from tests.support.kinds import KINDS, Array, Kind, kind, node

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def left(graph: Graph) -> set[str]:
    """What is said to be data."""
    text = next((note for note in important(graph.notes) if "no layer reads them" in note), "")
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
    with pytest.raises(
        ModelError, match=r"names 'low', which is input 1 of Clip \('cut'\): no rule computes its gradient"
    ):
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
    assert left(silent) == {"t"}
    assert load_onnx(scaled("t: PARAMETER target='t'\nw: PARAMETER target='w'")).trained == ("w", "t")
    buffer = load_onnx(scaled("t: BUFFER target='t'\nw: PARAMETER target='w'"))
    assert buffer.trained == ("w",)
    assert not left(buffer)


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
def test_a_first_state_is_data(op: str) -> None:
    states = {"h0", "c0"} if op == "LSTM" else {"h0"}
    model = recurrent(op, floats(1, 3, 4))
    graph = load_onnx(model)
    assert graph.trained == ("w", "r", "k")
    assert left(graph) == states
    assert set(load_onnx(model, train="w, ?0").trained) == {"w", *states}


@each("found", KINDS.values())
def test_what_is_trained_is_the_same_in_nodes_and_in_initializers(found: Kind) -> None:
    """As Paddle, CNTK, Keras, MATLAB, tf2onnx and scikit-learn write their networks."""
    stored, in_nodes = load_onnx(found.model()), load_onnx(found.model(in_nodes=found.weights))
    assert set(stored.trained) == set(in_nodes.trained) == found.trained


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
    assert left(buffer) == {"g", "b"}
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


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div", "Max"])
@pytest.mark.parametrize("name", ["mask_w", "norm.weight"])
def test_a_name_makes_no_parameter_of_what_stands_between_layers(op: str, name: str) -> None:
    nodes = [
        node("Gemm", "x f.weight f.bias", "a"), node("Tanh", "a", "h"), node(op, f"h {name}", "m"),
        node("Gemm", "m g.weight g.bias", "y"),
    ]  # fmt: skip
    layers = {"f.weight": floats(5, 4), "f.bias": floats(4), "g.weight": floats(4, 3), "g.bias": floats(3)}
    graph = load_onnx(kind(nodes, [2, 5], {**layers, name: floats(4)}).model())
    assert set(graph.trained) == layers.keys()
    assert left(graph) == {name}


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


def test_a_table_behind_a_norm_is_none_of_it() -> None:
    nodes = [node("LayerNormalization", "x g b", "n"), node("Add", "n table", "t"), node("MatMul", "t k", "y")]
    weights = {"g": floats(4), "b": floats(4), "table": floats(3, 4), "k": floats(4, 2)}
    assert left(load_onnx(kind(nodes, [3, 4], weights).model())) == {"table"}


@pytest.mark.parametrize("index", ["data", "fixed"])
def test_a_table_is_trained_where_data_index_it(index: str) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["data"], to=onnx.TensorProto.INT64), node("Gather", f"table {index}", "e"),
        node("Add", "x e", "a"), node("MatMul", "a k", "y"),
    ]  # fmt: skip
    weights: dict[str, Array] = {"table": floats(9, 1), "k": floats(3, 2), "fixed": np.array([0, 1, 2])}
    model = kind(nodes[1:] if index == "fixed" else nodes, [3, 3], weights).model()
    assert ("table" in load_onnx(model).trained) is (index == "data")


def test_pairs_of_lora_are_trained_alone() -> None:
    nodes = [
        node("MatMul", "x w", "h"), node("MatMul", "x q.lora_A.weight", "a"), node("MatMul", "a q.lora_B.weight", "b"),
        node("Add", "h b", "y"),
    ]  # fmt: skip
    weights = {"w": floats(5, 4), "q.lora_A.weight": floats(5, 2), "q.lora_B.weight": floats(2, 4)}
    model = kind(nodes, [2, 5], weights).model()
    assert load_onnx(model).trained == ("q.lora_A.weight", "q.lora_B.weight")
    assert len(load_onnx(model, train="*").trained) == 3


@pytest.mark.parametrize("quantized", [True, False])
def test_what_a_layers_weight_is_computed_of_is_a_layers(quantized: bool) -> None:
    nodes = (
        [node("QuantizeLinear", "w s", "q"), node("DequantizeLinear", "q s", "v")]
        if quantized
        else [node("MatMul", "b a", "p"), node("Add", "w p", "v")]
    )
    nodes += [node("Gemm", "x v c", "h"), node("Mul", "h gate", "y")]
    weights = {"w": floats(5, 4), "c": floats(4), "gate": floats(4)}
    more = {"s": np.array(0.1, np.float32)} if quantized else {"b": floats(5, 2), "a": floats(2, 4)}
    graph = load_onnx(kind(nodes, [2, 5], {**weights, **more}).model())
    assert left(graph) == {"gate"}
    assert set(graph.trained) == {"w", "c"} | (set() if quantized else {"a", "b"})


def test_scale_and_bias_of_an_instance_normalization_are_a_layers() -> None:
    nodes = [node("Conv", "x w", "h"), node("InstanceNormalization", "h g b", "y")]
    weights = {"w": floats(4, 3, 1, 1), "g": np.ones(4, np.float32), "b": np.zeros(4, np.float32)}
    found = kind(nodes, [2, 3, 4, 4], weights)
    graph = load_onnx(found.model())
    assert set(graph.trained) == set(weights)
    assert not left(graph)
    # the module has none
    assert load_onnx(found.model(in_nodes={"g", "b"})).trained == ("w",)


def test_a_bias_has_a_number_for_each_channel() -> None:
    nodes = [node("MatMul", "x k", "h"), node("Add", "h e", "a"), node("Log", "a", "y")]
    for wide, size, trained in ((3, 3, True), (3, 1, False), (1, 1, True)):
        weights = {"k": floats(5, wide), "e": floats(size)}
        assert ("e" in load_onnx(kind(nodes, [2, 5], weights).model()).trained) is trained


def test_a_bias_of_two_products_is_one() -> None:
    nodes = [
        node("MatMul", "x w", "a"), node("MatMul", "x r", "b"), node("Add", "a b", "s"), node("Add", "s c", "y"),
    ]  # fmt: skip
    weights = {"w": floats(5, 4), "r": floats(5, 4), "c": floats(4)}
    assert set(load_onnx(kind(nodes, [2, 5], weights).model()).trained) == weights.keys()


def test_a_copy_in_a_node_is_tied_as_an_initializer_is() -> None:
    nodes = [node("MatMul", "x a", "h"), node("Tanh", "h", "t"), node("MatMul", "t b", "y")]
    value = floats(6, 6)
    found = kind(nodes, [2, 6], {"a": value, "b": np.ascontiguousarray(value.T)})
    twin = load_onnx(found.model(in_nodes={"a", "b"}))
    assert twin.trained == load_onnx(found.model()).trained == ("a",)


def test_an_input_and_an_initializer_of_another_shape_are_no_one_tensor() -> None:
    found = kind([node("MatMul", "x k", "h"), node("Add", "h b", "y")], [2, 5], {"k": floats(5, 3), "b": floats(3)})
    for dims, fits in (([3], True), (["n"], True), ([2, 3], False), ([4], False)):
        model = found.model()
        model.graph.input.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, dims))
        if fits:
            assert set(load_onnx(model).trained) == {"k", "b"}
        else:
            with pytest.raises(ModelError, match="an input and an initializer of another shape are both called 'b'"):
                load_onnx(model)


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
        ("!nothing", "--freeze 'nothing' matches no trained tensor"),
        ("fc3.*,!conv1.*", "--freeze 'conv1.*' matches no trained tensor. Some are fc3"),
        ("!*", "excludes all trained tensors"),
        ("!", "--train has no pattern"),
    ):
        with pytest.raises(ModelError, match=re.escape(why)):
            po.load("lenet", batch=2, train=train)
