"""Files that leave sizes and branches open, from the command line: what is said once, plans keep."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.support import Runner
from tests.frontends.support import text_model

OPEN = """
g (float[N,K] x, int64 rate) => (float[N,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}, int64 wide = {16000}> {
    c = Equal (rate, wide)
    h = If (c) <then_branch = t () => (float[N,K] a) { a = Tanh (x) }, else_branch = e () => (float[N,K] b) { b = Sigmoid (x) }>
    y = MatMul (h, w) }
"""  # noqa: E501
SAID = ("--dim", "K=4", "--shape", "x=3x?", "--value", "rate=16000")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "open.onnx"
    onnx.save(text_model(OPEN), path)
    return path


def test_a_plan_keeps_what_was_said(run: Runner, model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    solved = run("solve", model, *SAID, "--device", "a72", "-o", plan)
    assert solved.code == 0, solved.err
    recipe = json.loads(plan.read_text())["model"]["recipe"]
    assert (recipe["dims"], recipe["shapes"], recipe["values"]) == ({"K": 4}, {"x": [3, None]}, {"rate": 16000})
    assert run("run", plan, "--json", "-").document["bit_identical"]
    assert run("verify", plan).code == 0
    assert run("show", plan, "--format", "txt", "-o", tmp_path / "plan.txt").code == 0


def test_a_plan_whose_recipe_was_edited(run: Runner, model: Path, tmp_path: Path) -> None:
    """Other sizes are another problem, and nonsense is told as the plan's."""
    plan = tmp_path / "plan.json"
    assert run("solve", model, *SAID, "--device", "a72", "-o", plan).code == 0
    text = plan.read_text()
    plan.write_text(text.replace('"x": [3, null]', '"x": [5, null]'))
    run("run", plan).assert_one_message("plan.json", code=2)
    for new in ('"x": [0, null]', '"x": {}', '"x": [[1], null]'):
        plan.write_text(text.replace('"x": [3, null]', new))
        run("run", plan).assert_one_message("it says how its model is read, and that can't be: --shape x=", code=2)


@pytest.mark.parametrize("command", ["inspect", "grad", "compare", "pareto", "profile"])
def test_every_command_that_reads_a_model(run: Runner, model: Path, tmp_path: Path, command: str) -> None:
    """Each refuses the open file with the same remedy, and takes it with what that says."""
    out = tmp_path / {"grad": "step.onnx"}.get(command, "out.csv")
    more: list[object] = [] if command in ("grad", "profile") else ["--device", "a72"]
    wanted: dict[str, list[object]] = {
        "grad": ["-o", out], "compare": ["--ram", "100%", "--methods", "dtr"],
        "pareto": ["--time-limit", "1s"], "profile": ["--template", out],
    }  # fmt: skip
    more += wanted.get(command, [])
    run(command, model, *more).assert_one_message(
        "dimension 0 of input 'x'", "--shape x=1x?, or --batch 1 --dim K=...", code=2
    )
    sized = run(command, model, *more, "--batch", 3, "--dim", "K=4")
    sized.assert_one_message("--value rate=16000", code=2)
    said = run(command, model, *more, *SAID)
    assert said.code == 0, said.err
    assert "rate" not in said.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--dim", "K"], "--dim K: say which and how much, as in --dim height=160"),
        (["--shape", "x="], "--shape x=: say which"),
        (["--dim", "K=4", "--dim", "K=5"], "K is given twice"),
        (["--shape", "1x3"], "as in --shape input=1x3x160x160"),
        (["--value", "rate=fast"], "--value rate=fast: give a number"),
        (["--batch", "2", "--shape", "x=3x4"], "--shape x=3x4 contradicts --batch 2"),
    ],
)
def test_mistakes(run: Runner, model: Path, options: list[str], says: str) -> None:
    run("inspect", model, *options).assert_one_message(says, code=2)
