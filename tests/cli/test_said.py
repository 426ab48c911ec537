"""What is stored and stands in no layer's place is named beside every answer."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.support import Runner
from tests.frontends.kinds import KINDS

SAID = "Parameter7; --train NAME trains them"
WHOLE = {"about": "trained", "text": f"data, as they stand in no layer's place: {SAID}"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(KINDS["cntk-sliced"].model(), path)
    return path


def test_notes_that_matter_stand_beside_every_answer(run: Runner, model: Path, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "train.onnx"
    commands: list[list[object]] = [
        ["inspect", model],
        ["solve", model, "--device", "a72", "-o", plan],
        ["run", plan],
        ["run", plan, "--steps", 2, "--lr", 0.1],
        ["grad", model, "-o", out],
    ]
    for command in commands:
        ended = run(*command)
        assert ended.code == 0
        assert SAID in " ".join((ended.out + ended.err).split()), command
    for command in commands:
        assert WHOLE in run(*command, "--json", "-").document["important"], command
    assert WHOLE in json.loads(plan.read_text())["report"]["important"]


def test_details_stay_where_a_model_is_looked_at(run: Runner, model: Path) -> None:
    detail = "float tensors are trained (inferred"
    assert detail in run("inspect", model, "--verbose").out
    solved = run("solve", model, "--device", "a72", "--json", "-").document
    assert any(detail in note for note in solved["notes"])
    assert detail not in run("solve", model, "--device", "a72").out


def test_three_notes_stand_on_the_screen_and_the_others_are_counted(run: Runner, tmp_path: Path) -> None:
    rates = [
        word for k, name in enumerate(("conv1", "conv2", "fc1", "fc2")) for word in ("--with", f"rates={name}.*={k}")
    ]
    command = ["grad", "lenet", "--optimizer", "sgd", *rates, "-o", tmp_path / "train.onnx"]
    few, whole = run(*command).out, run(*command, "--verbose").out
    assert (few.count("  note"), whole.count("  note")) == (3, 6)
    assert "4 more with --verbose, and in --json" in few
    assert run(*command).out == few
