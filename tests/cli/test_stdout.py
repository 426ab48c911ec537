"""What goes to the standard output when an output is `-`, and what happens where nobody reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import poetopt as po
from poetopt import zoo
from poetopt.backends.onnxruntime import random_batch
from poetopt.backends.onnxruntime.execution import save_arrays
from tests.support.cli import Runner, chain


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SOLVE = ("--device", "a72", "--ram", "60%", "--gap", "50%")


def test_a_plan_goes_to_stdout_alone(run: Runner, problem: Path) -> None:
    ended = run("solve", problem, *SOLVE, "-o", "-", "--json", "report.json")
    assert (ended.code, ended.err) == (0, "")
    assert sorted(os.listdir()) == ["chain.json", "report.json"]
    Path("plan.json").write_text(ended.out)
    assert run("verify", "plan.json").code == 0
    assert ended.document["report"]["energy_j"] == json.loads(Path("report.json").read_text())["energy_j"]


@pytest.mark.parametrize(("line", "unbuffered"), [("--help", "1"), ("solve", "")])
def test_a_pipe_that_nobody_reads_is_one_code(problem: Path, line: str, unbuffered: str) -> None:
    """Whether it shows when a line is written, or not before the end."""
    if line == "solve":
        line = " ".join(["solve", str(problem), *SOLVE])
    reading, writing = os.pipe()
    os.close(reading)
    try:
        program = [sys.executable, "-m", "poetopt", *line.split()]
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        ended = subprocess.run(program, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@contextmanager
def piped(content: bytes) -> Iterator[str]:
    """The path of a pipe that holds this: it can be read but once."""
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb") as pipe, suppress(BrokenPipeError):
            pipe.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
        writer.join()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="reads a pipe")
@pytest.mark.parametrize(
    ("content", "code"),
    [(json.dumps(chain()).encode(), 0), (zoo.build("mlp").SerializeToString(), 0), (b"no model\n", 2), (b"", 2)],
    ids=["problem", "model", "text", "empty"],
)
def test_a_model_comes_from_a_pipe(run: Runner, content: bytes, code: int) -> None:
    with piped(content) as path:
        ended = run("solve", path, "--device", "a72", "--ram", "100%")
    assert ended.code == code
    assert ended.err.startswith(f"poetopt: {path}: " if code else "")
    assert ended.out.startswith("" if code else f"{path} on a72: ")


def test_a_plan_is_run_and_trained_with_from_a_pipe(run: Runner) -> None:
    """Which another process would wait for in vain; so for one that is empty."""
    plan = run("solve", "mlp", "--device", "a72", "--ram", "100%", "-o", "-").out
    Path("plan.json").write_text(plan)
    graph = po.load_plan("plan.json").plan.problem.graph
    assert graph is not None
    save_arrays(random_batch(graph), "rows.npz")
    training = ("run", "/dev/stdin", "--steps", "2", "--lr", "0.1")
    for command, content, code in (
        (("run", "/dev/stdin"), plan, 0), (training, plan, 0), (training, "", 2),
        (("train", "/dev/stdin", "--data", "rows.npz", "-o", "trained.onnx"), plan, 0),
    ):  # fmt: skip
        program = [sys.executable, "-m", "poetopt", *command]
        ended = subprocess.run(program, input=content.encode(), capture_output=True, check=False, timeout=120)
        assert ended.returncode == code, (command, ended.stderr)
        assert ended.stderr.startswith(b"poetopt: " if code else b"")
        assert bool(ended.stderr) == bool(code)
