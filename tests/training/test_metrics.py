"""Metrics of a validation: by their definitions, written anew with loops, over batches of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poetopt.training.metrics import metrics_of
from tests.training.support import graph_of, plan_of


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
