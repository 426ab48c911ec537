"""`poetopt train`: from a plan and data to the trained network, in three commands and with one message an error."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import poetopt as po
from tests.cli.test_interrupt import signal_at
from tests.support.cli import Runner
from tests.support.training import small

KEYS = {
    "epochs", "steps", "batch", "losses", "validations", "loss", "accuracy", "optimizer", "hyperparameters", "seconds",
    "total_ram_bytes", "process_peak_bytes", "checkpoint", "trained", "left_out", "resumed_at",
}  # fmt: skip


def data(path: Path, count: int, seed: int = 0, **changed: Any) -> Path:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 12)).astype(np.float32)
    np.savez(path, **{"input": x, "labels": x[:, :5].argmax(axis=1), **changed})
    return path


@pytest.fixture
def plan(run: Runner, tmp_path: Path) -> Path:
    onnx.save(small(), tmp_path / "net.onnx")
    place = tmp_path / "plan.json"
    ended = run("solve", tmp_path / "net.onnx", "--device", "a72", "--ram", "100%", "--optimizer", "adam", "-o", place)
    assert (ended.code, ended.err) == (0, "")
    return place


def test_trained_resumed_and_written(run: Runner, plan: Path, tmp_path: Path) -> None:
    given, held_out = data(tmp_path / "train.npz", 81), data(tmp_path / "test.npz", 30, 1)
    asked = ("train", plan, "--data", given, "--validate", held_out, "--lr", "0.05", "--lr-schedule", "step:2:0.5",
             "--keep", "last")  # fmt: skip
    whole = run(*asked, "--epochs", 4, "-o", tmp_path / "whole.onnx", "--json", "-")
    assert (whole.code, whole.err) == (0, "")
    document = whole.document
    assert document.keys() >= KEYS
    assert document["losses"][-1] < document["losses"][0]
    assert document["accuracy"] > 0.3
    assert [each["epoch"] for each in document["validations"]] == [1, 2, 3, 4]
    assert (document["steps"], document["left_out"], document["optimizer"]) == (80, 1, "adam")
    more = (*asked, "--checkpoint", tmp_path / "kept", "--resume")
    half = run(*more, "--epochs", 2, "--every", 7, "-o", tmp_path / "half.onnx")
    assert half.out.startswith("epoch 1 of 2: loss ")
    assert "the last 1 rows of each epoch fill no batch of 4" in half.out
    ended = run(*more, "--epochs", 4, "-o", tmp_path / "rest.onnx", "--json", tmp_path / "told.json")
    assert "resumed after step 40" in ended.out
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["losses"], told["validations"]) == (document["losses"], document["validations"])
    trained = (tmp_path / "rest.onnx").read_bytes()
    assert trained == (tmp_path / "whole.onnx").read_bytes() != (tmp_path / "half.onnx").read_bytes()
    session = onnxruntime.InferenceSession(trained, providers=["CPUExecutionProvider"])
    with np.load(held_out) as rows:
        padded, labels = np.resize(rows["input"], (32, 12)), rows["labels"]
    scores = np.concatenate([session.run(None, {"input": padded[k : k + 4]})[0] for k in range(0, 32, 4)])
    assert document["accuracy"] == (scores[:30].argmax(axis=1) == labels).mean()
    ended = run(*more, "--epochs", 1, "-o", tmp_path / "less.onnx")
    ended.assert_one_message("it has completed 4 epochs, and --epochs 1 asks for fewer", code=2)
    run(*asked, "-o", tmp_path / "net.onnx").assert_one_message("net.onnx", "is the input", code=2)
    further = run(*asked, "--check", "--model", tmp_path / "rest.onnx", "-o", tmp_path / "further.onnx", "--json", "-")
    assert (further.code, further.err) == (0, "")
    assert further.document["losses"][0] < document["losses"][0]


def test_what_is_wrong_is_one_message(run: Runner, plan: Path, tmp_path: Path) -> None:
    given = data(tmp_path / "train.npz", 20)
    out = tmp_path / "out.onnx"
    nan = np.zeros((20, 12), np.float32)
    nan[13, 2] = np.nan
    cases = (
        (("--optimizer", "sgd"), 2, "--optimizer sgd: the step of",
         "updates by adam; solve again with --optimizer sgd"),
        (("--momentum", "0.9"), 2, "--momentum 0.9: the plan's optimizer is adam"),
        (("--lr-schedule", "warm"), 2, "--lr-schedule warm: must be constant, cosine"),
        (("--every", "2"), 2, "--every 2: there is no folder of checkpoints. Give --checkpoint FOLDER"),
        (("--data", data(tmp_path / "nan.npz", 20, input=nan)), 2, "nan.npz, row 13: 'input' holds NaN"),
        (("--data", data(tmp_path / "few.npz", 3)), 2, "few.npz: it has 3 rows, and a batch of this plan has 4"),
        (("--data", tmp_path / "gone"), 2, "can't read", "gone"),
        (("--validate", data(tmp_path / "l.npz", 20, labels=np.full(20, 5))), 2,
         "l.npz, row 0: 'labels' holds the label 5"),
        (("--checkpoint", given), 2, "can't write checkpoints to"),
        (("-o", tmp_path / "no" / "out.onnx"), 2, "there is no folder"),
        (("-o", "/dev/null"), 2, "can't write /dev/null: it is a device or a pipe"),
        (("--workdir", tmp_path / "no"), 2, "can't create the paging file in", "--workdir"),
        (("--lr", "1e38"), 5, "diverged"),
    )  # fmt: skip
    for options, code, *parts in cases:
        run("train", plan, "--data", given, "-o", out, "--json", "-", *options).assert_one_message(*parts, code=code)
        assert not out.exists()


def test_a_full_disk_loses_nothing(run: Runner, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, out, folder = data(tmp_path / "train.npz", 20), tmp_path / "out.onnx", tmp_path / "kept"
    asked = ("train", plan, "--data", given, "-o", out)
    few = SimpleNamespace(total=2**40, used=2**40 - 100, free=100)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: few)
        run(*asked).assert_one_message(f"can't write {out}: the network takes", "100 B are free", code=2)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfileobj", no_room)
        ended = run(*asked, "--checkpoint", folder)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert "No space left on device. Give another path, or free space and check permissions there." in ended.err
        assert f"is in {folder}/step-000000005.npz: the same command with --resume writes it" in ended.err
        alone = run(*asked)
    assert not out.exists()
    kept = re.search(r"What was trained is in (\S+)/step-000000005.npz: po.Trainer\(PLAN\).load", alone.err)
    assert kept is not None
    with po.Trainer(plan) as trainer:
        trainer.load(kept[1])
        trainer.export(tmp_path / "saved.onnx")
    shutil.rmtree(kept[1])
    ended = run(*asked, "--checkpoint", folder, "--resume")
    assert (ended.code, ended.err) == (0, "")
    assert out.read_bytes() == (tmp_path / "saved.onnx").read_bytes()


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_ends_with_a_checkpoint_and_one_message(kept: bool, plan: Path, tmp_path: Path, run: Runner) -> None:
    given, folder = data(tmp_path / "train.npz", 400), tmp_path / "kept"
    asked = ["train", str(plan), "--data", str(given), "--epochs", "3", "-o", str(tmp_path / "out.onnx")]
    more = ["--checkpoint", str(folder)] if kept else []
    with signal_at("_run_epoch/run"):
        ended = run(*asked, *more)
    assert ended.code == 130
    if kept:
        (path,) = folder.glob("step-*.npz")
        assert ended.err == f"poetopt: interrupted; step 1 is in {path}; continue with --resume\n"
    else:
        assert ended.err == "poetopt: interrupted; nothing was saved, because no --checkpoint was given\n"
    assert not (tmp_path / "out.onnx").exists()
