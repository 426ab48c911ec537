"""Outputs that can't be imported are left out while there are others; the loss can't be on them."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

import poetopt as po
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError, UnsupportedOpError
from tests.frontends.support import floats, model_of

NON_ZERO = [helper.make_node("NonZero", ["y"], ["side"], "found")]
LABEL = [helper.make_node("ArrayFeatureExtractor", ["y", "x"], ["side"], "label", domain="ai.onnx.ml")]
SEQUENCE = [
    helper.make_node("SequenceConstruct", ["y", "z"], ["s"], "pair"),
    helper.make_node("Identity", ["s"], ["side"]),
]
"""Nodes behind y that write the output `side`, which can't be imported."""


def two_outputs(side: list[onnx.NodeProto], also: str = "y") -> onnx.ModelProto:
    """A linear layer with Softmax, `y`, and something that is made of it, `side`; `z` is an input of the latter."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"]), *side]
    return model_of(nodes, {"x": [4, 3], "z": ["n", "m"]}, [also, "side"], {"w": floats(3, 5)}, opset=20)


@pytest.mark.parametrize(
    ("side", "reason"),
    [(NON_ZERO, "'found' .NonZero.*unknown before"), (LABEL, "ai.onnx.ml"), (SEQUENCE, "'pair' .SequenceConstruct")],
)
def test_the_other_outputs_are_left(side: list[onnx.NodeProto], reason: str) -> None:
    model = two_outputs(side)
    if side is not SEQUENCE:
        del model.graph.input[1:]
    graph = load_onnx(model)
    assert (graph.outputs, list(graph.unread), graph.inputs) == (("y",), ["side"], ("x",))
    assert any(note.startswith("output 'side' can't be imported and is left out: node") for note in graph.notes)
    loaded = po.load(model)
    assert isinstance(loaded, po.Model)
    assert set(loaded.differentiate(output="y").graph.gradients) == {"w"}
    with pytest.raises(ModelError, match=reason):
        loaded.differentiate(output="side")
    chosen = loaded.differentiate().graph
    assert (chosen.loss_kind, chosen.notes[-1].partition(";")[0]) == (
        "cross-entropy",
        "loss: cross-entropy on output 'y' (4x5)",
    )
    assert "no other output can have one: 'side' (can't be imported)" in chosen.notes[-1]


@pytest.mark.parametrize("side", [NON_ZERO, LABEL])
def test_nothing_is_left_out_where_no_output_remains(side: list[onnx.NodeProto]) -> None:
    model = two_outputs([*side, helper.make_node("Identity", ["side"], ["again"])], also="again")
    del model.graph.input[1:]
    with pytest.raises(UnsupportedOpError, match=side[0].op_type):
        load_onnx(model)


def test_another_batch_is_put_in_without_what_is_left_out() -> None:
    model = two_outputs(NON_ZERO)
    del model.graph.input[1:]
    graph = load_onnx(model, batch=7)
    assert graph.tensors["y"].shape == (7, 5)
    assert list(graph.unread) == ["side"]
