"""Places tell what is a layer's: names neither make data of a weight nor hide what is trained and is none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import Graph
from poetopt.util.errors import ModelError
from poetopt.util.notes import important
from tests.frontends.kinds import Array, kind, node
from tests.frontends.support import floats


def beside(graph: Graph) -> set[str]:
    """What is said to be trained and no layer's weight or bias."""
    text = next((note for note in important(graph.notes) if "no layer's weight or bias" in note), "")
    return set(text.partition(": ")[2].partition("; ")[0].split(", ")) - {""}


def dense(op: str, name: str, value: Array) -> onnx.ModelProto:
    """Two dense layers and something between them."""
    nodes = [
        node("Gemm", "x f.weight f.bias", "a"), node("Tanh", "a", "h"), node(op, f"h {name}", "m"),
        node("Gemm", "m g.weight g.bias", "y"),
    ]  # fmt: skip
    weights = {"f.weight": floats(5, 4), "f.bias": floats(4), "g.weight": floats(4, 3), "g.bias": floats(3)}
    return kind(nodes, [2, 5], {**weights, name: value}).model()


LAYERS = {"f.weight", "f.bias", "g.weight", "g.bias"}


@pytest.mark.parametrize("name", ["channel_scale", "stats.offset", "input_bias", "mask_w", "norm.weight"])
def test_a_name_hides_nothing_that_is_trained(name: str) -> None:
    graph = load_onnx(dense("Mul", name, floats(4)))
    assert set(graph.trained) == LAYERS | {name}
    assert beside(graph) == {name}


@pytest.mark.parametrize(
    ("op", "value"),
    [("Add", np.arange(4)), ("Mul", np.array([8, 16, 8, 16])), ("Div", np.array([4, 8, 16, 32]))],
    ids=["grid", "strides", "scales"],
)
@pytest.mark.parametrize("name", ["grid_offset", "stride_scale", "head.cell_bias"])
def test_a_name_makes_no_parameter_of_round_numbers(op: str, value: Array, name: str) -> None:
    graph = load_onnx(dense(op, name, value.astype(np.float32)))
    assert set(graph.trained) == LAYERS
    assert any("are data" in note and name in note for note in important(graph.notes))


def test_a_modules_weight_of_round_numbers_stays() -> None:
    graph = load_onnx(dense("Mul", "scale.weight", np.array([8, 16, 8, 16], np.float32)))
    assert set(graph.trained) == LAYERS | {"scale.weight"}


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
    assert set(graph.trained) == set(weights)
    assert beside(graph) == {"gate"}


def test_a_table_behind_a_norm_is_none_of_it() -> None:
    nodes = [node("LayerNormalization", "x g b", "n"), node("Add", "n table", "t"), node("MatMul", "t k", "y")]
    weights = {"g": floats(4), "b": floats(4), "table": floats(3, 4), "k": floats(4, 2)}
    assert beside(load_onnx(kind(nodes, [3, 4], weights).model())) == {"table"}


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
    assert beside(load_onnx(kind(nodes, [2, 5], {**weights, **more}).model())) == {"gate"}


def test_scale_and_bias_of_an_instance_normalization_are_a_layers() -> None:
    nodes = [node("Conv", "x w", "h"), node("InstanceNormalization", "h g b", "y")]
    weights = {"w": floats(4, 3, 1, 1), "g": np.ones(4, np.float32), "b": np.zeros(4, np.float32)}
    found = kind(nodes, [2, 3, 4, 4], weights)
    graph = load_onnx(found.model())
    assert set(graph.trained) == set(weights)
    assert not beside(graph)
    # the module has none
    assert load_onnx(found.model(in_nodes={"g", "b"})).trained == ("w",)


@pytest.mark.parametrize("curves", ["", "Clip", "Abs Log"])
@pytest.mark.parametrize(("scale", "shift"), [("s", "m"), ("data_scale", "data_bias"), ("mel_w", "mel_mean")])
def test_both_halves_of_a_normalization_are_data(curves: str, scale: str, shift: str) -> None:
    nodes = [node(op, f"x{k}", f"x{k + 1}") for k, op in enumerate(curves.split())]
    nodes += [
        node("Mul", f"x{len(curves.split())} {scale}", "a"), node("Add", f"a {shift}", "n"), node("Conv", "n k", "y"),
    ]  # fmt: skip
    weights: dict[str, Array] = {"k": floats(2, 3, 1, 1), scale: np.abs(floats(3, 1, 1)) + 1, shift: floats(3, 1, 1)}
    model = kind(nodes, [2, 3, 4, 4], weights).model()
    model.graph.input[0].name = "x0"
    graph = load_onnx(model)
    assert graph.trained == ("k",)
    assert any("normalises the input" in note and scale in note and shift in note for note in important(graph.notes))


def test_an_affine_layer_behind_a_normalization_stays() -> None:
    nodes = [
        node("Sub", "x m", "a"), node("Div", "a s", "b"), node("Mul", "b affine.weight", "c"),
        node("Add", "c affine.bias", "d"), node("MatMul", "d k", "y"),
    ]  # fmt: skip
    weights = {"k": floats(3, 2), "affine.weight": np.abs(floats(3)) + 1, "affine.bias": floats(3)}
    graph = load_onnx(kind(nodes, [2, 3], {**weights, "m": floats(3), "s": np.abs(floats(3)) + 1}).model())
    assert set(graph.trained) == set(weights)


