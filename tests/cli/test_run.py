"""From a model to an executed plan by the command line alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import poetopt as po
from poetopt import zoo
from poetopt.cli.app import invoke
from poetopt.util.errors import PlanError
from tests.support.c import needs_host
from tests.support.cli import Runner

RUN_KEYS = {
    "bit_identical", "gradients", "max_abs_diff", "budget_bytes", "arena_bytes", "kernel_workspace_bytes",
    "measured_peak_bytes", "store_all_peak_bytes", "step_s", "store_all_step_s", "fused_step_s", "bytes_paged",
}  # fmt: skip
"""What the specification lists for `run --json`."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "lenet.onnx"
    onnx.save(zoo.build("lenet", 4), path)
    return path


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    onnx.save(zoo.build("lenet", 4), folder / "lenet.onnx")
    asked = [str(folder / "lenet.onnx"), "--device", "a72", "--ram", "99%", "-o", str(folder / "plan.json")]
    assert invoke(["solve", *asked]) == 0
    return folder / "plan.json"


def test_solve_then_run(run: Runner, plan: Path, tmp_path: Path) -> None:
    dump = tmp_path / "step.npz"
    ended = run("run", plan, "--dump", dump, "--json", "-")
    assert (ended.code, ended.err) == (0, "")
    document = ended.document
    assert document.keys() >= RUN_KEYS
    assert document["bit_identical"]
    assert document["max_abs_diff"] == 0
    stored = json.loads(plan.read_text())
    assert document["budget_bytes"] == stored["budget"]["ram_bytes"]
    assert document["arena_bytes"] == stored["report"]["arena_bytes"]
    with np.load(dump) as step:
        names = set(step.files)
        assert {"input", "labels", "loss"} <= names
        assert sum(name.endswith(".grad") for name in names) == document["gradients"]


@pytest.mark.parametrize("check", ["first", "none"])
def test_a_loss_that_is_no_number_is_null(run: Runner, plan: Path, tmp_path: Path, check: str) -> None:
    images = np.full((4, 1, 28, 28), np.nan, np.float32)
    np.savez(tmp_path / "batch.npz", input=images, labels=np.zeros(4, np.int64))
    document = run("run", plan, "--data", tmp_path / "batch.npz", "--check", check, "--json", "-").document
    assert document["loss"] is None


def test_training(run: Runner, plan: Path, tmp_path: Path) -> None:
    data, dump = tmp_path / "set.npz", tmp_path / "trained.npz"
    rng = np.random.default_rng(0)
    np.savez(data, input=rng.standard_normal((12, 1, 28, 28)).astype(np.float32), labels=rng.integers(0, 10, 12))
    arguments = ("run", plan, "--steps", "9", "--lr", "0.05", "--data", data)
    document = run(*arguments, "--check", "1", "--dump", dump, "--json", "-").document
    assert document["bit_identical"]
    assert document["losses"] == document["reference_losses"]
    assert len(document["losses"]) == document["steps"] == 9
    assert document["losses"][-1] < document["losses"][0]
    assert document["measured_peak_bytes"] is None or document["measured_peak_bytes"] <= document["budget_bytes"]
    with np.load(dump) as trained:
        assert tuple(trained["losses"]) == tuple(document["losses"])
    ended = run(*arguments, "--check", "4")
    assert (ended.code, ended.err) == (0, "")
    assert "9 steps of training, lr 0.05" in " ".join(ended.out.split())
    assert "the losses of 3 steps" in " ".join(ended.out.split())
    assert "bit for bit" in " ".join(ended.out.split())


def test_processes_of_their_own(plan: Path, tmp_path: Path) -> None:
    """What the command starts, as it does: the plan is read in one, ordinary training takes its steps in another."""
    command = [sys.executable, "-m", "poetopt", "run", str(plan), "--steps", "3", "--lr", "0.05", "--json", "-"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*command, "--check", "2"], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    assert document["bit_identical"]
    assert document["checked"] == 2
    assert document["losses"][::2] == document["reference_losses"]
    if document["process_peak_bytes"] is not None:
        assert document["process_base_bytes"] < document["process_peak_bytes"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "plan.json").write_text("{}")
    command[command.index(str(plan))] = str(tmp_path / "plan.json")
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"poetopt: ")
    assert b"plan.json" in done.stderr


@needs_host
def test_a_plan_for_a_microcontroller_runs_in_c_on_this_machine(run: Runner, model: Path, tmp_path: Path) -> None:
    """Without --on; in Python, and for a folder that it doesn't page to, the refusal says what to do."""
    plan = tmp_path / "board.json"
    assert run("solve", model, "--device", "m4", "--ram", "100%", "-o", plan).code == 0
    run("run", plan, "--workdir", tmp_path).assert_one_message("--workdir: a step in C is paged to a", code=2)
    run("run", plan, "--steps", "2", "--lr", "0.1").assert_one_message("solve with --optimizer sgd", code=2)
    with pytest.raises(PlanError, match=r"'c', but the runtime 'onnxruntime' executes it.*--on host"):
        po.execute(plan)
    document = run("run", plan, "--json", "-").document
    assert document["bit_identical"]
    assert document["on"] == "host"


def test_a_network_without_a_loss_runs_unchecked(run: Runner, model: Path, tmp_path: Path) -> None:
    place = tmp_path / "plan.json"
    asked = ("--loss", "forward-only", "--device", "a72", "--ram", "110%", "--time-limit", "10s")
    assert run("solve", model, *asked, "-o", place).code == 0
    ended = run("run", place, "--check", "none")
    assert (ended.code, ended.err) == (0, "")
    assert "arena" in ended.out
