"""A parameter that was stored once for each element of the batch is told; what only looks alike is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import helper

from poetopt.frontends.onnx_file import load_onnx
from tests.frontends.support import floats, model_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

TOKEN = np.repeat(floats(1, 1, 6), 4, 0)
TOLD = "parameters with the same rows for each element of the batch"


def told(token: Floats, op: str = "Concat", *, train: str | None = None, batch: int = 4) -> list[str]:
    """The notes of this kind on patches [batch, 5, 6] of a linear layer to which `token` is joined, or added."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node(op, ["token", "h"], ["y"])]
    if op == "Concat":
        nodes[1].attribute.append(helper.make_attribute("axis", 1))
    model = model_of(nodes, {"x": [batch, 5, 3]}, ["y"], {"w": floats(3, 6), "token": token})
    return [note for note in load_onnx(model, train=train).notes if TOLD in note]


@pytest.mark.parametrize("op", ["Concat", "Add", "Sum"])
def test_an_expanded_token_is_told(op: str) -> None:
    (note,) = told(TOKEN, op)
    assert "(token [4, 1, 6])" in note
    assert "dynamic batch" in note


@pytest.mark.parametrize(
    "token",
    [floats(4, 1, 6), np.zeros((4, 1, 6), np.float32), np.ones((4, 1, 6), np.float32), floats(1, 1, 6)],
    ids=["rows differ", "zeros", "ones", "one row"],
)
def test_what_was_not_expanded(token: Floats) -> None:
    assert told(token, "Add") == []


def test_rows_that_do_not_lie_along_the_batch() -> None:
    """As many equal rows as the batch has elements, added along another axis; a batch of one; a token that is fixed."""
    assert told(np.repeat(floats(1, 6), 5, 0), "Add", batch=5) == []
    assert told(TOKEN[:1], batch=1) == []
    assert told(TOKEN, train="w") == []
