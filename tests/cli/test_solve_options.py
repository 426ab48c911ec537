"""Options of `solve`: the solver's own, open sizes, all of a training; and the live line on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import onnx
import pytest

import poetopt as po
from tests.cli.test_commands import PROGRAM
from tests.support.cli import REPORT_KEYS, Runner
from tests.support.frontends import text_model

ASKED = ("mlp", "--device", "a72", "--ram", "80%")


def test_solver_options_and_log(run: Runner, tmp_path: Path) -> None:
    twice = ("--solver-option", "presolve=off", "--solver-option", "presolve=on")
    run("solve", *ASKED, *twice).assert_one_message("given twice", code=2)
    run("solve", *ASKED, "--log", f"{tmp_path / 'no' / 'solver.log'}").assert_one_message("solver.log", code=2)
    log = tmp_path / "solver.log"
    log.write_text("of an earlier run")
    ended = run("solve", *ASKED, "--solver-option", "presolve=off", "--log", f"{log}", "--json", "-")
    assert json.loads(ended.out)["status"] == "optimal"
    assert "HiGHS" in log.read_text()
    assert "earlier" not in log.read_text()


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


def test_a_terminal_gets_it_on_stderr(problem: Path) -> None:
    ours, theirs = pty.openpty()
    command = (*PROGRAM, "solve", str(problem), "--device", "a72", "--ram", "80%", "--json", "-")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, text=True, env={**os.environ, "TERM": "xterm"}
    ) as p:
        out, _ = p.communicate()
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "reading the model" in shown
    assert out.startswith("{")
    assert all(f'"{key}"' in out for key in REPORT_KEYS)


def test_an_answer_says_what_inference_takes_of_the_same_ram(run: Runner, tmp_path: Path) -> None:
    """As `emit` finds it; an onnxruntime has no po_predict, and a network alone is one."""
    place = tmp_path / "plan.json"
    ended = run("solve", "lenet", "--batch", "1", "--device", "m4", "--total-ram", "64KB", "-o", place, "-v")
    report = json.loads(place.read_text())["report"]
    taken, arena = report["prediction_bytes"], report["arena_bytes"]
    assert 0 < taken <= arena
    assert f"po_predict takes {taken:,} B of the {arena:,}" in " ".join(ended.out.split())
    assert po.emit(place, tmp_path / "c").prediction_bytes == taken
    edited = json.loads(place.read_text())
    edited["report"]["prediction_bytes"] = taken - 4
    place.write_text(json.dumps(edited))
    (differs,) = po.verify(place).differs
    assert (differs.name, differs.recomputed) == ("prediction_bytes", taken)
    for options in (("--device", "a72"), ("--device", "m4", "--loss", "forward-only")):
        other = run("solve", "mlp", *options, "--ram", "100%")
        assert other.code == 0
        assert "po_predict" not in other.out
