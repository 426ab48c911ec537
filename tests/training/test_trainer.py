"""Epochs by a plan: the steps of the unscheduled graph on the same batches, resumed to the same bits, and evaluated."""

from __future__ import annotations

import csv
import math
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

import poetopt as po
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.graph import LabelRule
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out
from poetopt.training.source import rows_in_order
from poetopt.util.errors import ExecutionError, ModelError, OptionError, OutputError, PlanError
from tests.autodiff.test_losses import mean_of
from tests.support.backends import embedding
from tests.support.training import MODELS, Data, graph_of, plan_of, rows, small

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
    from tests.support.training import plan_of, rows
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


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_evaluating_other_losses(loss: str) -> None:
    plan = plan_of("small", "sgd", loss=loss)
    graph = graph_of(plan)
    data = rows(plan, 9)
    rng = np.random.default_rng(1)
    shape = graph.tensors["target"].shape
    data["target"] = rng.integers(0, 2, (9, *shape[1:])).astype(np.float32)
    with po.Trainer(plan, lr=0.05) as trainer:
        trainer.fit(data)
        whole = {name: array[:8] for name, array in data.items()}
        found = trainer.evaluate(whole)
        steps = [trainer.step({name: array[k : k + 4] for name, array in data.items()}, lr=1e-30) for k in (0, 4)]
        assert found.loss == pytest.approx(np.mean(steps), rel=1e-5)
        assert (found.accuracy is None) == (loss == "mse")
        assert trainer.evaluate(data).rows == 9


def test_rules_of_labels_count_in_training_and_evaluating() -> None:
    rule: Any = {"ignore_index": -100, "class_weights": [1.0, 2.0, 0.5, 1.0, 3.0], "label_smoothing": 0.1}
    step = po.load(small()).differentiate(optimizer="sgd", **rule)
    data = rows(plan_of(), 11)
    data["labels"][[2, 7, 8]] = -100
    with po.Trainer(lay_out(store_all(step.cost("a72")))) as trainer:
        found = trainer.evaluate(data)
        first = {name: array[:4] for name, array in data.items()}
        assert trainer.evaluate(first).loss == pytest.approx(trainer.step(first), rel=1e-5)
    values = {name: np.asarray(value, np.float64) for name, value in graph_of(plan_of()).values.items()}
    hidden = np.maximum(data["input"] @ values["fc1.weight"].T + values["fc1.bias"], 0)
    scores = hidden @ values["fc2.weight"].T + values["fc2.bias"]
    kept = data["labels"] != -100
    rule = LabelRule(-100, tuple(rule["class_weights"]), 0.1)
    assert found.loss == pytest.approx(mean_of(scores, data["labels"], rule, 1), rel=1e-5)
    assert found.accuracy == (scores.argmax(axis=1) == data["labels"])[kept].mean()


def test_tables_by_rows_are_evaluated_and_written_whole(tmp_path: Path) -> None:
    made = embedding(2)
    onnx.save(made, tmp_path / "net.onnx")
    problem = po.load(tmp_path / "net.onnx").differentiate(optimizer="sgd").cost("a72", parameters="paged")
    plan = lay_out(store_all(problem))
    assert plan.problem.graph is not None
    assert plan.problem.graph.rows
    rng = np.random.default_rng(0)
    data: Data = {"ids": rng.integers(-11, 11, (30, 4)), "input": rng.standard_normal((30, 4, 6)).astype(np.float32)}
    data["labels"] = data["ids"][:, 0] % 4
    with po.Trainer(plan, lr=0.1) as trainer:
        trainer.fit(data, epochs=2)
        values = copies(trainer.values())
        found = trainer.evaluate(data)
        trainer.export(tmp_path / "trained.onnx")
        trainer.save(tmp_path / "kept")
    session = onnxruntime.InferenceSession(str(tmp_path / "trained.onnx"), providers=["CPUExecutionProvider"])
    feeds = [{name: data[name][k : k + 2] for name in ("ids", "input")} for k in range(0, 30, 2)]
    scores = np.concatenate([session.run(None, feed)[0] for feed in feeds])
    assert found.accuracy == (scores.argmax(axis=1) == data["labels"]).mean()
    assert values["table"].shape == (11, 6)
    with po.Trainer(plan, lr=0.1) as trainer:
        trainer.load(tmp_path / "kept")
        equal(trainer.values(), values)


