"""Losses: what `auto` picks, the inputs that they add, their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.graph import Graph, LabelRule, Role
from poetopt.util.errors import ModelError, OptionError
from tests.autodiff.build import graph
from tests.autodiff.oracle import batch, run

Array = NDArray[Any]


def scaled(shape: list[int], tail: str = "y = Identity(h)", output: str = "y") -> Graph:
    """A model that multiplies its input by a trained scalar."""
    return graph(f"h = Mul(x, w)\n{tail}", {"x": shape}, {"w": np.array([1.5], np.float32)}, [output])


def log_softmax(x: Array, axis: int) -> Array:
    """In float64."""
    x = x.astype(np.float64)
    x = x - x.max(axis, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis, keepdims=True)))


def dense(shape: list[int], outputs: int, tail: str = "") -> Graph:
    """A model that ends in a layer, or in `tail` of what it writes, h."""
    weights = {"w": np.random.default_rng(0).standard_normal((shape[-1], outputs)).astype(np.float32)}
    return graph(f"h = MatMul(x, w)\n{tail or 'y = Identity(h)'}", {"x": shape}, weights, ["y"], "w")


@pytest.mark.parametrize(
    ("shape", "outputs", "kind"),
    [([4, 3], 2, "cross-entropy"), ([2, 5, 3], 7, "cross-entropy"), ([2, 3, 4, 4], 5, "cross-entropy"),
     ([4, 3], 3, "mse"), ([4, 3], 1, ""), ([1, 3], 1, "")],
)  # fmt: skip
def test_auto_reads_the_loss_off_the_model_and_says_so_or_asks(shape: list[int], outputs: int, kind: str) -> None:
    found = dense(shape, outputs)
    if not kind:
        with pytest.raises(
            ModelError, match=r"'y' .* no two classes; say --loss mse .*--loss cross-entropy .*--loss bce"
        ):
            differentiate(found)
        return
    step = differentiate(found)
    assert step.loss_kind == kind
    assert any(kind in note and "'y'" in note for note in step.notes)
    assert step.tensors["loss"].role is Role.LOSS
    assert step.tensors["loss"].size == 1


@pytest.mark.parametrize(
    ("shape", "axis"), [([5], 0), ([4, 3], 1), ([2, 5, 3], 2), ([2, 3, 4, 5], 1), ([2, 3, 2, 2, 2], 1)]
)
def test_cross_entropy_is_the_mean_over_all_labels(shape: list[int], axis: int) -> None:
    step = differentiate(scaled(shape), loss="cross-entropy")
    labels = step.tensors["labels"]
    assert labels.role is Role.INPUT
    assert labels.dtype == "int64"
    assert labels.shape == tuple(d for k, d in enumerate(shape) if k != axis)
    feeds = batch(step, 0)
    found = run(step, feeds)
    logs = log_softmax(feeds["x"] * np.float32(1.5), axis)
    picked = np.take_along_axis(logs, np.expand_dims(feeds["labels"], axis), axis)
    assert found["loss"] == pytest.approx(-picked.mean(), rel=1e-5)
    onehot = np.zeros(shape)
    np.put_along_axis(onehot, np.expand_dims(feeds["labels"], axis), 1.0, axis)
    slope = np.sum((np.exp(logs) - onehot) * feeds["x"]) / max(labels.size, 1)
    assert found["w.grad"] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_none_takes_the_models_own_loss_and_names_it() -> None:
    step = differentiate(scaled([4, 3], "y = ReduceMean<keepdims=0>(h)"), loss="none")
    assert (step.loss, step.outputs, step.added_inputs) == ("loss", ("y",), ())
    found = run(step, feeds := batch(step, 0))
    assert found["loss"] == found["y"]
    assert found["w.grad"] == pytest.approx(feeds["x"].mean(), rel=1e-5)
    own = differentiate(scaled([4, 3], "loss = ReduceMean<keepdims=0>(h)", "loss"))
    assert (own.loss, own.loss_kind, own.outputs) == ("loss", "none", ("loss",))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OptionError, match="unknown loss 'hinge'; choose one of auto, cross-entropy, bce, mse, none"):
        differentiate(scaled([4, 3]), loss="hinge")
    with pytest.raises(ModelError, match=r"at least two classes .*--loss mse"):
        differentiate(scaled([4, 1]), loss="cross-entropy")
    with pytest.raises(ModelError, match=r"needs an output of one element.*\[4, 3\]"):
        differentiate(scaled([4, 3]), loss="none")
    both = graph("y = Mul(x, w)\nz = Relu(y)", {"x": [2, 2]}, {"w": np.ones(1, np.float32)}, ["y", "z"])
    with pytest.raises(
        ModelError,
        match=r"several outputs; say which .*--output NAME: 'y' \(2x2: --loss says which\); 'z' ",
    ):
        differentiate(both)
    with pytest.raises(OptionError, match="no output 'q'; there are y, z"):
        differentiate(both, output="q")


def mean_of(x: Array, labels: Array, rule: LabelRule, axis: int) -> float:
    """The cross-entropy with labels left out, classes weighted and labels smoothed, as torch's page has it."""
    logs = np.moveaxis(log_softmax(x, axis), axis, -1).reshape(-1, x.shape[axis])
    weights = np.array(rule.class_weights or [1.0] * x.shape[axis])
    total = count = 0.0
    for row, label in zip(logs, labels.reshape(-1), strict=True):
        if label != rule.ignore_index:
            total -= (1 - rule.smoothing) * weights[label] * row[label]
            total -= rule.smoothing / len(row) * float(np.sum(weights * row))
            count += weights[label]
    return float(total / count)


