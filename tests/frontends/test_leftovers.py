"""Data that a file stores as it stores weights: values of Constant nodes, what optimisers folded, tables, zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import Graph
from tests.frontends.support import floats, model_of

if TYPE_CHECKING:
    from poetopt.graph import Array


def noted(graph: Graph, text: str) -> bool:
    return any(text in note for note in graph.notes)


def blur(name: str = "f", *, in_node: bool, also: bool = True) -> onnx.ModelProto:
    """A convolution and a fixed filter behind it, as antialiased networks have; without `also` the filter alone."""
    weights = {"conv.weight": floats(2, 2, 3, 3), "conv.bias": floats(2)} if also else {}
    filters = floats(2, 1, 3, 3, seed=3)
    nodes = [helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["h"])] if also else []
    if in_node:
        nodes.insert(0, helper.make_node("Constant", [], [name], value=numpy_helper.from_array(filters)))
    else:
        weights[name] = filters
    nodes.append(helper.make_node("Conv", ["h" if also else "x", name], ["y"], group=2))
    return model_of(nodes, {"x": [1, 2, 8, 8]}, ["y"], weights)


@pytest.mark.parametrize(
    ("name", "in_node"), [("f", True), ("/Constant_output_0", False), ("/a/Constant_3_output_0", False)]
)
def test_a_filter_in_a_constant_node_is_a_buffer_where_weights_are_initializers(name: str, in_node: bool) -> None:
    model = blur(name, in_node=in_node)
    graph = load_onnx(model)
    assert set(graph.trained) == {"conv.weight", "conv.bias"}
    assert noted(graph, f"Constant nodes, while weights are initializers ({name})")
    assert set(load_onnx(model, train="*").trained) == {"conv.weight", "conv.bias", name}
    assert load_onnx(blur(name, in_node=in_node, also=False)).trained == (name,)
    assert len(load_onnx(blur(in_node=False)).trained) == 3


def optimised(*names: str, shape: tuple[int, ...] = (4,)) -> onnx.ModelProto:
    """y = (x w) with something of each name added, as an initializer."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h0"])]
    nodes += [helper.make_node("Add", [f"h{k}", name], [f"h{k + 1}"]) for k, name in enumerate(names)]
    weights = {"w": floats(3, 4), **{name: floats(*shape, seed=k + 1) for k, name in enumerate(names)}}
    return model_of(nodes, {"x": [2, 3]}, [f"h{len(names)}"], weights)


def test_what_an_optimiser_named_after_a_node_is_no_parameter() -> None:
    made_up = ("/Slice_output_0", "/m/layer.0/Unsqueeze_3_output_0", "Exp_output_0")
    model = optimised(*made_up, "layer.bias", "onnx::Add_17", "/dense/bias_output_0", "Add_output_0_bias_fused")
    graph = load_onnx(model)
    assert set(graph.trained) == {"w", "layer.bias", "onnx::Add_17", "/dense/bias_output_0", "Add_output_0_bias_fused"}
    assert noted(graph, f"of constants, or of parameters ({', '.join(made_up)})")
    assert noted(graph, "the file from before the optimiser")
    assert load_onnx(model, train="/Sl*").trained == ("/Slice_output_0",)


def test_a_folded_weight_keeps_its_place() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "/fc/Transpose_output_0"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    model = model_of(nodes, {"x": [2, 3]}, ["y"], {"/fc/Transpose_output_0": floats(3, 4), "b": floats(4)})
    assert set(load_onnx(model).trained) == {"/fc/Transpose_output_0", "b"}


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_of_one_element_names_decide(shape: tuple[int, ...]) -> None:
    kept = ("fc.bias", "onnx::Add_621", "intercepts1", "alpha")
    folded = ("val_118", "ortshared_1_1_1_0_token_55", "const_fold_opt__32", "/Sqrt_1_output_0")
    graph = load_onnx(optimised(*kept, *folded, shape=shape))
    assert set(graph.trained) == {"w", *kept}
    assert noted(graph, f"({', '.join(folded)})")
    # of more elements these may be weights
    assert set(load_onnx(optimised("val_118", "const_fold_opt__32")).trained) == {"w", "val_118", "const_fold_opt__32"}


