"""What rules refuse: one message with node, reason and remedy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx.helper import make_node

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import Graph
from poetopt.util.errors import MissingVjpError, ModelError
from tests.autodiff.build import Array, graph
from tests.frontends.support import model_of

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
        ("GRU", ["Sigmoid"], "1 activations, where 2 for each direction are wanted"),
        ("RNN", ["tanh"], "takes the activation 'tanh' of an RNN as 'Tanh' only"),
    ):
        weights = {"w": np.ones((1, GATES[op] * 2, 2), np.float32), "r": np.ones((1, GATES[op] * 2, 2), np.float32)}
        node = make_node(op, ["x", "w", "r"], ["y"], hidden_size=2, activations=names)
        with pytest.raises(MissingVjpError, match=told):
            differentiate(load_onnx(model_of([node], {"x": [4, 1, 2]}, ["y"], weights)), loss="mse")