RULES = [
    LabelRule(*rule)  # type: ignore[arg-type]
    for rule in [(-100,), (None, (1.0, 0.5, 2.0)), (None, (), 0.1), (2, (1.0, 0.5, 0.0), 0.3), (-1, (), 0.2)]
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("shape", "axis"), [([6, 3], 1), ([2, 5, 3], 2), ([2, 3, 4, 4], 1)], ids=str)
def test_labels_left_out_weighted_and_smoothed(shape: list[int], axis: int, rule: LabelRule) -> None:
    step = differentiate(scaled(shape), loss="cross-entropy", label_rule=rule)
    feeds = dict(batch(step, 0))
    if rule.ignore_index is not None:
        np.put(feeds["labels"], [1, -1], rule.ignore_index)
    found = run(step, feeds)
    near = [
        mean_of(feeds["x"].astype(np.float64) * w, feeds["labels"], rule, axis) for w in (1.5, 1.5 + 1e-4, 1.5 - 1e-4)
    ]
    assert found["loss"] == pytest.approx(near[0], rel=1e-5)
    assert found["w.grad"] == pytest.approx((near[1] - near[2]) / 2e-4, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("weights", "smoothing", "loss", "slope"),
    [((), 0.0, 1.48421001, 0.30061401), ((1.0, 0.5, 2.0, 3.0), 0.0, 1.9136306, 0.58381708),
     ((), 0.2, 1.54804587, 0.34317127), ((1.0, 0.5, 2.0, 3.0), 0.2, 1.99386107, 0.61577753)],
)  # fmt: skip
def test_they_are_torchs(weights: tuple[float, ...], smoothing: float, loss: float, slope: float) -> None:
    """Of torch.nn.CrossEntropyLoss, of scores that are numpy's RandomState(5)."""
    step = differentiate(scaled([6, 4]), loss="cross-entropy", label_rule=LabelRule(-100, weights, smoothing))
    scores = np.random.RandomState(5).standard_normal((6, 4)).astype(np.float32)
    found = run(step, {"x": scores / np.float32(1.5), "labels": np.array([0, 3, -100, 1, 1, 2])})
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["w.grad"] == pytest.approx(slope, rel=1e-5)
