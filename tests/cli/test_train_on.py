"""`poetopt train --on`: the same rows at the same rates as on onnxruntime, in C, and the network that came out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import poetopt as po
from poetopt.zoo.network import Network
from tests.support.c import needs_host, other_board
from tests.support.cli import Runner

ROWS, BATCH = 9, 2


def lenet_like() -> onnx.ModelProto:
    """A convolution with statistics, pooling, two linear layers, on 8x8 images."""
    net = Network("lenet-like", 3)
    x = net.conv(net.input("input", (BATCH, 1, 8, 8)), "conv1", (1, 4), 3, pad=1)
    x = net.max_pool(net.relu(net.batch_norm(x, "bn1", 4), "relu1"), "pool1")
    x = net.relu(net.linear(net.add("Flatten", [x], "flatten", axis=1), "fc1", 64, 12), "relu2")
    return net.model(net.linear(x, "fc2", 12, 5), (BATCH, 5))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "train.npz", input=x, labels=np.arange(ROWS) % 5)
    return tmp_path / "train.npz"


@pytest.fixture
def plan(run: Runner, tmp_path: Path) -> Path:
    onnx.save(lenet_like(), tmp_path / "net.onnx")
    asked = ("--device", "m4", "--optimizer", "momentum", "--parameters", "paged", "--ram", "70%")
    ended = run("solve", tmp_path / "net.onnx", *asked, "-o", tmp_path / "plan.json")
    assert (ended.code, ended.err) == (0, "")
    return tmp_path / "plan.json"


def initializers(path: Path) -> dict[str, np.ndarray]:
    return {proto.name: numpy_helper.to_array(proto) for proto in onnx.load(path).graph.initializer}


@needs_host
def test_shuffled_epochs_end_where_onnxruntime_ends(run: Runner, plan: Path, data: Path, tmp_path: Path) -> None:
    """The trainer on onnxruntime has a plan of its own, in which nothing is paged."""
    course = ("--epochs", 3, "--seed", 4, "--lr-schedule", "step:2:0.1")
    asked = ("train", plan, "--data", data, "--lr", "0.1", "--momentum", "0.5", *course)
    ended = run(*asked, "--on", "host", "-o", tmp_path / "out.onnx", "--json", "-")
    assert (ended.code, ended.err) == (0, "")
    told = ended.document
    assert told["bit_identical"]
    assert (told["epochs"], told["steps"], told["left_out"], told["on"]) == (3, 12, 1, "host")
    pairs = list(zip(told["losses"], told["reference_losses"], strict=True))
    assert told["max_loss_diff"] == max(abs(a - b) for a, b in pairs) < 1e-4
    assert told["bytes_paged"] > 0
    report = po.solve(po.load(lenet_like()).differentiate(optimizer="momentum").cost("a72"), ram="100%")
    with po.Trainer(report, lr=0.1, momentum=0.5, lr_schedule="step:2:0.1", seed=4) as trainer:
        with np.load(data) as arrays:
            fitted = trainer.fit(dict(arrays), epochs=3)
        assert told["epoch_losses"] == pytest.approx(fitted.losses, rel=1e-5)
        trained, first = initializers(tmp_path / "out.onnx"), initializers(tmp_path / "net.onnx")
        assert trained.keys() == first.keys()
        values = {name: value for name, value in trainer.values().items() if name in trained}
        assert {"bn1.running_mean", "bn1.running_var", "conv1.weight", "fc2.bias"} <= values.keys()
        for name, value in values.items():
            moved = np.abs(value - first[name]).max()
            assert moved > 1e-4, name
            assert np.abs(trained[name] - value).max() < 1e-3 * moved, name


@other_board
def test_on_a_cortex_m4_the_weights_are_those_of_as_many_steps(
    run: Runner, plan: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    asked = ("train", plan, "--data", data, "--lr", "0.1", "--batch-order", "sequential", "--on", "cortex-m4")
    ended = run(*asked, "-o", out, "--json", tmp_path / "told.json")
    assert "epoch 1" in ended.out
    assert "no step's is more than" in " ".join(ended.out.split())  # a number's width may break the line there
    with np.load(data) as arrays:
        rows = {name: array[: ROWS // BATCH * BATCH] for name, array in arrays.items()}
    steps = po.train_on(plan, "cortex-m4", ROWS // BATCH, 0.1, data=rows)
    assert steps.instructions is not None
    trained = initializers(out)
    for name, value in {**steps.values, **steps.statistics}.items():
        assert trained[name].tobytes() == value.tobytes(), name
    assert len(steps.statistics) == 2
