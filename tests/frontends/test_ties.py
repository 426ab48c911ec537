"""Copies that exporters make of a tied weight are one parameter; equal values alone don't tie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph
from tests.autodiff.oracle import run as run_graph
from tests.frontends.support import floats, model_of, run

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


def layers(values: dict[str, Any], origins: Sequence[tuple[str, str]] = ()) -> onnx.ModelProto:
    """Two layers with square matrices and their norms: y = norm(norm(x val_1) val_2)."""
    nodes = [
        helper.make_node("MatMul", ["x", "val_1"], ["a"]), helper.make_node("Mul", ["a", "s"], ["b"]),
        helper.make_node("MatMul", ["b", "val_2"], ["c"]), helper.make_node("Mul", ["c", "t"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": [2, 5]}, ["y"], {"s": np.ones(5, np.float32), "t": np.ones(5, np.float32), **values})
    tell(model, origins)
    return model


@pytest.mark.parametrize("origins", [(), (("val_1", "f.weight"), ("val_2", "g.weight"))])
def test_layers_that_begin_equal_stay_apart(origins: Sequence[tuple[str, str]]) -> None:
    """As in a fresh Transformer, whose layers are copies of the first; and all its norms are ones."""
    equal = load_onnx(layers({"val_1": floats(5, 5), "val_2": floats(5, 5)}, origins), train="val_*,s,t")
    assert equal.trained == ("s", "t", "val_1", "val_2")
