"""Each loss from the file to the executed plan: one note, one batch, one value everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import poetopt as po
from poetopt.backends.onnxruntime import check_batch, random_batch
from poetopt.cli.app import invoke
from poetopt.graph import TrainingGraph
from poetopt.util.errors import ModelError

Array = NDArray[Any]
TAILS: dict[str, list[tuple[str, list[str], list[str], dict[str, Any]]]] = {
    "bce": [("Sigmoid", ["z"], ["p"], {}), ("Transpose", ["p"], ["y"], {"perm": [0, 2, 3, 1]})],
    "cross-entropy": [("Softmax", ["z"], ["p"], {"axis": 2}), ("Transpose", ["p"], ["y"], {"perm": [0, 3, 1, 2]})],
    "mse": [("Tanh", ["z"], ["y"], {})],
}
"""What comes behind a convolution that keeps the input's shape [2, 3, 4, 5]; `y` is in another order than `z`."""
ASKED = {"mse": "mse"}
"""What is said of a network whose loss can't be read off."""


def network(loss: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    tail = [helper.make_node(op, read, written, **attributes) for op, read, written, attributes in TAILS[loss]]
    conv = [helper.make_node("Conv", [x, f"w{x}"], [y], pads=[1, 1, 1, 1]) for x, y in (("x", "h"), ("r", "z"))]
    weights = {name: rng.standard_normal((3, 3, 3, 3)).astype(np.float32) for name in ("wx", "wr")}
    body = helper.make_graph(
        [conv[0], helper.make_node("Relu", ["h"], ["r"]), conv[1], *tail], "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 4, 5])],
        [onnx.ValueInfoProto(name="y")], [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def graph_of(loss: str) -> TrainingGraph:
    loaded = po.load(network(loss))
    assert isinstance(loaded, po.Model)
    return loaded.differentiate(loss=ASKED.get(loss, "auto")).graph


def plainly() -> ort.SessionOptions:
    """What makes a session of `grad`'s file round as `run` does."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


@pytest.mark.parametrize("loss", TAILS)
def test_solve_run_and_grad_agree(loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, plan, train, dump = (str(tmp_path / name) for name in ("net.onnx", "plan.json", "train.onnx", "step.npz"))
    onnx.save(network(loss), model)
    asked = ["--loss", ASKED.get(loss, "auto")]
    limits = ["--device", "a72", "--ram", "100%", "--time-limit", "5s"]
    assert invoke(["solve", model, *asked, *limits, "-o", plan, "--json", "-"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert invoke(["grad", model, *asked, "-o", train, "--json", "-"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert solved["loss"] == written["loss"] == loss
    notes = [[n for n in found["notes"] if n.startswith(f"loss: {loss} on output 'y'")] for found in (solved, written)]
    assert notes[0] == notes[1]
    assert len(notes[0]) == 1
    assert {"about": "loss", "text": notes[0][0]} in solved["important"]
    assert invoke(["run", plan, "--dump", dump]) == 0
    assert notes[0][0].removeprefix("loss: ") in " ".join(capsys.readouterr().out.split())
    with np.load(dump) as step:
        session = ort.InferenceSession(train, plainly(), providers=["CPUExecutionProvider"])
        names = ["loss", "wx.grad", "wr.grad"]
        feeds = {i.name: step[i.name] for i in session.get_inputs()}
        for name, found in zip(names, session.run(names, feeds), strict=True):
            np.testing.assert_array_equal(found, step[name])
    assert invoke(["run", plan, "--steps", "3", "--lr", "0.01"]) == 0


def test_targets_of_bce_are_true_or_false_where_drawn() -> None:
    graph = graph_of("bce")
    drawn = random_batch(graph)["target"]
    assert drawn.dtype == np.float32
    assert set(np.unique(drawn)) == {0.0, 1.0}
    assert len(np.unique(random_batch(graph_of("mse"))["target"])) > 2


@pytest.mark.parametrize("kind", [bool, np.int64, np.uint8])
def test_targets_may_be_whole_numbers(kind: type) -> None:
    graph = graph_of("bce")
    batch = {**random_batch(graph)}
    given = check_batch(graph, {**batch, "target": np.asarray(batch["target"], kind)})
    np.testing.assert_array_equal(given["target"], batch["target"])
    assert given["target"].dtype == np.float32
    other = graph_of("mse")
    batch = {**random_batch(other), "target": np.full((2, 3, 4, 5), 1, kind)}
    assert check_batch(other, batch)["target"].dtype == np.float32
    with pytest.raises(ModelError, match="'target' has type int64"):
        check_batch(other, {**batch, "target": np.full((2, 3, 4, 5), 2**24 + 1)})
    with pytest.raises(ModelError, match="'x' has type int64"):
        check_batch(other, {**batch, "x": np.ones((2, 3, 4, 5), np.int64)})


@pytest.mark.parametrize("value", [-1.0, 2, np.nan])
def test_targets_of_bce_lie_between_0_and_1(value: float) -> None:
    graph = graph_of("bce")
    target = np.full(graph.tensors["target"].shape, value, np.float32)
    with pytest.raises(ModelError, match=rf"'target' holds {value:g}; with the loss bce .*0\.\.1.*--loss mse"):
        check_batch(graph, {**random_batch(graph), "target": target})


def test_labels_in_another_order_are_labels() -> None:
    graph = graph_of("cross-entropy")
    assert graph.tensors["labels"].shape == (2, 5, 3)
    drawn = np.concatenate([random_batch(graph, seed)["labels"] for seed in range(9)])
    assert (drawn.min(), drawn.max()) == (0, 3)
    with pytest.raises(ModelError, match="holds the label 4"):
        check_batch(graph, {**random_batch(graph), "labels": np.full((2, 5, 3), 4)})
