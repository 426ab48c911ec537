"""Functions of a weight that an exporter folded and stored beside it: the user gets to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper

from poetopt.frontends.onnx_file import load_onnx
from tests.frontends.support import floats, model_of

if TYPE_CHECKING:
    from poetopt.graph import Array


def gated(image: Array, name: str = "onnx::Mul_1247") -> onnx.ModelProto:
    """y = x w + x image."""
    nodes = [
        helper.make_node("Mul", ["x", "m.w"], ["a"]), helper.make_node("Mul", ["x", name], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]  # fmt: skip
    return model_of(nodes, {"x": [5, 32]}, ["y"], {"m.w": floats(32), name: image})


W = floats(32)


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (-W, "-w"),
        (1 - W, "1 - w"),
        (1 + W, "1 + w"),
        (np.exp(W), "exp(w)"),
        (-np.exp(W)[None], "-exp(w)"),
        (W * W, "w^2"),
    ],
)
@pytest.mark.parametrize("name", ["onnx::Mul_1247", "/m/Sub_output_0"])
def test_a_function_beside_its_weight_is_said(image: Array, text: str, name: str) -> None:
    graph = load_onnx(gated(image, name))
    assert any(f"({name} is {text.replace('w', 'm.w')})" in note and "lacks the share" in note for note in graph.notes)


@pytest.mark.parametrize(
    ("image", "name"), [(1 - W, "other.w"), (floats(32, seed=2), "onnx::Mul_3"), (1 - W[::-1].copy(), "onnx::Mul_3")]
)
def test_nothing_is_said_of_weights_of_modules_and_of_others(image: Array, name: str) -> None:
    assert not any("lacks the share" in note for note in load_onnx(gated(image, name)).notes)


def test_a_frozen_weight_lacks_nothing() -> None:
    graph = load_onnx(gated(1 - W), train="onnx::*")
    assert not any("lacks the share" in note for note in graph.notes)
