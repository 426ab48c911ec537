"""`poetopt train`: from a plan and data to the trained network, in three commands and with one message an error."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import poetopt as po
from tests.cli.support import Runner
from tests.cli.test_commands import PROGRAM
from tests.cli.test_interrupt import signal_at
from tests.training.support import small

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
    ended.assert_one_message("it has 4 epochs behind it, and --epochs 1 asks for fewer", code=2)
    run(*asked, "-o", tmp_path / "net.onnx").assert_one_message("net.onnx", "is the input", code=2)
    further = run(*asked, "--check", "--model", tmp_path / "rest.onnx", "-o", tmp_path / "further.onnx", "--json", "-")
    assert (further.code, further.err) == (0, "")
    assert further.document["losses"][0] < document["losses"][0]


def test_the_best_epoch_is_written_and_checked(run: Runner, plan: Path, tmp_path: Path) -> None:
    given, held_out = data(tmp_path / "train.npz", 80), data(tmp_path / "test.npz", 30, 1)
    asked = ("train", plan, "--data", given, "--validate", held_out, "--lr", "0.05", "--epochs", 40)
    ended = run(*asked, "--patience", 3, "-o", tmp_path / "best.onnx", "--json", "-")
    assert (ended.code, ended.err) == (0, "")
    told = ended.document
    losses = [each["loss"] for each in told["validations"]]
    best = losses.index(min(losses)) + 1
    assert told["kept"] == best == told["epochs"] - 3 < 37
    assert told["accuracy"] == told["validations"][best - 1]["accuracy"]
    assert told["checked_rows"] == 30
    run(*asked[:4], "--lr", "0.05", "--epochs", best, "--keep", "last", "-o", tmp_path / "same.onnx")
    assert (tmp_path / "best.onnx").read_bytes() == (tmp_path / "same.onnx").read_bytes()
    ended = run(*asked, "--keep", "first", "-o", tmp_path / "out.onnx")
    ended.assert_one_message("--keep first: must be best or last", code=2)
    ended = run(*asked, "--patience", 3, "-o", tmp_path / "out.onnx")
    assert f"epoch {best}, the best of {best + 3}" in ended.out
    assert "the file, alone in onnxruntime, is what validation said on 30 rows" in ended.out


def test_a_training_that_diverges_says_so_and_leaves_its_best(run: Runner, plan: Path, tmp_path: Path) -> None:
    given, out = data(tmp_path / "train.npz", 80), tmp_path / "out.onnx"
    asked = ("train", plan, "--data", given, "-o", out)
    ended = run(*asked, "--lr", "1e5", "--epochs", 2, "--json", "-")
    ended.assert_one_message("diverged: the last epoch's mean loss is", "nothing of it is kept", code=5)
    assert not out.exists()
    folder = tmp_path / "kept"
    run(*asked, "--lr", "0.01", "--checkpoint", folder)
    before = out.read_bytes()
    out.unlink()
    ended = run(
        *asked, "--lr", "1e5", "--epochs", 3, "--checkpoint", folder, "--resume", "--json", tmp_path / "told.json"
    )
    assert ended.code == 5
    assert "the parameters of epoch 1, the best, are kept; take a smaller --lr" in ended.err
    assert out.read_bytes() == before
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["kept"], told["epochs"]) == (1, 3)
    assert told["diverged"]


def test_rows_without_a_label_are_left_out_where_the_plan_says_so(run: Runner, plan: Path, tmp_path: Path) -> None:
    labels = np.arange(20) % 5
    labels[3] = -100
    given, net = data(tmp_path / "train.npz", 20, labels=labels), tmp_path / "net.onnx"
    asked = ("--data", given, "--validate", given, "-o", tmp_path / "out.onnx", "--json", tmp_path / "said.json")
    run("train", plan, *asked).assert_one_message("holds the label -100", "solve with --with ignore-index=-100", code=2)
    solve = ("solve", net, "--device", "a72", "-o", tmp_path / "left.json", "--with", "ignore-index=-100")
    ended = run(*solve, "--with", "class-weights=1,2,1,1,0.5", "--with", "label-smoothing=0.1")
    assert (ended.code, ended.err) == (0, "")
    ended = run("train", tmp_path / "left.json", *asked)
    assert (ended.code, ended.err) == (0, "")
    assert json.loads((tmp_path / "said.json").read_text())["checked_rows"] == 20
    ended = run(*solve, "--batch", "4", "--micro-batch", "2", "--optimizer", "adam")
    assert (ended.code, ended.err) == (0, "")
    ended = run("train", tmp_path / "left.json", *asked, "--check")
    assert (ended.code, ended.err) == (0, "")
    ended = run("run", tmp_path / "left.json", "--steps", "3", "--lr", "0.1", "--data", given, "--check", "1")
    assert (ended.code, ended.err) == (0, "")
    assert "bit for bit those of training without the schedule" in re.sub(r"\s+", " ", ended.out)
    run(*solve, "--batch", "4", "--micro-batch", "2", "--runtime", "c").assert_one_message(
        "on the runtime c a batch comes part by part; leave --micro-batch out", code=2
    )


def test_rates_metrics_changed_images_and_the_course(run: Runner, tmp_path: Path) -> None:
    rng, place = np.random.default_rng(0), tmp_path / "train.npz"
    np.savez(place, input=rng.standard_normal((20, 1, 28, 28)).astype(np.float32), labels=rng.integers(0, 10, 20))
    solve = ("solve", "lenet", "--batch", "4", "--device", "a72", "--optimizer", "adam", "-o", tmp_path / "plan.json")
    ended = run(*solve, "--with", "rates=conv*=0.1", "--with", "rates=*.bias=2")
    assert (ended.code, ended.err) == (0, "")
    asked = ("train", tmp_path / "plan.json", "--data", place, "-o", tmp_path / "out.onnx", "--epochs", "2")
    more: tuple[Any, ...] = (
        "--with",
        "augment=flip,crop",
        "--lr-schedule",
        "warmup:3,cosine",
        "--log",
        tmp_path / "course.csv",
    )
    more = (*more, "--validate", place, "--with", "metrics=top5,f1")
    ended = run(*asked, *more, "--json", tmp_path / "said.json")
    assert (ended.code, ended.err) == (0, "")
    assert re.search(
        r"^epoch 2 of 2: loss \S+; validation loss .*, accuracy .*%, top5 0\.\d+, f1 0\.\d+$", ended.out, re.M
    )
    assert re.search(r"rate: 0\.1 times lr for conv1\.weight, conv1\.bias, ", ended.out)
    told = json.loads((tmp_path / "said.json").read_text())
    assert told["metrics"] == told["validations"][told["kept"] - 1]["metrics"]
    lines = (tmp_path / "course.csv").read_text().splitlines()
    assert lines[0] == "epoch,step,lr,loss,seconds,validation_loss,accuracy,top5,f1"
    rates = [float(line.split(",")[2]) for line in lines[1:]]
    assert rates == pytest.approx(
        [1e-3 * k / 3 for k in (1, 2, 3)] + [5e-4 * (1 + np.cos(np.pi * k / 7)) for k in range(7)]
    )
    for options, part in (
        (("--with", "augment=flop"), "--with augment=flop: unknown"),
        (("--with", "metrics=f1"), "--with metrics: they are of a validation; give its data, with --validate"),
        (("--log", tmp_path / "no" / "c.csv"), "there is no folder"), (("--log", "-"), "--log -: it can't be written"),
    ):  # fmt: skip
        run(*asked, *options).assert_one_message(part, code=2)


def test_joules_measured_beside_those_planned(run: Runner, plan: Path, tmp_path: Path) -> None:
    supply, said, now = tmp_path / "supply.csv", tmp_path / "said.json", time.time()
    supply.write_text(f"time,power\n{now - 9000:.0f},2\n{now + 9000:.0f},2\n")
    given = data(tmp_path / "train.npz", 40)
    ended = run("train", plan, "--data", given, "-o", tmp_path / "o.onnx", "--meter", supply, "--json", said)
    assert (ended.code, ended.err) == (0, "")
    text = re.sub(r"\s+", " ", ended.out)
    assert re.search(r" energy \S+ m?J by \S*supply\.csv in 10 steps, waiting included, .* measured / planned = ", text)
    found = json.loads(said.read_text())["energy"]
    assert (found["meter"], found["steps"], found["fault"]) == (str(supply), 10, "")
    assert 0 < found["measured_j"] < 20
    ended = run("run", plan, "--steps", "5", "--lr", "0.01", "--meter", supply, "--json", said)
    assert (ended.code, json.loads(said.read_text())["energy"]["steps"]) == (0, 5)
    supply.write_text("time,power\n1,2\n2,2\n")
    ended = run("run", plan, "--steps", "5", "--lr", "0.01", "--meter", supply)
    assert (ended.code, ended.err) == (0, "")
    assert "don't begin before the steps and end behind them; is its clock this one's?" in re.sub(
        r"\s+", " ", ended.out
    )
    run("run", plan, "--meter", "rapl").assert_one_message("--meter: a step alone is too short", "--steps 1000", code=2)
    asked = ("train", plan, "--data", given, "-o", tmp_path / "o.onnx", "--meter", "hwmon:x")
    run(*asked).assert_one_message("--meter hwmon:x: ", code=2)


def test_what_is_wrong_is_one_message(run: Runner, plan: Path, tmp_path: Path) -> None:
    given = data(tmp_path / "train.npz", 20)
    out = tmp_path / "out.onnx"
    nan = np.zeros((20, 12), np.float32)
    nan[13, 2] = np.nan
    cases = (
        (
            ("--optimizer", "sgd"),
            2,
            "--optimizer sgd: the step of",
            "updates by adam; solve again with --optimizer sgd",
        ),
        (("--momentum", "0.9"), 2, "--momentum 0.9: the plan's optimizer is adam"),
        (("--lr-schedule", "warm"), 2, "--lr-schedule warm: must be constant, cosine"),
        (("--every", "2"), 2, "--every 2: say where checkpoints are, with --checkpoint FOLDER"),
        (("--data", data(tmp_path / "nan.npz", 20, input=nan)), 2, "nan.npz, row 13: 'input' holds NaN"),
        (("--data", data(tmp_path / "few.npz", 3)), 2, "few.npz: it holds 3 rows, and a batch of this plan has 4"),
        (("--data", tmp_path / "gone"), 2, "can't read", "gone"),
        (
            ("--validate", data(tmp_path / "l.npz", 20, labels=np.full(20, 5))),
            2,
            "l.npz, row 0: 'labels' holds the label 5",
        ),
        (("--checkpoint", given), 2, "can't write checkpoints to"),
        (("-o", tmp_path / "no" / "out.onnx"), 2, "there is no folder"),
        (("-o", "/dev/null"), 2, "can't write /dev/null: it is a device or a pipe"),
        (("--workdir", tmp_path / "no"), 2, "can't create the paging file in", "--workdir"),
        (("--lr", "1e38"), 5, "diverged"),
    )
    for options, code, *parts in cases:
        run("train", plan, "--data", given, "-o", out, "--json", "-", *options).assert_one_message(*parts, code=code)
        assert not out.exists()


def test_a_full_disk_loses_nothing(run: Runner, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, out, folder = data(tmp_path / "train.npz", 20), tmp_path / "out.onnx", tmp_path / "kept"
    asked = ("train", plan, "--data", given, "-o", out)
    few = SimpleNamespace(total=2**40, used=2**40 - 100, free=100)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: few)
        run(*asked).assert_one_message(f"can't write {out}: the network takes", "100 B are free there", code=2)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfileobj", no_room)
        ended = run(*asked, "--checkpoint", folder)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert "No space left on device; give another path, or make room and rights there. What was" in ended.err
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


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_ends_with_a_checkpoint_and_one_message(kept: bool, plan: Path, tmp_path: Path, run: Runner) -> None:
    given, folder = data(tmp_path / "train.npz", 400), tmp_path / "kept"
    asked = ["train", str(plan), "--data", str(given), "--epochs", "3", "-o", str(tmp_path / "out.onnx")]
    more = ["--checkpoint", str(folder)] if kept else []
    with signal_at("_epoch/run"):
        ended = run(*asked, *more)
    assert ended.code == 130
    if kept:
        (path,) = folder.glob("step-*.npz")
        assert ended.err == f"poetopt: interrupted; step 1 is in {path}; go on with --resume\n"
    else:
        assert ended.err == "poetopt: interrupted; nothing was kept, as no --checkpoint was given\n"
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.skipif(os.name != "posix", reason="closes a pipe")
def test_a_training_ends_though_nobody_reads_what_it_says(plan: Path, tmp_path: Path) -> None:
    given, folder, out = data(tmp_path / "train.npz", 16), tmp_path / "kept", tmp_path / "out.onnx"
    asked = ["train", str(plan), "--data", str(given), "--epochs", "3", "--checkpoint", str(folder), "-o", str(out)]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        program = [sys.executable, "-m", "poetopt", *asked]
        ended = subprocess.run(program, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")
    assert out.exists()
    with po.Trainer(plan) as trainer:
        trainer.load(folder)
        trainer.export(tmp_path / "same.onnx")
    assert out.read_bytes() == (tmp_path / "same.onnx").read_bytes()


def test_the_program_trains_without_its_parser(plan: Path, tmp_path: Path) -> None:
    """It goes on in an interpreter of its own: files, messages and codes are as before, and a signal is met."""
    given, out = data(tmp_path / "train.npz", 40), tmp_path / "out.onnx"
    asked = (*PROGRAM, "train", str(plan), "--data", str(given), "-o", str(out))

    def ended(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*asked, *options], capture_output=True, text=True)

    whole = ended("--epochs", "2", "--json", str(tmp_path / "said.json"))
    assert (whole.returncode, whole.stderr, whole.stdout.count("epoch ")) == (0, "", 2), whole.stderr
    assert json.loads((tmp_path / "said.json").read_text())["steps"] == 20
    onnx.checker.check_model(onnx.load(out))
    refused = ended("--lr", "-1")
    assert (refused.returncode, refused.stdout, refused.stderr.count("poetopt: ")) == (2, "", 1)
    code = "import sys, poetopt.cli.training, poetopt.training.loop, poetopt.api.trainer, poetopt.api.apart\n"
    code += "print({'typer', 'pydantic', 'onnx', 'pyomo'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
    command = [*asked, "--epochs", "100000", "--checkpoint", str(tmp_path / "kept")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("epoch 1 of ")
        process.terminate()
        _, told = process.communicate()
    assert process.returncode == 143
    assert re.fullmatch(r"poetopt: terminated; step \d+ is in .*; go on with --resume\n", told)
