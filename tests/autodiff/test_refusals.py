"""What rules refuse: one message with node, reason and remedy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import NodeProto
from onnx.helper import make_node

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, TrainingGraph
from poetopt.util.errors import MissingVjpError, ModelError
from tests.support.autodiff.build import Array, graph
from tests.support.frontends import model_of, run

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(
    op: str,
    steps: int,
    more: str = "",
    inputs: str = "x, w, r",
    extra: Mapping[str, Array] | None = None,
    rows: int | None = None,
) -> Graph:
    """A recurrent layer of width and state 2, one sequence; its weights have `rows`, or as many as they should."""
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((1, rows or GATES[op] * 2, 2)).astype(np.float32) for _ in range(2))
    nodes = f"y = {op}<hidden_size=2{more}>({inputs})"
    return graph(nodes, {"x": (steps, 1, 2)}, {"w": w, "r": r, **(extra or {})}, ["y"], train="w,r")


@pytest.mark.parametrize("op", GATES)
def test_a_long_sequence_is_refused_at_once(op: str) -> None:
    message = rf"node '{op.lower()}0' \({op}.*: a sequence of 1,048,576 steps; .* at most 4,096; .* shorter sequences"
    with pytest.raises(ModelError, match=message):
        differentiate(layer(op, 2**20), loss="mse")
    assert differentiate(layer(op, 30), loss="mse").gradients


def test_clipping_and_unknown_activations_have_no_rule() -> None:
    with pytest.raises(MissingVjpError, match="no gradient rule for clipping; train a plain layer"):
        differentiate(layer("GRU", 4, more=";clip=1.0"), loss="mse")
    with pytest.raises(MissingVjpError, match="no gradient rule for layout 1"):
        differentiate(layer("LSTM", 1, more=";layout=1"), loss="mse")
    for op, names, told in (
        ("LSTM", ["Sigmoid", "Gauss", "Tanh"], "the activation 'Gauss', which onnxruntime doesn't compute; it has Sig"),
        ("GRU", ["Sigmoid"], "it has 1 activations, but needs 2 per direction; export it again"),
        ("RNN", ["tanh"], "takes the activation 'tanh' of an RNN as 'Tanh' only"),
    ):
        weights = {"w": np.ones((1, GATES[op] * 2, 2), np.float32), "r": np.ones((1, GATES[op] * 2, 2), np.float32)}
        node = make_node(op, ["x", "w", "r"], ["y"], hidden_size=2, activations=names)
        with pytest.raises(MissingVjpError, match=told):
            differentiate(load_onnx(model_of([node], {"x": [4, 1, 2]}, ["y"], weights)), loss="mse")


def test_a_remainder_of_floats_has_the_sign_of_the_dividend() -> None:
    """The other kind is for integers alone; onnxruntime fails when it runs one of floats."""
    model = graph("h = MatMul(x, w)\ny = Mod(h, x)", {"x": [3, 3]}, {"w": np.ones((3, 3), np.float32)}, ["y"])
    with pytest.raises(ModelError, match=r"\(Mod, opset \d+\): .* fmod = 1 alone"):
        differentiate(model, loss="mse")


def test_lengths_of_another_batch_are_refused() -> None:
    lengths = {"n": np.array([3, 2], np.int32)}
    with pytest.raises(ModelError, match=r"LSTM.*input 4 has the shape \[2\], which should be \[1\]"):
        differentiate(layer("LSTM", 4, inputs="x, w, r, , n", extra=lengths), loss="mse")


@pytest.mark.parametrize("op", GATES)
def test_weights_of_another_size_are_refused(op: str) -> None:
    with pytest.raises(ModelError, match=rf"{op}.*input 1 has the shape \[1, 5, 2\], which should be .* 2 hidden"):
        differentiate(layer(op, 3, rows=5), loss="mse")


def test_an_axis_that_is_cut_away_has_nothing_to_repeat() -> None:
    weights = {"w": np.ones((2, 3), np.float32), "p": np.array([0, -3, 0, 5])}
    nodes = [make_node("Pad", ["w", "p"], ["y"], name="pad0", mode="wrap"), make_node("Mul", ["y", "x"], ["z"])]
    cut = load_onnx(model_of(nodes, {"x": [2, 5]}, ["z"], weights, opset=19), train="w")
    with pytest.raises(ModelError, match=r"node 'pad0' .*: its pads remove axis 1 before elements are repeated"):
        differentiate(cut, loss="mse")


def test_a_reflection_longer_than_its_line_is_refused() -> None:
    weights = {"w": np.ones((2, 3), np.float32), "p": np.array([0, 3, 0, 0])}
    nodes = [make_node("Pad", ["w", "p"], ["y"], name="pad0", mode="reflect"), make_node("Mul", ["y", "x"], ["z"])]
    model = load_onnx(model_of(nodes, {"x": [2, 6]}, ["z"], weights, opset=19), train="w")
    with pytest.raises(ModelError, match=r"node 'pad0' .*: reflects 3 elements of axis 1, which has 3"):
        differentiate(model, loss="mse")


def test_dilations_that_onnxruntime_folds_in_its_own_way_are_refused() -> None:
    shapes = {"size": np.array([7]), "window": np.array([2]), "w": np.ones((2, 4, 5), np.float32)}
    nodes = "h = Mul(w, x)\ny = Col2Im<dilations=[2]>(h, size, window)"
    with pytest.raises(MissingVjpError, match=r"\(Col2Im, opset 18\): .* dilations over 1 axes, .*; fold over two"):
        differentiate(graph(nodes, {"x": (2, 4, 5)}, shapes, ["y"], train="w"), loss="mse")


def test_sampling_that_onnxruntime_does_not_compute_is_refused() -> None:
    grid = {"grid": np.zeros((1, 2, 2, 2, 3), np.float32), "w": np.ones((1, 1, 3, 3, 3), np.float32)}
    nodes = [make_node("Mul", ["w", "x"], ["h"]), make_node("GridSample", ["h", "grid"], ["y"], name="g", mode="cubic")]
    model = load_onnx(model_of(nodes, {"x": [1, 1, 3, 3, 3]}, ["y"], grid, opset=20), train="w")
    with pytest.raises(MissingVjpError, match=r"node 'g' .*: .* mode 'cubic' over 3 axes, .*; use two axes$"):
        differentiate(model, loss="mse")


def test_a_spectrum_of_another_length_than_its_signal_is_refused() -> None:
    values = {"w": np.ones((2, 4, 2), np.float32), "length": np.array(9)}
    nodes = [make_node("Mul", ["w", "x"], ["h"]),
             make_node("DFT", ["h", "length"], ["y"], name="back", axis=1, inverse=1, onesided=1)]  # fmt: skip
    message = r"node 'back' .*: there is no gradient rule for 9 real numbers of 4 frequencies, .* up to 5 complex n"
    with pytest.raises(MissingVjpError, match=message):
        differentiate(load_onnx(model_of(nodes, {"x": [2, 4, 2]}, ["y"], values, opset=17), train="w"), loss="mse")


def test_nothing_flows_through_what_has_no_elements() -> None:
    weights = {"w": np.ones((2, 1, 3, 3), np.float32), "z": np.array([0])}
    empty = [make_node("Slice", ["x", "z", "z"], ["s"]), make_node("Conv", ["s", "w"], ["c"])]
    alone = make_node("Conv", ["x", "w"], ["y"])

    def step(*nodes: NodeProto) -> TrainingGraph:
        return differentiate(load_onnx(model_of(nodes, {"x": [2, 1, 4, 4]}, ["y"], weights)), loss="mse")

    with pytest.raises(ModelError, match="which is empty"):
        step(*empty, make_node("ReduceSum", ["c"], ["y"]))
    both = step(*empty, make_node("Conv", ["x", "w"], ["d"]), make_node("Concat", ["c", "d"], ["y"], axis=0))
    rng = np.random.default_rng(0)
    feeds = {name: rng.random(both.tensors[name].shape, np.float32) for name in both.inputs}
    renamed = dict(zip(step(alone).inputs, feeds.values(), strict=True))
    found, expected = (run(model_proto(g), f) for g, f in ((both, feeds), (step(alone), renamed)))
    np.testing.assert_array_equal(found[-1], expected[-1])