def test_a_slope_of_one_element_is_trained_by_its_place() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("PRelu", ["h", "val_1"], ["y"])]
    model = model_of(nodes, {"x": [2, 3]}, ["y"], {"w": floats(3, 4), "val_1": floats(1, 1)})
    assert set(load_onnx(model).trained) == {"w", "val_1"}


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("name", ["zeros", "new_zeros_1", "onnx::ScatterElements_7"])
def test_zeros_that_are_scattered_into_are_data(op: str, name: str) -> None:
    """A memory that begins with zeros has a module's name."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node(op, [name, "at", "h"], ["y"])]
    at = np.zeros((2, 4), np.int64) if op == "ScatterElements" else np.array([[0], [3]], np.int64)
    weights: dict[str, Array] = {"w": floats(3, 4), name: np.zeros((5, 4), np.float32), "at": at}
    graph = load_onnx(model_of(nodes, {"x": [2, 3]}, ["y"], weights))
    assert graph.trained == ("w",)
    assert noted(graph, f"zeros that are scattered into ({name})")
    weights[name] = floats(5, 4)
    assert set(load_onnx(model_of(nodes, {"x": [2, 3]}, ["y"], weights)).trained) == {"w", name}
    own = [nodes[0], helper.make_node(op, ["memory", "at", "h"], ["y"])]
    weights["memory"] = np.zeros((5, 4), np.float32)
    assert set(load_onnx(model_of(own, {"x": [2, 3]}, ["y"], weights)).trained) == {"w", "memory"}


@pytest.mark.parametrize(
    ("name", "trained"), [("onnx::Cos_3", False), ("val_12", False), ("phi", True), ("r.phi", True)]
)
def test_what_is_only_an_angle_is_data_unless_it_has_a_name(name: str, trained: bool) -> None:
    nodes = [
        helper.make_node("Cos", [name], ["c"]), helper.make_node("Sin", [name], ["s"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Mul", ["h", "c"], ["m"]),
        helper.make_node("Mul", ["m", "s"], ["y"]),
    ]  # fmt: skip
    weights = {"w": floats(3, 4), name: floats(2, 4)}
    graph = load_onnx(model_of(nodes, {"x": [2, 3]}, ["y"], weights))
    assert set(graph.trained) == {"w", *([name] if trained else [])}
    assert noted(graph, f"read by Sin and Cos alone ({name})") is not trained
    more = [*nodes[:-1], helper.make_node("Mul", ["m", "s"], ["p"]), helper.make_node("Mul", ["p", name], ["y"])]
    assert set(load_onnx(model_of(more, {"x": [2, 3]}, ["y"], weights)).trained) == {"w", name}


def test_a_scalar_with_the_name_of_a_module_is_trained() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Exp", ["m.logit_scale"], ["e"])]
    names = ["h", "e", "onnx::Mul_3", "/Constant_output_0", "scale", "val_3"]
    nodes += [
        helper.make_node("Mul", [left, right], [f"{left}*"])
        for left, right in zip(["h", *("h" + "*" * k for k in range(1, 5))], names[1:], strict=True)
    ]
    nodes.append(helper.make_node("Where", ["mask", "h*****", "attn.masked_bias"], ["y"]))
    scalars = {name: np.array(0.5, np.float32) for name in ("m.logit_scale", "attn.masked_bias", *names[2:])}
    weights = {"w": floats(3, 4), "mask": np.ones((2, 4), np.bool_), **scalars}
    graph = load_onnx(model_of(nodes, {"x": [2, 3]}, ["y"], weights))
    assert set(graph.trained) == {"w", "m.logit_scale"}
    assert noted(graph, "scalars with a module's name are trained (m.logit_scale)")
    assert noted(graph, "scalars are not trained (attn.masked_bias, onnx::Mul_3, scale, val_3)")


@pytest.mark.parametrize("name", ["auto.cast.4", "helper.constant.10", "p2o.pd_op.full.2.0"])
def test_a_number_of_paddles_exporter_is_no_parameter(name: str) -> None:
    graph = load_onnx(optimised(name, shape=(1,)))
    assert graph.trained == ("w",)
    assert noted(graph, name)
    assert load_onnx(optimised(name)).trained == ("w", name)


def test_what_tensorflows_exporter_computed_of_variables_is_named() -> None:
    """A BatchNormalization in inference mode is a product and a sum in the file."""
    names = ("bn/batchnorm/mul:0", "const_fold_opt__24")
    assert not noted(load_onnx(optimised(*names)), "are no variables")
    graph = load_onnx(optimised("dense/Add/ReadVariableOp:0", *names))
    assert len(graph.trained) == 4
    assert noted(graph, f"are no variables (w, {', '.join(names)}): the exporter computed them ahead")
    assert not noted(load_onnx(optimised("dense/Add/ReadVariableOp:0", *names), train="*"), "are no variables")
