"""First states of recurrent layers that are for another batch than the one that is asked for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError
from tests.autodiff.oracle import Array
from tests.autodiff.oracle import run as executed
from tests.frontends.support import floats, model_of

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op: str, first: Array, name: str = "h0") -> onnx.ModelProto:
    """A recurrent layer of 3 units over 4 steps of any batch, with this first state."""
    weights = {"w": floats(1, GATES[op] * 3, 2), "r": floats(1, GATES[op] * 3, 3), name: first}
    states = [name, name] if op == "LSTM" else [name]
    node = make_node(op, ["x", "w", "r", "", "", *states], ["y"], "layer", hidden_size=3)
    return model_of([node], {"x": [4, "batch", 2]}, ["y"], weights)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("op", GATES)
def test_alike_rows_are_repeated(op: str, rows: int) -> None:
    """The same network whose first state is left out, which means zeros; and each sequence by itself."""
    step = differentiate(load_onnx(layer(op, np.zeros((1, rows, 3), np.float32)), batch=5), loss="mse")
    assert any("are repeated: h0 for 5" in note for note in step.notes)
    plain = model_of([make_node(op, ["x", "w", "r"], ["y"], hidden_size=3)], {"x": [4, 5, 2]}, ["y"],
                     {"w": floats(1, GATES[op] * 3, 2), "r": floats(1, GATES[op] * 3, 3)})  # fmt: skip
    other = differentiate(load_onnx(plain), loss="mse")
    feeds = {"x": floats(4, 5, 2), "target": floats(4, 1, 5, 3)}
    found, wanted = (executed(s, feeds, ("y", "w.grad", "r.grad")) for s in (step, other))
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("op", GATES)
def test_a_trained_row_gets_the_sum_over_the_batch(op: str) -> None:
    first = floats(1, 1, 3)
    step = differentiate(load_onnx(layer(op, first), batch=3, train="*"), loss="mse")
    whole = differentiate(load_onnx(layer(op, np.repeat(first, 3, 1)), batch=3, train="*"), loss="mse")
    feeds = {"x": floats(4, 3, 2), "target": floats(4, 1, 3, 3)}
    found, wanted = (executed(s, feeds, ("h0.grad",))["h0.grad"] for s in (step, whole))
    assert found.shape == (1, 1, 3)
    np.testing.assert_allclose(found, wanted.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


def test_rows_that_differ_are_refused_with_their_batch() -> None:
    frozen = load_onnx(layer("GRU", floats(1, 2, 3)), batch=2, train="w")
    assert frozen.tensors["h0"].shape == (1, 2, 3)
    with pytest.raises(
        ModelError, match=r"'layer' .*first state 'h0' is for a batch of 2 and .* 5, and its rows differ; use --batch 2"
    ):
        load_onnx(layer("GRU", floats(1, 2, 3)), batch=5, train="w")
    with pytest.raises(ModelError, match=r"is for a batch of 2 .* and it is trained or computed; use --batch 2"):
        load_onnx(layer("GRU", floats(1, 2, 3)), batch=5, train="*")
