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
from poetopt.cli.app import invoke
from poetopt.graph import TrainingGraph

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
    assert notes[0][0] in " ".join(capsys.readouterr().out.split())
    with np.load(dump) as step:
        session = ort.InferenceSession(train, plainly(), providers=["CPUExecutionProvider"])
        names = ["loss", "wx.grad", "wr.grad"]
        feeds = {i.name: step[i.name] for i in session.get_inputs()}
        for name, found in zip(names, session.run(names, feeds), strict=True):
            np.testing.assert_array_equal(found, step[name])
    assert invoke(["run", plan, "--steps", "3", "--lr", "0.01"]) == 0
