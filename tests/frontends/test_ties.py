"""Copies that exporters make of a tied weight are one parameter; equal values alone don't tie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from poetopt.autodiff import differentiate
from poetopt.frontends import read as read_module
from poetopt.frontends import ties
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph
from tests.support.autodiff.oracle import run as run_graph
from tests.support.frontends import floats, model_of, run

SIGNATURE = "\n".join(f"p: PARAMETER target='{name}'" for name in ("emb.weight", "head.weight", "f.weight", "g.weight"))


def tied(copy: np.ndarray[Any, Any], name: str = "onnx::MatMul_17", origins: Sequence[tuple[str, str]] = ()) -> Any:
    """y = tanh(emb[ids]) copy; `origins` says what tensors were folded from."""
    nodes = [
        helper.make_node("Gather", ["emb.weight", "ids"], ["e"]), helper.make_node("Tanh", ["e"], ["h"]),
        helper.make_node("MatMul", ["h", name], ["a"]), helper.make_node("Mul", ["a", "x"], ["y"]),
    ]  # fmt: skip
    weights = {"emb.weight": floats(9, 4), "ids": np.array([3, 1, 3, 8]), name: copy}
    model = model_of(nodes, {"x": [4, copy.shape[1]]}, ["y"], weights)
    tell(model, origins)
    return model


def tell(model: onnx.ModelProto, origins: Sequence[tuple[str, str]]) -> None:
    """Metadata as PyTorch's newer exporter writes it."""
    shapes = {proto.name: list(proto.dims) for proto in model.graph.initializer}
    for name, source in origins:
        info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes[name])
        info.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=f"['{source}']")
        model.graph.value_info.append(info)
    if origins:
        model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=SIGNATURE)


def gradients(graph: Graph, feeds: dict[str, Any]) -> dict[str, Any]:
    step = differentiate(graph, loss="mse")
    labels = next(name for name in step.inputs if name not in feeds)
    return run_graph(step, {**feeds, labels: floats(*step.tensors[labels].shape, seed=8)})


@pytest.mark.parametrize("origins", [(), (("val_9", "emb.weight"),), (("val_9", "head.weight"),)])
def test_a_transposed_copy_is_the_weight(origins: Sequence[tuple[str, str]]) -> None:
    name = "val_9" if origins else "onnx::MatMul_17"
    model = tied(floats(9, 4).T.copy(), name, origins)
    graph = load_onnx(model)
    assert graph.trained == ("emb.weight",)
    assert any(f"1 tensor is a copy of a weight ({name} of emb.weight)" in note for note in graph.notes)
    x = floats(4, 9, seed=3)
    (want,), (got,) = run(model, {"x": x}), run(model_proto(graph, list(graph.outputs)), {"x": x})
    assert np.array_equal(got, want)


