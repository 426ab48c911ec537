"""Epochs by a plan: the steps of the unscheduled graph on the same batches, resumed to the same bits, and evaluated."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import poetopt as po
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.training.source import rows_in_order
from poetopt.util.errors import ExecutionError, OptionError
from tests.training.support import MODELS, Data, graph_of, plan_of, rows

CASES = [("residual", "sgd", "paged"), ("small", "adamw", "resident"), ("small", "momentum", "paged")]
CASES += [("dropout", "adam", "resident"), ("small", "none", "resident")]


def copies(values: Mapping[str, Any]) -> Data:
    return {name: np.array(value) for name, value in values.items()}


def equal(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(("name", "optimizer", "parameters"), CASES[:3])
def test_epochs_are_the_steps_of_the_whole_graph_at_the_rates_that_were_asked_for(
    name: str, optimizer: str, parameters: str
) -> None:
    plan = plan_of(name, optimizer, parameters)
    graph = graph_of(plan_of(name, optimizer))
    size = graph.tensors[graph.inputs[0]].shape[0]
    data = rows(plan, 3 * size + 1)
    with po.Trainer(plan, lr=0.1, lr_schedule="step:1:0.5", seed=4) as trainer:
        ended = trainer.fit(data, epochs=2)
        found = copies(trainer.values())
    values: Data = dict(graph.values)
    losses = []
    for epoch, lr in enumerate((0.1, 0.05)):
        order = rows_in_order(3 * size + 1, "shuffle", 4, epoch)
        for k in range(3):
            batch = {name: array[order[k * size : (k + 1) * size]] for name, array in data.items()}
            for said, number in {"lr": lr, "step": 3 * epoch + k + 1}.items():
                if said in graph.hyperparameters:
                    tensor = graph.hyperparameters[said]
                    values[tensor] = np.array(number, values[tensor].dtype)
            done = NodeByNode(graph, Sessions(graph), values, graph.results).run(batch)
            losses.append(float(done[graph.loss].reshape(-1)[0]))
            values |= {old: done[new] for old, new in graph.carried.items()}
    equal(found, {name: values[name] for name in graph.carried})
    assert ended.losses == (sum(losses[:3]) / 3, sum(losses[3:]) / 3)
    assert (ended.epochs, ended.steps, ended.batch, ended.left_out) == (2, 6, size, 1)


@pytest.mark.parametrize(("name", "optimizer", "parameters"), CASES[1:])
def test_a_stopped_training_goes_on_to_the_same_bits(
    name: str, optimizer: str, parameters: str, tmp_path: Path
) -> None:
    plan = plan_of(name, optimizer, parameters)
    size = graph_of(plan).tensors[graph_of(plan).inputs[0]].shape[0]
    data = rows(plan, 5 * size)
    asked: dict[str, Any] = {"lr": 0.01, "lr_schedule": "step:1:0.5"}

    class Stop(Exception):  # noqa: N818 - a signal, not an error
        pass

    def stopping(epoch: int) -> Any:
        for k, batch in enumerate(po_batches(plan, data, epoch)):
            if (epoch, k) in stops:
                stops.remove((epoch, k))
                raise Stop
            yield batch

    stops = [(0, 3), (1, 1), (1, 4)]
    for _ in range(3):
        with po.Trainer(plan, **asked) as trainer, pytest.raises(Stop):
            trainer.fit(stopping, epochs=2, checkpoint=tmp_path, every=1, resume=True, validate=data)
    assert not stops
    with po.Trainer(plan, **asked) as trainer:
        ended = trainer.fit(stopping, epochs=2, checkpoint=tmp_path, every=3, resume=True, validate=data)
        resumed = copies(trainer.values())
    with po.Trainer(plan, **asked) as trainer:
        straight = trainer.fit(lambda epoch: po_batches(plan, data, epoch), epochs=2, validate=data)
        equal(resumed, trainer.values())
    assert (ended.losses, ended.validations) == (straight.losses, straight.validations)
    assert (ended.resumed_at, straight.resumed_at, straight.steps) == (9, 0, 10)


def po_batches(plan: Any, data: Data, epoch: int) -> Any:
    from poetopt.training.source import source_of

    return source_of(data, graph_of(plan), "shuffle", 1).epoch(epoch)


SCRIPT = """if True:
    import sys
    import poetopt as po
    from tests.training.support import plan_of, rows
    plan = plan_of("small", "adam")
    with po.Trainer(plan, lr=0.01, lr_schedule="cosine") as trainer:
        trainer.fit(rows(plan, 400), epochs=6, checkpoint=sys.argv[1], every=1, resume=True)
