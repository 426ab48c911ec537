"""Metrics of a validation: by their definitions, written anew with loops, over batches of any size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poetopt as po
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out
from poetopt.training.metrics import METRICS, metrics_of
from poetopt.util.errors import OptionError
from tests.support.training import Data, graph_of, plan_of, rows, small


def counts(found: list[int], true: list[int], classes: int) -> list[tuple[int, int, int]]:
    """True positives, false positives and false negatives of each class that is named."""
    made = []
    for k in range(classes):
        pairs = list(zip(found, true, strict=True))
        tp, fp, fn = pairs.count((k, k)), found.count(k), true.count(k)
        if fp + fn:
            made.append((tp, fp - tp, fn - tp))
    return made


def by_hand(name: str, scores: Any, labels: Any) -> float:
    """Of scores [rows, classes] and labels [rows]."""
    found, true = [int(np.argmax(row)) for row in scores], [int(label) for label in labels]
    each = counts(found, true, scores.shape[1])
    if name == "top5":
        return float(np.mean([label in np.argsort(-row)[:5] for row, label in zip(scores, true, strict=True)]))
    if name == "f1":
        return float(np.mean([2 * tp / (2 * tp + fp + fn) for tp, fp, fn in each]))
    if name == "iou":
        return float(np.mean([tp / (tp + fp + fn) for tp, fp, fn in each]))
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return float(np.exp(-np.mean([np.log(row[label]) for row, label in zip(shares, true, strict=True)])))


@pytest.mark.parametrize("name", ["top5", "f1", "iou", "perplexity"])
@pytest.mark.parametrize("planes", [(), (3, 4)], ids=["rows", "planes"])
def test_of_classes(name: str, planes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    scores, labels = rng.standard_normal((22, 9, *planes)), rng.integers(0, 8, (22, *planes))
    (make,) = metrics_of([name], graph_of(plan_of()))
    metric = make()
    for part in (slice(0, 9), slice(9, 10), slice(10, 22)):
        metric.add(scores[part], labels[part])
    flat = np.moveaxis(scores, 1, -1).reshape(-1, 9)
    assert metric.value == pytest.approx(by_hand(name, flat, labels.reshape(-1)))
    assert metric.name == name


def test_of_numbers_and_of_sides() -> None:
    rng = np.random.default_rng(4)
    output, target = rng.standard_normal((12, 3)), rng.standard_normal((12, 3))
    mae = METRICS["mae"]["mse"]()
    for part in (slice(0, 7), slice(7, 12)):
        mae.add(output[part], target[part])
    assert mae.value == pytest.approx(np.abs(output - target).mean())
    sides = (target > 0).astype(np.float32)
    f1, iou = METRICS["f1"]["bce"](), METRICS["iou"]["bce"]()
    for metric in (f1, iou):
        metric.add(output[:5], sides[:5])
        metric.add(output[5:], sides[5:])
    each = [counts([int(v > 0) for v in output[:, k]], [int(v) for v in sides[:, k]], 2)[-1] for k in range(3)]
    assert f1.value == pytest.approx(np.mean([2 * tp / (2 * tp + fp + fn) for tp, fp, fn in each]))
    assert iou.value == pytest.approx(np.mean([tp / (tp + fp + fn) for tp, fp, fn in each]))


def margin(scores: Any, labels: Any) -> Any:
    """The score of each label over the mean."""
    return scores[np.arange(len(labels)), labels] - scores.mean(axis=1)


def test_each_epoch_has_them_and_one_of_ones_own(tmp_path: Path) -> None:
    data, held_out = rows(plan_of(), 20), rows(plan_of(), 7, seed=9)
    asked: list[str | Callable[..., Any]] = ["f1", margin]
    with po.Trainer(plan_of(), lr=0.1) as trainer:
        ended = trainer.fit(data, epochs=2, validate=held_out, metrics=asked, checkpoint=tmp_path)
        found = trainer.evaluate(held_out, metrics=asked)
        assert ended.metrics == found.metrics
        assert [set(v["metrics"]) for v in ended.validations] == [{"f1", "margin"}] * 2
        values = {name: np.asarray(value, np.float64) for name, value in trainer.values().items()}
    hidden = np.maximum(held_out["input"] @ values["fc1.weight"].T + values["fc1.bias"], 0)
    scores = hidden @ values["fc2.weight"].T + values["fc2.bias"]
    assert found.metrics["margin"] == pytest.approx(margin(scores, held_out["labels"]).mean(), rel=1e-4)
    assert found.metrics["f1"] == pytest.approx(by_hand("f1", scores, held_out["labels"]))
    with po.Trainer(plan_of(), lr=0.1) as trainer:
        again = trainer.fit(data, epochs=3, validate=held_out, metrics="f1", checkpoint=tmp_path, resume=True)
        assert again.validations[:2] == ended.validations
    assert json.loads(json.dumps(again.to_dict()))["metrics"].keys() <= {"f1", "margin"}


def test_labels_that_are_left_out_don_t_count() -> None:
    step = po.load(small()).differentiate(ignore_index=-1)
    data: Data = rows(plan_of(), 11)
    data["labels"][[0, 5]] = -1
    kept = {name: array[data["labels"] != -1] for name, array in data.items()}
    with po.Trainer(lay_out(store_all(step.cost("a72")))) as trainer:
        found = trainer.evaluate(data, metrics="f1,perplexity").metrics
        assert found == pytest.approx(trainer.evaluate(kept, metrics="f1,perplexity").metrics)


@pytest.mark.parametrize(
    ("loss", "asked", "message"),
    [("cross-entropy", "f2", "--metrics f2: unknown. Metrics of the loss cross-entropy: top5, f1, iou"),
     ("mse", "f1", "--metrics f1: it needs another loss. Metrics of the loss mse: mae")],
)  # fmt: skip
def test_those_that_a_loss_has_not(loss: str, asked: str, message: str) -> None:
    with po.Trainer(plan_of(loss=loss)) as trainer:
        data = rows(plan_of(loss=loss), 8)
        if loss == "mse":
            data["target"] = np.zeros((8, 5), np.float32)
        with pytest.raises(OptionError, match=message):
            trainer.fit(data, validate=data, metrics=asked)
        with pytest.raises(OptionError, match="--metrics: metrics need validation data"):
            trainer.fit(data, metrics=asked)