def test_what_isn_t_asked_for_is_the_checkpoints(tmp_path: Path) -> None:
    plan = plan_of("small", "momentum")
    with po.Trainer(plan, lr=0.25, momentum=0.5) as trainer:
        trainer.save(tmp_path)
    with po.Trainer(plan, momentum=0.75) as trainer:
        trainer.load(tmp_path)
        assert trainer.hyperparameters == {"lr": 0.25, "momentum": 0.75, "weight_decay": 0.0}


def test_the_course_is_a_table_as_it_goes(tmp_path: Path) -> None:
    data, held_out, place = rows(plan_of(), 13), rows(plan_of(), 6, seed=9), tmp_path / "course.csv"
    asked: Any = {"validate": held_out, "metrics": "f1", "log": place, "checkpoint": tmp_path / "kept"}
    seen: list[int] = []

    def count(*_: object) -> None:
        seen.append(len(place.read_text().splitlines()))

    with po.Trainer(plan_of(), lr=0.1, lr_schedule="step:1:0.5") as trainer:
        ended = trainer.fit(data, epochs=2, after_epoch=count, **asked)
    assert seen == [4, 7]
    with place.open("a") as file:
        file.write("3,7,0.025,1.0,1.0,,,\n3,8,0.0")  # of steps that no checkpoint has, the last one cut short
    with po.Trainer(plan_of(), lr=0.1, lr_schedule="step:1:0.5") as trainer:
        ended = trainer.fit(data, epochs=3, resume=True, **asked)
    with place.open() as file:
        found = list(csv.DictReader(file))
    assert [(row["epoch"], row["step"]) for row in found] == [(str(1 + k // 3), str(k + 1)) for k in range(9)]
    assert [float(row["lr"]) for row in found] == pytest.approx([0.1] * 3 + [0.05] * 3 + [0.025] * 3)
    losses = np.array([float(row["loss"]) for row in found]).reshape(3, 3)
    assert list(losses.mean(axis=1)) == pytest.approx(ended.losses)
    for k, row in enumerate(found):
        said = ended.validations[k // 3] if k % 3 == 2 else None
        wanted = ("", "", "") if said is None else (said["loss"], said["accuracy"], said["metrics"]["f1"])
        assert (row["validation_loss"], row["accuracy"], row["f1"]) == tuple(map(str, wanted))
    with po.Trainer(plan_of()) as trainer, pytest.raises(OutputError, match=r"can't write .*no/course\.csv"):
        trainer.fit(data, log=tmp_path / "no" / "course.csv")


def test_the_course_as_events_of_tensorboard(tmp_path: Path) -> None:
    """TensorBoard's rule: of events in the files' order, those at or past a session's start don't count."""
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    data, held_out, place = rows(plan_of(), 13), rows(plan_of(), 6, seed=9), tmp_path / "runs"
    asked: Any = {"validate": held_out, "metrics": "f1", "log": place, "checkpoint": tmp_path / "kept"}
    with po.Trainer(plan_of(), lr=0.1) as trainer:
        trainer.fit(data, epochs=2, **asked)
    sorted((tmp_path / "kept").glob("step-*"))[-1].unlink()  # it goes on behind the first epoch
    with po.Trainer(plan_of(), lr=0.1) as trainer:
        ended = trainer.fit(data, epochs=3, resume=True, **{**asked, "log": str(place)})
    found: dict[str, dict[int, float]] = {}
    for file in sorted(place.glob("events.out.tfevents.*"), key=lambda one: (one.suffix, one.stat().st_mtime)):
        held = file.read_bytes()
        while held:
            (size,) = struct.unpack("<Q", held[:8])
            event, held = Event.FromString(held[12 : 12 + size]), held[16 + size :]
            if event.session_log.status == SessionLog.START:
                found = {tag: {k: v for k, v in one.items() if k < event.step} for tag, one in found.items()}
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    losses = np.array([found["loss"][k + 1] for k in range(9)]).reshape(3, 3)
    assert list(losses.mean(axis=1)) == pytest.approx(ended.losses)
    assert list(found["lr"].values()) == pytest.approx([0.1] * 9)
    for k, said in enumerate(ended.validations):
        told = [found[tag][3 * k + 3] for tag in ("validation_loss", "accuracy", "f1")]
        assert told == pytest.approx([said["loss"], said["accuracy"], said["metrics"]["f1"]])
    (tmp_path / "file").write_text("")
    with po.Trainer(plan_of()) as trainer, pytest.raises(OutputError):
        trainer.fit(data, log=tmp_path / "file" / "runs")


def test_a_step_that_ends_with_gradients_takes_plain_descent_or_an_update_of_ones_own() -> None:
    plan = plan_of("small", "none")
    (batch, *_) = po_batches(plan, rows(plan, 16), 0)
    with po.Trainer(plan, lr=0.5) as trainer:
        assert trainer.hyperparameters == {"lr": 0.5}
        trainer.step(batch)
        found = copies(trainer.values())
    with po.Trainer(plan) as trainer:
        trainer.step(batch, lr=0.0)
        for name, parameter in trainer.parameters.items():
            change: Any = trainer.gradients[name]
            np.copyto(parameter, parameter - change * parameter.dtype.type(0.5))
        equal(found, trainer.values())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("sgd", {"momentum": 0.9}, r"--momentum 0\.9: the plan's optimizer is sgd, which has lr, weight_decay; solve with"),
    ("sgd", {"lr": 0.0}, "--lr 0: must be more than 0"),
    ("sgd", {"lr": float("nan")}, "--lr nan: must be a number"),
    ("adam", {"hyperparameters": {"beta1": 1.0}}, "--beta1 1: must be at least 0 and less than 1"),
    ("adam", {"hyperparameters": {"step": 3}}, "--step 3: the plan's optimizer is adam, which has lr, beta1"),
    ("sgd", {"weight_decay": -1.0}, "--weight-decay -1: must be 0 or more"),
    ("adam", {"clip_norm": 1.0}, "--clip-norm 1: the plan's optimizer is adam, .*; solve with --optimizer and --cl"),
    (
        "none",
        {"momentum": 0.9},
        r"--momentum 0\.9: the plan's optimizer is none \(plain descent\), which has lr; solve",
    ),
    ("sgd", {"seed": -1}, "--seed -1: must be at least 0"),
    *(
        ("sgd", {"lr_schedule": text}, f"--lr-schedule {text}: must be constant, cosine, or step:EPOCHS:FACTOR")
        for text in ("", "linear", "step", "step:0:0.1", "step:3", "step:1:nan", "cosine:3", "step:1:0.1:2")
    ),
]


@pytest.mark.parametrize(("optimizer", "options", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_what_the_step_can_t_do_is_refused(optimizer: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        po.Trainer(plan_of("small", optimizer), **options)


STEPS: list[tuple[Callable[[Data], object], dict[str, Any], str]] = [
    (lambda b: {**b, "input": b["input"] * np.float32(np.nan)}, {}, r"'input' holds NaN, which has no gradient"),
    (lambda b: {**b, "input": b["input"] + np.float32(np.inf)}, {}, r"'input' holds infinity, which has no gradient"),
    (lambda b: {**b, "labels": b["labels"] + 9}, {}, r"'labels' holds the label \d+; with 5 to choose from"),
    (lambda b: {"input": b["input"]}, {}, r"it lacks the input 'labels'; it has 'input'"),
    (lambda b: {**b, "input": b["input"][:3]}, {}, r"'input' has shape \[3, 12\]; it must be 'input' \(float32"),
    (lambda b: {**b, "input": b["input"].astype(np.float64)}, {}, r"'input' has type float64; it must be 'input'"),
    (lambda b: {**b, "input": [[1], [2, 3]]}, {}, r"'input' is not an array"),
    (lambda b: [b["input"]], {}, "it must be arrays by name, or one array for each of 'input', 'labels' in order"),
    (lambda b: b, {"lr": float("nan")}, "--lr nan: must be a number"),
    (lambda b: b, {"lr": -1.0}, "--lr -1: must be more than 0"),
    (lambda b: b, {"lr": float("inf")}, "--lr inf: too large"),
    (lambda b: b, {"lr": "fast"}, "--lr 'fast': must be a number"),
    (lambda b: b, {"weight_decay": float("nan")}, "--weight-decay nan: "),
]


@pytest.mark.parametrize("optimizer", ["sgd", "none"])
@pytest.mark.parametrize(("change", "rates", "message"), STEPS, ids=[message for _, _, message in STEPS])
def test_a_step_is_refused_as_a_fit_is(
    optimizer: str, change: Callable[[Data], object], rates: dict[str, Any], message: str
) -> None:
    plan = plan_of("small", optimizer)
    batch: Any = change(rows(plan, 4))
    with po.Trainer(plan) as trainer:
        before, own = copies(trainer.values()), dict(trainer.hyperparameters)
        with pytest.raises((ModelError, OptionError), match=message):
            trainer.step(batch, **{"lr": rates["lr"]} if "lr" in rates else trainer.hyperparameters.update(rates) or {})
        trainer.hyperparameters.update(rates)
        with pytest.raises((ModelError, OptionError), match=message):
            trainer.fit([batch])
        trainer.hyperparameters.clear()
        trainer.hyperparameters.update(own)
        assert trainer.taken == 0
        equal(trainer.values(), before)
        assert np.isfinite(trainer.step(rows(plan, 4)))


def test_nothing_follows_a_close(tmp_path: Path) -> None:
    plan = plan_of("small")
    data = rows(plan, 4)
    with po.Trainer(plan) as trainer:
        trainer.step(data)
        trainer.save(tmp_path)
    for act in (
        lambda: trainer.step(data), lambda: trainer.fit(data), lambda: trainer.evaluate(data), trainer.values,
        lambda: trainer.save(tmp_path), lambda: trainer.load(tmp_path), lambda: trainer.export(tmp_path / "x.onnx"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match="this Trainer is closed"):
            act()
    trainer.close()


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
        with pytest.raises(OptionError, match=r"optionally after warmup:STEPS as in warmup:500,cosine"):
            parse_schedule(text)


def test_checkpoints_that_don_t_fit(tmp_path: Path) -> None:
    plan = plan_of("small", "sgd")
    data = rows(plan, 12)
    with po.Trainer(plan, lr=0.1) as trainer:
        trainer.fit(data, checkpoint=tmp_path)
        with pytest.raises(OptionError, match=r"it holds checkpoints of another training\. Resume it with --resume"):
            trainer.fit(data, checkpoint=tmp_path)
        with pytest.raises(OptionError, match=r"made with --batch-order shuffle, and this training has sequential"):
            trainer.fit(data, checkpoint=tmp_path, resume=True, batch_order="sequential")
        with pytest.raises(OptionError, match=r"it was made with other values than those of the data. Give the same"):
            trainer.fit(rows(plan, 12, seed=1), checkpoint=tmp_path, resume=True)
        with pytest.raises(OptionError, match=r"made with a row count of 12, and this training has 8"):
            trainer.fit({name: array[:8] for name, array in data.items()}, checkpoint=tmp_path, resume=True)
        with pytest.raises(OptionError, match="--resume: there is no folder of checkpoints"):
            trainer.fit(data, resume=True)
        with pytest.raises(OptionError, match="--lr-schedule cosine: it depends on the number of batches"):
            po.Trainer(plan, lr_schedule="cosine").fit(lambda epoch: iter([]))
        with pytest.raises(ModelError, match="validation for 2 epochs: the data is an iterator"):
            trainer.fit(data, epochs=2, validate=iter([rows(plan, 4)]))
        assert trainer.taken == 3, "no step was taken for what is refused"
        with pytest.raises(PlanError, match="there is no checkpoint in it"):
            trainer.load(tmp_path / "none")
    for name, optimizer, message in (
        ("lenet", "sgd", r"to another network \(small\): operators, shapes or types differ from those of 'lenet'"),
        ("other", "sgd", r"it belongs to another network \(small\): operators, shapes or types"),
        ("small", "adam", "made with the optimizer sgd, and this training uses adam"),
    ):
        with po.Trainer(plan_of(name, optimizer)) as other:
            before = copies(other.values())
            with pytest.raises(PlanError, match=message):
                other.load(tmp_path)
            equal(other.values(), before)


def moved(weight: str) -> ModelProto:
    """The same structure with another number in one weight."""
    model = small()
    proto = next(proto for proto in model.graph.initializer if proto.name == weight)
    value = numpy_helper.to_array(proto).copy()
    value.flat[0] += 1
    proto.CopyFrom(numpy_helper.from_array(value, weight))
    return model


@pytest.mark.parametrize("weight", ["fc1.weight", "fc2.weight"])
def test_checkpoints_are_of_the_weights_that_training_began_with(weight: str, tmp_path: Path) -> None:
    """The first is frozen, the second trained."""
    models = small(), moved(weight)
    plans = [
        lay_out(store_all(po.load(model, train="fc2.*").differentiate(optimizer="sgd").cost("a72"))) for model in models
    ]
    with po.Trainer(plans[0]) as trainer:
        trainer.fit(rows(plans[0], 12), checkpoint=tmp_path)
    with po.Trainer(plans[1]) as trainer:
        before = copies(trainer.values())
        with pytest.raises(PlanError, match=r"began with other weights than those of small\. Give the model"):
            trainer.fit(rows(plans[1], 12), epochs=2, checkpoint=tmp_path, resume=True)
        equal(trainer.values(), before)


def test_what_a_resumed_training_does_otherwise_is_said(tmp_path: Path) -> None:
    plan = plan_of("small", "momentum")
    data, held_out, others = rows(plan, 12), rows(plan, 8, seed=1), rows(plan, 8, seed=2)
    with po.Trainer(plan, lr=0.25, lr_schedule="cosine") as trainer:
        trainer.fit(data, validate=held_out, checkpoint=tmp_path)
    said: list[str] = []
    more: dict[str, Any] = {"checkpoint": tmp_path, "resume": True, "noted": said.append}
    with po.Trainer(plan, lr=0.125, lr_schedule="cosine") as trainer:
        ended = trainer.fit(data, epochs=2, validate=held_out, **more)
    assert [each["epoch"] for each in ended.validations] == [1, 2]
    assert tuple(said) == ended.changed
    assert ended.changed == (
        "--lr 0.125 is used; the checkpoint was made with 0.25",
        "--epochs 2 is used; the checkpoint's cosine of rates was over 1 epochs",
    )
    for validate, epochs, judged in ((None, 3, []), (others, 3, [3]), (others, 4, [3, 4]), (held_out, 5, [5])):
        with po.Trainer(plan, lr_schedule="cosine") as trainer:
            ended = trainer.fit(data, epochs=epochs, validate=validate, checkpoint=tmp_path, resume=True)
        assert [each["epoch"] for each in ended.validations] == judged
        assert (ended.accuracy is None) == (validate is None)
        assert ended.hyperparameters["lr"] == 0.125


def test_checkpoints_know_how_labels_and_rates_were_taken(tmp_path: Path) -> None:
    def plan(**asked: Any) -> Any:
        step = po.load(small()).differentiate(optimizer="sgd", **asked)
        return lay_out(store_all(step.cost("a72")))

    data = rows(plan_of(), 8)
    with po.Trainer(plan(label_smoothing=0.1, rates={"fc1.*": 0.5})) as trainer:
        trainer.fit(data, checkpoint=tmp_path)
    with po.Trainer(plan(label_smoothing=0.1, rates="fc1.*=0.5")) as trainer:
        trainer.fit(data, epochs=2, checkpoint=tmp_path, resume=True)
    for asked in ({"label_smoothing": 0.1}, {"label_smoothing": 0.2, "rates": {"fc1.*": 0.5}}):
        with (
            po.Trainer(plan(**asked)) as trainer,
            pytest.raises(PlanError, match="Give the plan that it was made with"),
        ):
            trainer.fit(data, epochs=3, checkpoint=tmp_path, resume=True)


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


def test_bad_data_in_the_middle_costs_nothing_that_was_learned(tmp_path: Path) -> None:
    plan = plan_of("small", "sgd")
    batches = list(po_batches(plan, rows(plan, 12), 0))
    with po.Trainer(plan, lr=0.1) as trainer:
        with pytest.raises(ModelError, match="batch 3 of epoch 1: it must be arrays by name"):
            trainer.fit([*batches, "no batch"], checkpoint=tmp_path)
        values = copies(trainer.values())
    with po.Trainer(plan) as trainer:
        trainer.load(tmp_path)
        assert trainer.taken == 3
        equal(trainer.values(), values)