def test_the_gradient_is_the_sum_over_the_uses() -> None:
    """Against the same network with a copy that is off by one number, which is trained apart."""
    whole = load_onnx(tied(floats(9, 4).T.copy()))
    other = floats(9, 4).T.copy()
    other[2, 5] = np.nextafter(other[2, 5], np.float32(9))
    apart = load_onnx(tied(other))
    assert apart.trained == ("emb.weight", "onnx::MatMul_17")
    feeds = {"x": floats(4, 9, seed=3)}
    got, parts = gradients(whole, feeds), gradients(apart, feeds)
    want = parts["emb.weight.grad"] + parts["onnx::MatMul_17.grad"].T
    np.testing.assert_allclose(got["emb.weight.grad"], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("train", ["emb*", "onnx::MatMul*"])
def test_both_names_are_known_to_train(train: str) -> None:
    assert load_onnx(tied(floats(9, 4).T.copy()), train=train).trained == ("emb.weight",)


def layers(values: dict[str, Any], origins: Sequence[tuple[str, str]] = ()) -> onnx.ModelProto:
    """Two layers with square matrices and their norms: y = norm(norm(x val_1) val_2)."""
    nodes = [
        helper.make_node("MatMul", ["x", "val_1"], ["a"]), helper.make_node("Mul", ["a", "s"], ["b"]),
        helper.make_node("MatMul", ["b", "val_2"], ["c"]), helper.make_node("Mul", ["c", "t"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": [2, 5]}, ["y"], {"s": np.ones(5, np.float32), "t": np.ones(5, np.float32), **values})
    tell(model, origins)
    return model


def test_one_layer_used_twice_is_one_parameter_where_the_file_says_so() -> None:
    twice = {"val_1": floats(5, 5), "val_2": floats(5, 5)}
    same = load_onnx(layers(twice, (("val_1", "f.weight"), ("val_2", "f.weight"))), train="f.weight")
    assert same.trained == ("val_1",)
    assert {operator.kind for operator in same.operators} == {"MatMul", "Mul"}
    parts = load_onnx(layers(twice), train="val_*")
    feeds = {"x": floats(2, 5, seed=4)}
    found, apart = gradients(same, feeds), gradients(parts, feeds)
    np.testing.assert_allclose(found["val_1.grad"], apart["val_1.grad"] + apart["val_2.grad"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("origins", [(), (("val_1", "f.weight"), ("val_2", "g.weight"))])
def test_layers_that_begin_equal_stay_apart(origins: Sequence[tuple[str, str]]) -> None:
    """As in a fresh Transformer, whose layers are copies of the first; and all its norms are ones."""
    equal = load_onnx(layers({"val_1": floats(5, 5), "val_2": floats(5, 5)}, origins), train="val_*,s,t")
    assert equal.trained == ("s", "t", "val_1", "val_2")


@pytest.mark.parametrize("value", [np.ones((5, 5)), np.eye(5), np.triu(np.ones((5, 5)))])
def test_values_that_many_matrices_have_tie_nothing(value: np.ndarray[Any, Any]) -> None:
    value = value.astype(np.float32)
    graph = load_onnx(layers({"val_1": value, "val_2": value.T.copy()}))
    assert set(graph.trained) == {"val_1", "val_2"}


def test_metadata_that_the_values_contradict_ties_nothing() -> None:
    graph = load_onnx(tied(floats(4, 9, seed=7), "val_9", (("val_9", "emb.weight"),)))
    assert graph.trained == ("emb.weight", "val_9")


def test_a_function_of_a_parameter_is_not_called_its_other_name() -> None:
    graph = load_onnx(tied(floats(4, 9, seed=7), "exp", (("exp", "g.weight"),)))
    notes = "\n".join(graph.notes)
    assert "functions of parameters in their place (exp of g.weight)" in notes
    assert "other names" not in notes
    assert load_onnx(tied(floats(4, 9, seed=7), "exp", (("exp", "g.weight"),)), train="g.weight").trained == ("exp",)


def distances(copy: np.ndarray[Any, Any], name: str, origins: Sequence[tuple[str, str]] = ()) -> Any:
    """y = softmax(sum (x - c)^2) c, where the difference reads a copy of c with an axis more."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["u"]), helper.make_node("Sub", ["u", name], ["s"]),
        helper.make_node("Mul", ["s", "s"], ["q"]), helper.make_node("ReduceSum", ["q", "two"], ["d"], keepdims=0),
        helper.make_node("Softmax", ["d"], ["p"]), helper.make_node("MatMul", ["p", "emb.weight"], ["y"]),
    ]  # fmt: skip
    weights = {"emb.weight": floats(8, 4), name: copy, "one": np.array([1]), "two": np.array([2])}
    model = model_of(nodes, {"x": [5, 4]}, ["y"], weights)
    tell(model, origins)
    return model


def test_a_copy_with_another_axis_is_the_weight() -> None:
    name = "unsqueeze"
    model = distances(floats(8, 4)[None], name, (("unsqueeze", "emb.weight"),))
    whole = load_onnx(model)
    assert whole.trained == ("emb.weight",)
    assert any(f"({name} of emb.weight)" in note for note in whole.notes)
    other = floats(8, 4)[None].copy()
    other[0, 2, 3] = np.nextafter(other[0, 2, 3], np.float32(9))
    apart = load_onnx(distances(other, name), train="*")
    feeds = {"x": floats(5, 4, seed=3)}
    (want,), (got,) = run(model, feeds), run(model_proto(whole, list(whole.outputs)), feeds)
    assert np.array_equal(got, want)
    found, parts = gradients(whole, feeds), gradients(apart, feeds)
    np.testing.assert_allclose(
        found["emb.weight.grad"], parts["emb.weight.grad"] + parts[f"{name}.grad"][0], rtol=1e-3, atol=1e-6
    )


@pytest.mark.parametrize("exporter", [False, True])
def test_many_copies_of_one_weight_are_tied_in_one_pass(monkeypatch: pytest.MonkeyPatch, exporter: bool) -> None:
    """A weight, and its transpose again and again: all are tied to the first, and each is read a few times."""
    read: list[str] = []

    def counted(document: Any, name: str) -> Any:
        read.append(name)
        return read_module.array_of(document, name)

    monkeypatch.setattr(ties, "array_of", counted)
    weight, counts = floats(4, 4), []
    for count in (10, 20, 40):
        names = [f"onnx::MatMul_{k}" if exporter and k else f"w{k}" for k in range(count)]
        values = {name: weight.T if k % 3 else weight for k, name in enumerate(names)}
        outputs = [*(f"t{k}" for k in range(1, count)), "y"]
        reads = ["x", *outputs]
        nodes = [helper.make_node("MatMul", [reads[k], name], [outputs[k]]) for k, name in enumerate(names)]
        read.clear()
        graph = load_onnx(model_of(nodes, {"x": [3, 4]}, ["y"], values))
        assert graph.trained == ("w0",)
        counts.append(len(read))
    assert counts[1] < 2.2 * counts[0]
    assert counts[2] < 2.2 * counts[1]
