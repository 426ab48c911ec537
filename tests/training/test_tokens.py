"""Files of tokens are windows of ids, each with the next token as its label."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetopt as po
from poetopt.graph import TrainingGraph
from poetopt.training.data import open_data
from poetopt.util.errors import ModelError
from tests.support.training import graph_of, plan_of

TOKENS = 5


def model(classes: int = 300) -> Any:
    """Scores of the next token, from a table."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]), helper.make_node("MatMul", ["x", "head"], ["scores"])]
    draw = np.random.default_rng(0)
    shapes = {"table": (classes, 8), "head": (8, classes)}
    weights = [numpy_helper.from_array(draw.standard_normal(s, np.float32), n) for n, s in shapes.items()]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [2, TOKENS])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, TOKENS, classes])
    return helper.make_model(
        helper.make_graph(nodes, "next", [ids], [scores], weights), opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )  # fmt: skip


def step(classes: int = 300) -> TrainingGraph:
    loaded = po.load(model(classes))
    assert isinstance(loaded, po.Model)
    return loaded.differentiate(loss="cross-entropy").graph


def saved(shape: str) -> bytes:
    """An array's file, whose header says that it has another shape."""
    held = io.BytesIO()
    np.save(held, np.zeros(1000, np.uint16))
    return held.getvalue().replace(b"(1000,)", shape.encode(), 1)


def write(path: Path, ids: Any) -> Path:
    if path.suffix == ".npy":
        np.save(path, ids)
    else:
        path.write_bytes(ids.astype("<u2" if path.suffix == ".bin" else np.uint8).tobytes())
    return path


@pytest.mark.parametrize(
    ("name", "dtype"), [("x.npy", "uint16"), ("x.npy", "int64"), ("x.bin", "uint16"), ("x.txt", "uint8")]
)
@pytest.mark.parametrize("count", [16, 18, 20])
def test_windows_and_the_next_tokens(name: str, dtype: str, count: int, tmp_path: Path) -> None:
    ids = np.random.default_rng(count).integers(0, 256, count).astype(dtype)
    opened = open_data(write(tmp_path / name, ids), step())
    assert opened.rows == 3  # 20 ids end without a label for the last
    assert opened.check() == open_data(tmp_path / name, step()).check()
    for row in range(3):
        found = opened.take(np.array([row]))
        begin = row * TOKENS
        np.testing.assert_array_equal(found["ids"][0], ids[begin : begin + TOKENS])
        np.testing.assert_array_equal(found["labels"][0], ids[begin + 1 : begin + TOKENS + 1])


@pytest.mark.parametrize(
    ("name", "ids", "words"),
    [
        ("x.txt", np.arange(5), "it has 5 ids, and a window with its labels takes 6. Give more"),
        ("x.npy", np.zeros((2, 9), int), "it holds int64 of shape [2, 9]. Tokens are one row of integers"),
        ("x.npy", np.zeros(9), "it holds float64 of shape [9]. Tokens are one row of integers"),
        ("x.npy", np.zeros(9, ">i4"), "it holds >i4 of shape [9]"),
        ("x.npy", np.array([-1, *range(8)]), "it has negative ids"),
        ("x.bin", b"\0" * 25, "it ends within an id"),
        ("x.npy", np.array([None, 1]), "is no array that numpy.save wrote"),
        ("x.npy", None, "is no array that numpy.save wrote"),
        ("x.npy", saved("((((("), "is no array that numpy.save wrote"),
        ("x.npy", saved(f"({2**62},)"), "is no array that numpy.save wrote"),
        ("x.npy", saved("(-99,)"), "is no array that numpy.save wrote"),
    ],
)
def test_what_is_no_row_of_ids_is_one_message(name: str, ids: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if ids is None or isinstance(ids, bytes):
        path.write_bytes(ids or b"\x93NUMPY")
    else:
        write(path, ids)
    with pytest.raises(ModelError, match=re.escape(words)):
        open_data(path, step())


def test_ids_out_of_range_a_network_without_tokens_and_a_pipe(tmp_path: Path) -> None:
    path = write(tmp_path / "x.bin", np.array([*range(15), 60, 1]))
    with pytest.raises(ModelError, match=r"x.bin, row 2: 'labels' holds the label 60; with 60 to choose from"):
        open_data(path, step(60)).check()
    with pytest.raises(ModelError, match="tokens need a network with one input of ids"):
        open_data(path, graph_of(plan_of("lenet")))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "y.npy")
        with pytest.raises(ModelError, match=r"y\.npy"):
            open_data(tmp_path / "y.npy", step())
    with pytest.raises(ModelError, match="can't read"):
        open_data(tmp_path / "z.txt", step())
