"""`grad --optimizer`: the page's command, and its loop as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from poetopt.cli.app import invoke

PAGE = (Path(__file__).resolve().parents[2] / "docs/training-file.md").read_text(encoding="utf-8")


def test_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^\$ poetopt (.*)$", PAGE, re.MULTILINE)
    assert invoke(command.split()) == 0
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "training-file.md", "exec"), names)
    losses = names["losses"]
    assert losses[-1] < 0.3 * losses[0]
    onnx.checker.check_model("step.onnx", full_check=True)
    model = onnx.load("step.onnx")
    carried = json.loads({entry.key: entry.value for entry in model.metadata_props}["poetopt.carried"])
    assert set(names["carried"]) == set(carried)
    assert {carried[old] for old in carried} == {f"{old}.new" for old in carried}
    start = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    assert all(np.any(start[old] != value) for old, value in names["carried"].items())


def test_what_the_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.onnx"
    assert invoke(["grad", "lenet", "--optimizer", "momentum", "-o", str(out), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["optimizer"] == "momentum"
    assert document["hyperparameters"] == {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0}
    assert document["gradients"] == {}
    assert document["carried"]["fc1.weight.momentum_buffer"] == "fc1.weight.momentum_buffer.new"
    assert invoke(["grad", "lenet", "--optimizer", "adm", "-o", str(tmp_path / "no.onnx")]) == 2
    assert "--optimizer adm: unknown" in capsys.readouterr().err
    assert not (tmp_path / "no.onnx").exists()