def test_channels_that_are_normalised_one_by_one() -> None:
    nodes = [helper.make_node("Split", ["x"], ["x0", "x1"], axis=1, num_outputs=2)]
    nodes += [node("Sub", f"x{k} m{k}", f"a{k}") for k in range(2)]
    nodes += [node("Concat", "a0 a1", "b", axis=1), node("Conv", "b k", "y")]
    weights = {"k": floats(3, 2, 1, 1), "m0": floats(1, 1, 1, 1), "m1": floats(1, 1, 1, 1, seed=2)}
    assert load_onnx(kind(nodes, [2, 2, 4, 4], weights).model()).trained == ("k",)


def test_distances_from_centres_are_no_normalization() -> None:
    nodes = [
        node("Sub", "x centres", "d"), node("Mul", "d d", "q"), node("ReduceSum", "q axis", "h", keepdims=0),
        node("MatMul", "h k", "y"),
    ]  # fmt: skip
    weights = {"centres": floats(1, 5, 4), "axis": np.array([2]), "k": floats(5, 2)}
    assert set(load_onnx(kind(nodes, [3, 1, 4], weights).model()).trained) == {"centres", "k"}


def test_without_layers_nodes_say_nothing() -> None:
    nodes = [node("Einsum", "x w", "h", equation="bi,ij->bj"), node("Tanh", "h", "t"), node("Mul", "t s", "y")]
    found = kind(nodes, [2, 4], {"w": floats(4, 3), "s": floats(3)})
    assert (
        set(load_onnx(found.model(in_nodes={"w", "s"})).trained) == set(load_onnx(found.model()).trained) == {"w", "s"}
    )
    assert load_onnx(found.model(in_nodes={"s"})).trained == ("w",)


def test_a_copy_in_a_node_is_tied_as_an_initializer_is() -> None:
    nodes = [node("MatMul", "x a", "h"), node("Tanh", "h", "t"), node("MatMul", "t b", "y")]
    value = floats(6, 6)
    found = kind(nodes, [2, 6], {"a": value, "b": np.ascontiguousarray(value.T)})
    twin = load_onnx(found.model(in_nodes={"a", "b"}))
    assert twin.trained == load_onnx(found.model()).trained == ("a",)


def formula(numbers: dict[str, float], *steps: tuple[str, str], shape: tuple[int, ...] = (1,)) -> onnx.ModelProto:
    """A dense layer, an error function, and steps with single numbers behind it, as a Gelu and a norm have them."""
    nodes = [node("MatMul", "x k", "m"), node("Erf", "m", "h0")]
    nodes += [node(op, names.format(f"h{k}"), f"h{k + 1}") for k, (op, names) in enumerate(steps)]
    nodes.append(node("MatMul", f"h{len(steps)} k2", "y"))
    weights: dict[str, Array] = {name: np.full(shape, value, np.float32) for name, value in numbers.items()}
    return kind(nodes, [2, 5], {"k": floats(5, 4), "k2": floats(4, 3), **weights}).model()


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_the_numbers_of_a_formula_are_no_parameters(shape: tuple[int, ...]) -> None:
    steps = [("Sub", "one {}"), ("Mul", "{} half"), ("Div", "{} root"), ("Add", "{} eps")]
    model = formula({"one": 1, "half": 0.5, "root": 2**0.5, "eps": 1e-6}, *steps, shape=shape)
    graph = load_onnx(model)
    assert set(graph.trained) == {"k", "k2"}
    assert "scalars are not trained (one, half, root, eps)" in "\n".join(graph.notes)
    assert set(load_onnx(model, train="one, half").trained) == {"one", "half"}


def test_an_epsilon_on_what_a_layer_wrote_is_no_bias() -> None:
    nodes = [node("MatMul", "x k", "h"), node("Add", "h e", "a"), node("Log", "a", "y")]
    for value, trained in ((1e-6, {"k"}), (0.37, {"k", "e"}), (1.0, {"k", "e"})):
        weights = {"k": floats(5, 1), "e": np.array([value], np.float32)}
        assert set(load_onnx(kind(nodes, [2, 5], weights).model()).trained) == trained


@pytest.mark.parametrize(("name", "producer"), [("alpha", "pytorch"), ("act.alpha", ""), ("act/ReadVariableOp:0", "")])
def test_a_modules_parameter_of_one_element_may_begin_with_one(name: str, producer: str) -> None:
    model = formula({name: 1.0}, ("Mul", "{} " + name))
    model.producer_name = producer
    assert set(load_onnx(model).trained) == {"k", "k2", name}


@pytest.mark.parametrize(
    ("name", "value", "producer", "said"),
    [
        ("t", 2.0, "pytorch", True), ("onnx::Mul_7", 2.0, "pytorch", False), ("temperature", 0.07, "", True),
        ("logit_scale", 2.6592, "tf2onnx", True), ("scale", 0.5, "", False), ("size", 0.07, "", False),
    ],
)  # fmt: skip
def test_a_scalar_that_may_be_a_parameter_stands_beside_the_answer(
    name: str, value: float, producer: str, said: bool
) -> None:
    model = formula({name: value}, ("Mul", "{} " + name), shape=())
    model.producer_name = producer
    graph = load_onnx(model)
    assert set(graph.trained) == {"k", "k2"}
    assert any("scalars are not trained" in note and name in note for note in important(graph.notes)) is said
    assert any("scalars are not trained" in note and name in note for note in graph.notes)


def test_a_weight_of_integers_is_named_as_such() -> None:
    nodes = [node("DequantizeLinear", "q s", "v"), node("MatMul", "x v", "h"), node("MatMul", "h k", "y")]
    weights: dict[str, Array] = {"q": np.ones((5, 4), np.int8), "s": np.array(0.1, np.float32), "k": floats(4, 3)}
    with pytest.raises(ModelError, match="names 'q', which is int8: only floats are trained"):
        load_onnx(kind(nodes, [2, 5], weights).model(), train="q")


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