"""


def test_killed_and_resumed_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    plan = plan_of("small", "adam")
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)])
    while not list(tmp_path.glob("step-*.npz")) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() != 0
    with po.Trainer(plan, lr=0.01, lr_schedule="cosine") as trainer:
        ended = trainer.fit(rows(plan, 400), epochs=6, checkpoint=tmp_path, resume=True)
        found = copies(trainer.values())
    assert 0 < ended.resumed_at < ended.steps == 600
    with po.Trainer(plan, lr=0.01, lr_schedule="cosine") as trainer:
        trainer.fit(rows(plan, 400), epochs=6)
        equal(trainer.values(), found)


def inference(model: onnx.ModelProto, values: Mapping[str, Any]) -> onnx.ModelProto:
    """A model with those values, normalizing by its running statistics and without Dropout."""
    for proto in model.graph.initializer:
        if proto.name in values:
            proto.raw_data = np.ascontiguousarray(values[proto.name]).tobytes()
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            (mode,) = (a for a in node.attribute if a.name == "training_mode")
            mode.i = 0
        elif node.op_type == "Dropout":
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output[:1]))
    return model


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("residual", "resident"), ("residual", "paged"), ("dropout", "paged"), ("lenet", "resident")],
)
def test_evaluating_is_inference_with_the_values_so_far(name: str, parameters: str) -> None:
    plan = plan_of(name, "sgd", parameters)
    data, held_out = rows(plan, 20), rows(plan, 7, seed=9)
    with po.Trainer(plan, lr=0.05) as trainer:
        trainer.fit(data, epochs=2)
        before = copies(trainer.values())
        found = trainer.evaluate(held_out)
        equal(trainer.values(), before)
        session = onnxruntime.InferenceSession(
            inference(MODELS[name](), before).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        (first,) = session.get_inputs()
        size = first.shape[0]
        padded = np.resize(held_out[first.name], (-(-7 // size) * size, *held_out[first.name].shape[1:]))
        parts = [session.run(None, {first.name: padded[k : k + size]})[0] for k in range(0, len(padded), size)]
        scores = np.concatenate(parts)[:7].astype(np.float64)
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        labels = held_out["labels"]
        assert found.rows == 7
        assert found.loss == pytest.approx(-np.log(shares[np.arange(7), labels]).mean(), rel=1e-4)
        assert found.accuracy == (scores.argmax(axis=1) == labels).mean()
        assert trainer.evaluate([{name: array[:size] for name, array in data.items()}]).rows == size


def test_rates() -> None:
    from poetopt.training.source import parse_schedule

    rate = parse_schedule("cosine").rate
    assert [rate(0.4, step, 0, 4) for step in range(5)] == pytest.approx([0.4, 0.341421356, 0.2, 0.058578644, 0.0])
    assert [parse_schedule("step:2:0.1").rate(1.0, 0, epoch, 9) for epoch in range(5)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01]
    )
    assert parse_schedule("step:1:1e300").rate(1.0, 0, 2, 9) == math.inf
    for text in ("warmup:4,cosine", "warmup:50%,cosine"):
        rate = parse_schedule(text).rate
        wanted = [0.1, 0.2, 0.3, 0.4, 0.4, 0.341421356, 0.2, 0.058578644, 0.0]
        assert [rate(0.4, step, 0, 8) for step in range(9)] == pytest.approx(wanted)
    rate = parse_schedule("warmup:2,step:1:0.5").rate
    assert [rate(1.0, step, step // 2, 9) for step in range(5)] == [0.5, 1.0, 0.5, 0.5, 0.25]
    assert parse_schedule("warmup:3").needs_length is False
    assert parse_schedule("warmup:3%").needs_length is True
    for text in (
        "warmup",
        "warmup:",
        "warmup:0",
        "warmup:0%",
        "warmup:100%",
        "warmup:2,",
        "warmup:2,warm",
        "cosine,warmup:2",
    ):
        with pytest.raises(OptionError, match=r"before it may stand warmup:STEPS, as in warmup:500,cosine"):
            parse_schedule(text)


def test_what_diverges_is_not_saved_over_what_was_before(tmp_path: Path) -> None:
    plan = plan_of("small", "sgd")
    data = rows(plan, 40)
    with po.Trainer(plan, lr=1e-3) as trainer:
        trainer.fit(data, checkpoint=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.npz")}
    with (
        po.Trainer(plan, lr=1e30) as trainer,
        pytest.raises(
            ExecutionError, match=r"the loss is \w+ in step \d+ \(epoch 2\).*smaller --lr; the newest.*|NaN or"
        ),
    ):
        trainer.fit(data, epochs=3, checkpoint=tmp_path, resume=True, every=1)
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*.npz")}
    assert before.items() <= kept.items() or len(kept) == 2
    with po.Trainer(plan) as trainer:
        trainer.load(tmp_path)
        assert all(np.isfinite(value).all() for value in trainer.values().values())


@pytest.mark.torch
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_parameters_are_torchs(optimizer: str) -> None:
    torch = pytest.importorskip("torch")
    plan = plan_of("doubled", optimizer)
    graph = graph_of(plan)
    data = rows(plan, 80)
    with po.Trainer(plan, lr=0.01, weight_decay=0.02) as trainer:
        trainer.fit(data, epochs=5, batch_order="sequential")
        found = copies(trainer.values())
    tensors = {name: torch.nn.Parameter(torch.tensor(np.array(graph.values[name]))) for name in graph.trained}
    made = {
        "sgd": lambda p: torch.optim.SGD(p, 0.01, weight_decay=0.02),
        "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.02),
        "adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.02),
        "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.02),
    }[optimizer](list(tensors.values()))
    layers = sorted({name.rpartition(".")[0] for name in tensors})
    for k in list(range(0, 80, 4)) * 5:
        x = torch.tensor(data[graph.inputs[0]][k : k + 4]).reshape(4, -1)
        for layer in layers:
            x = torch.nn.functional.linear(x, tensors[f"{layer}.weight"], tensors[f"{layer}.bias"])
            x = torch.relu(x) if layer != layers[-1] else x
        made.zero_grad()
        torch.nn.functional.cross_entropy(x, torch.tensor(data["labels"][k : k + 4])).backward()
        made.step()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(found[name], tensor.detach().numpy(), rtol=1e-9, atol=1e-12)
