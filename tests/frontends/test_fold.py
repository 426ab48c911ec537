"""Folding changes no bit of what the model computes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from tests.support.frontends import floats, model_of, run


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("op", ["Sin", "Cos", "Exp", "Tanh", "Erf", "Sigmoid", "Log", "Reciprocal"])
def test_a_folded_table_is_onnxruntimes(op: str, opset: int) -> None:
    """As in the encodings of positions: a function of a counter's multiples."""
    weights = {"start": np.array(1, np.float32), "end": np.array(200, np.float32), "step": np.array(1, np.float32)}
    nodes = [
        helper.make_node("Range", ["start", "end", "step"], ["n"]), helper.make_node("Mul", ["n", "start"], ["t"]),
        helper.make_node("Mul", ["t", "third"], ["u"]), helper.make_node(op, ["u"], ["f"]),
        helper.make_node("Mul", ["x", "f"], ["h"]), helper.make_node("Mul", ["h", "w"], ["y"]),
    ]  # fmt: skip
    third = np.array(0.013, np.float32)
    model = model_of(nodes, {"x": [3, 199]}, ["y"], {**weights, "third": third, "w": floats(199)}, opset=opset)
    graph = load_onnx(model, train="w")
    x = floats(3, 199, seed=1)
    np.testing.assert_array_equal(run(model_proto(graph), {"x": x})[0], run(model, {"x": x})[0])
    assert [operator.kind for operator in graph.operators] == ["Mul", "Mul"]
