"""Grids, anchors and strides of detectors are data; weights in such places stay weights."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.notes import important
from tests.frontends.kinds import Array, Kind, kind, node
from tests.frontends.support import floats


def grid(height: int, width: int, offset: float = 0.0, stride: float = 1.0) -> Array:
    """Places [1, height * width, 2] of a grid's cells."""
    y, x = np.mgrid[:height, :width]
    return ((np.stack([x, y], -1).reshape(1, -1, 2) + offset) * stride).astype(np.float32)


def head(*steps: tuple[str, str, Array]) -> Kind:
    """A convolution whose outputs [1, places, 2] are decoded by `steps`: op, name and constant."""
    nodes = [
        node("Conv", "x conv.weight conv.bias", "c"), node("Reshape", "c shape", "r"),
        node("Transpose", "r", "h0", perm=[0, 2, 1]),
    ]  # fmt: skip
    nodes += [node(op, f"h{k} {name}", f"h{k + 1}") for k, (op, name, _) in enumerate(steps)]
    nodes.append(node("Identity", f"h{len(steps)}", "y"))
    weights = {"conv.weight": floats(2, 2, 1, 1), "conv.bias": floats(2), "shape": np.array([1, 2, -1])}
    return kind(nodes, [1, 2, 3, 4], {**weights, **{name: array for _, name, array in steps}})


@pytest.mark.parametrize(
    "steps",
    [
        [("Add", "g", grid(3, 4)), ("Mul", "s", np.repeat([8, 16, 32], 4).reshape(1, 12, 1).astype(np.float32))],
        [("Add", "onnx::Add_12", grid(3, 4, 0.5, 8))],
        [("Mul", "a", np.tile(np.array([10, 13, 16, 30], np.float32) / 8, 6).reshape(1, 12, 2))],
        [("Mul", "m.anchor_grid", floats(1, 12, 2)), ("Add", "priors", floats(1, 12, 2))],
        [("Sub", "places", np.arange(24, dtype=np.float32).reshape(1, 12, 2))],
    ],
    ids=["yolo", "centres", "anchors", "names", "positions"],
)
def test_grids_anchors_and_strides_are_data(steps: list[tuple[str, str, Array]]) -> None:
    found = head(*steps)
    graph = load_onnx(found.model())
    assert set(graph.trained) == {"conv.weight", "conv.bias"}
    (said,) = [note for note in important(graph.notes) if "grids, anchors and strides are data" in note]
    assert all(name in said for _, name, _ in steps)
    assert set(load_onnx(found.model(in_nodes=found.weights)).trained) == {"conv.weight", "conv.bias"}
    assert load_onnx(found.model(), train=steps[0][1]).trained == (steps[0][1],)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s", np.ones((1, 1, 2), np.float32)),
        ("s", np.array([[[0, 1]]], np.float32)),
        ("s", floats(1, 12, 2)),
        ("head.scale.weight", grid(3, 4)),
        ("head.bias", np.arange(2, dtype=np.float32)),
    ],
    ids=["fresh", "two numbers", "random", "a weight's name", "a bias's name"],
)
def test_what_may_be_learned_stays(name: str, value: Array) -> None:
    graph = load_onnx(head(("Mul", name, value)).model())
    assert set(graph.trained) == {"conv.weight", "conv.bias", name}


def test_a_layers_weight_of_round_numbers_stays() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    weights = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.arange(4, dtype=np.float32)}
    assert set(load_onnx(kind(nodes, [2, 3], weights).model()).trained) == {"w", "b"}
