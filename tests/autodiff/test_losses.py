"""Losses: what `auto` picks, the inputs that they add, their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.autodiff.behind import going_back
from poetopt.autodiff.losses import label_rule
from poetopt.graph import Graph, LabelRule, Role
from poetopt.util.errors import ModelError, OptionError
from tests.support.autodiff.build import graph
from tests.support.autodiff.oracle import batch, run

Array = NDArray[Any]

BETWEEN = ["t = Transpose<perm=[0 3 2 1]>(h)", "p = Softmax<axis=-1>(t)", "y = Transpose<perm=[0 3 2 1]>(p)"]
"""A Softmax over axis 1 as exporters write it up to opset 12."""


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
            ModelError, match=r"'y' .* no two classes; choose --loss mse .*--loss cross-entropy .*--loss bce"
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


def test_mse_is_the_mean_of_squares() -> None:
    step = differentiate(scaled([3, 2]), loss="mse")
    assert step.tensors["target"].shape == (3, 2)
    feeds = batch(step, 0)
    found = run(step, feeds)
    difference = feeds["x"] * 1.5 - feeds["target"]
    assert found["loss"] == pytest.approx(np.mean(difference**2), rel=1e-6)
    assert found["w.grad"] == pytest.approx(np.mean(2 * difference * feeds["x"]), rel=1e-5)


@pytest.mark.parametrize("final", ["Softmax", "LogSoftmax"])
def test_probabilities_are_not_normalised_twice(final: str) -> None:
    step = differentiate(scaled([4, 3], f"y = {final}<axis=-1>(h)"), loss="cross-entropy")
    assert any(f"the input of the final {final}" in note for note in step.notes)
    feeds = batch(step, 0)
    found = run(step, feeds)
    logs = log_softmax(feeds["x"] * np.float32(1.5), 1)
    assert found["loss"] == pytest.approx(-np.mean(logs[np.arange(4), feeds["labels"]]), rel=1e-5)
    assert "y" in found


@pytest.mark.parametrize(
    ("shape", "tail", "axis", "logits"),
    [([2, 3, 4, 5], "y = Softmax<axis=-1>(h)", 3, "h"), ([2, 3, 4], "y = LogSoftmax<axis=1>(h)", 1, "h"),
     ([2, 3, 4, 5], "f = Flatten<axis=3>(h)\np = Softmax<axis=-1>(f)\ny = Reshape(p, shape)", 3, "h"),
     ([24, 5], "p = Softmax<axis=-1>(h)\ny = Reshape(p, shape)", 3, "h"),
     ([2, 5, 3, 4], "\n".join(BETWEEN), 1, "h"),
     ([2, 5, 3, 4], "p = Softmax<axis=1>(h)\ny = Transpose<perm=[0 2 3 1]>(p)", 3, "h"),
     ([2, 5, 3, 4], "c = Conv(h, k)\ny = Transpose<perm=[0 2 3 1]>(c)", 3, ""),
     ([2, 3, 4, 2], "y = MatMul(h, m)", 3, ""),
     ([2, 3, 4, 2], "a = MatMul(h, m)\nb = Add(a, b3)\ny = Transpose<perm=[0 3 1 2]>(b)", 1, "")],
)  # fmt: skip
def test_a_model_may_say_where_its_classes_are(shape: list[int], tail: str, axis: int, logits: str) -> None:
    weights = {"w": np.array([1.5], np.float32), "shape": np.array([2, 3, 4, 5])}
    weights |= {"m": np.ones((2, 3), np.float32), "b3": np.ones(3, np.float32)}
    weights["k"] = np.random.default_rng(1).standard_normal((6, 5, 1, 1)).astype(np.float32)
    step = differentiate(graph(f"h = Mul(x, w)\n{tail}", {"x": shape}, weights, ["y"], "*"))
    notes = [note for note in step.notes if "cross-entropy" in note]
    assert ("the input of the final" in notes[0]) == bool(logits)
    rank = len(step.tensors["y"].shape)
    assert (f"classes along axis {axis}" in notes[0]) == (rank > 2 or axis != rank - 1)
    feeds = batch(step, 0)
    found = run(step, feeds, ("y", "loss", "w.grad"))
    y = np.log(found["y"]) if "= Softmax" in tail else found["y"]
    labels = np.expand_dims(feeds["labels"], axis)
    assert labels.shape == tuple(1 if k == axis else d for k, d in enumerate(y.shape))
    assert found["loss"] == pytest.approx(-np.take_along_axis(log_softmax(y, axis), labels, axis).mean(), rel=1e-4)


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
        ModelError, match=r"several outputs; choose that .*--output NAME: 'y' \(2x2: choose its --loss\); 'z' "
    ):
        differentiate(both)
    with pytest.raises(OptionError, match="no output is called 'q'; there are y, z"):
        differentiate(both, output="q")


def test_names_that_the_model_has_already() -> None:
    weights = {"loss": np.ones((3, 2), np.float32), "labels": np.ones(2, np.float32)}
    step = differentiate(graph("h = MatMul(x, loss)\ny = Add(h, labels)", {"x": [4, 3]}, weights, ["y"]))
    assert (step.loss, step.added_inputs) == ("loss.2", ("labels.2",))
    assert "'loss' is called 'loss.2' here and 'labels' is called 'labels.2' here: the model has a" in step.notes[-1]
    assert not any("is called" in note for note in differentiate(dense([4, 3], 2)).notes)


def several(lines: str, outputs: list[str]) -> Graph:
    """A dense layer, z of [4, 3], and what else is made of it."""
    weights = {"w": np.ones((5, 3), np.float32), "k": np.array([0, 1]), "c": np.ones((4, 2), np.float32)}
    return graph(f"z = MatMul(x, w)\n{lines}", {"x": [4, 5]}, weights, outputs, "w")


REDUCED = "d = Sub(z, z)\ns = Mul(d, d)\nloss = ReduceMean<keepdims=0>(s)\nother = ReduceSum(z, k)"


@pytest.mark.parametrize(
    ("lines", "outputs", "on", "kind", "why"),
    [("l = ReduceMean<keepdims=0>(z)", ["z", "l"], "l", "none", "the only output that is a loss"),
     (REDUCED, ["other", "loss"], "loss", "none", "the only output that is a loss"),
     ("n = ArgMax<axis=1>(z)\np = Softmax<axis=-1>(z)", ["n", "p"], "p", "cross-entropy", "'n' (4x1: of type int64)"),
     ("p = Sigmoid(z)\nc2 = Identity(c)\nr = Relu(c2)", ["p", "r"], "p", "bce", "'r' (4x2: no trained parameter")],
)  # fmt: skip
def test_one_output_of_several_that_can_have_a_loss(
    lines: str, outputs: list[str], on: str, kind: str, why: str
) -> None:
    step = differentiate(several(lines, outputs))
    note = next(note for note in step.notes if note.startswith("loss: "))
    assert step.loss_kind == kind
    assert f"output '{on}' (" in note
    assert why in note


def test_several_outputs_are_listed_with_what_they_would_get() -> None:
    lines = (
        "p = Softmax<axis=-1>(z)\nq = Sigmoid(z)\nn = ArgMax<axis=1>(z)\nt = Mul(p, p)\nl = ReduceMax<keepdims=0>(z)"
    )
    found = several(lines, ["p", "q", "n", "t"])
    with pytest.raises(ModelError) as caught:
        differentiate(found)
    listed = str(caught.value).partition("--output NAME: ")[2].split("; ")
    assert listed == [
        "'p' (4x3: cross-entropy)",
        "'q' (4x3: bce)",
        "'t' (4x3: choose its --loss)",
        "'n' (4x1: of type int64)",
    ]
    assert differentiate(found, output="q").loss_kind == "bce"
    both = several(lines, ["l", "z"])
    assert differentiate(both).loss_kind == "none"
    assert differentiate(both, loss="mse").tensors["target"].shape == (4, 3)


def test_one_value_of_a_layer_is_no_loss() -> None:
    """A regression at batch 1 is one; a scalar that no layer wrote is the model's own."""
    weights = {"w": np.ones((5, 1), np.float32), "b": np.ones(1, np.float32), "axes": np.array([0, 1])}
    for tail in ("y = Identity(z)", "y = Squeeze(z, axes)"):
        found = graph(f"h = MatMul(x, w)\nz = Add(h, b)\n{tail}", {"x": [1, 5]}, weights, ["y"], "w")
        with pytest.raises(ModelError, match=r"--loss none if the output is the model's loss"):
            differentiate(found)
        assert differentiate(found, loss="none").loss_kind == "none"
    own = graph("h = MatMul(x, w)\nd = Mul(h, h)\ny = ReduceMean<keepdims=0>(d)", {"x": [4, 5]}, weights, ["y"], "w")
    assert (differentiate(own).loss_kind, own.tensors["y"].shape) == ("none", ())


@pytest.mark.parametrize(
    ("tail", "axis"),
    [("y = Conv(x, w)", 1), ("h = Conv(x, w, c)\nr = Relu(h)\ny = Add(r, column)", 1),
     ("h = Conv(x, w)\ny = BatchNormalization(h, c, c, c, c)", 1),
     ("h = Conv(x, w)\ny = MaxPool<kernel_shape=[2]>(h)", 1),
     ("u = Unsqueeze(x, two)\nh = Conv(u, w2)\ny = Squeeze(h, two)", 1), ("h = Conv(x, w)\ny = Add(h, h)", 1),
     ("h = Conv(x, w)\ny = Transpose<perm=[0 2 1]>(h)", 2),
     ("h = Conv(x, w)\nt = Transpose<perm=[0 2 1]>(h)\ny = Relu(t)", 2),
     ("h = Conv(x, w)\ny = MatMul(h, m)", 2), ("h = Conv(x, w)\ny = Reshape(h, other)", 2)],
)  # fmt: skip
def test_channels_of_a_convolution_over_sequences_are_classes(tail: str, axis: int) -> None:
    """As F.cross_entropy takes them: along axis 1 of [N, C, L]."""
    rng = np.random.default_rng(3)
    sizes = {"w": (5, 3, 3), "w2": (5, 3, 1, 3), "c": (5,), "column": (5, 1), "m": (6, 4)}
    weights: dict[str, Array] = {name: rng.uniform(0.1, 1, size).astype(np.float32) for name, size in sizes.items()}
    weights |= {"two": np.array([2]), "other": np.array([2, 3, 10])}
    step = differentiate(graph(tail, {"x": [2, 3, 8]}, weights, ["y"]))
    feeds = batch(step, 0)
    found = run(step, feeds, ("y", "loss"))
    labels = np.expand_dims(feeds["labels"], axis)
    assert labels.shape == tuple(1 if k == axis else d for k, d in enumerate(found["y"].shape))
    want = -np.take_along_axis(log_softmax(found["y"], axis), labels, axis).mean()
    assert found["loss"] == pytest.approx(want, rel=1e-4)
    assert any(f"classes along axis {axis})" in note for note in step.notes)


@pytest.mark.parametrize("rank", [2, 3])
def test_looking_back_asks_of_each_tensor_once(rank: int) -> None:
    """Sums of a tensor with what is made of it: there are a million ways back through 28 of them."""
    asked: list[str] = []

    def answer(name: str, ask: Callable[[str], bool]) -> bool:
        asked.append(name)
        level = int(name)
        return level <= 0 or all([ask(str(level - 1)), ask(str(level - rank + 1))])

    assert going_back("28", answer, False, 40)
    assert len(asked) == len(set(asked)) <= 30


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
    ("loss", "rule", "message"),
    [("mse", LabelRule(-100), "are for the loss cross-entropy, and this is mse; leave them out"),
     ("cross-entropy", LabelRule(None, (1.0, 2.0)), "2 weights for the 3 classes of output 'y'; give one for each")],
)  # fmt: skip
def test_what_a_rule_of_labels_is_not_for(loss: str, rule: LabelRule, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        differentiate(scaled([4, 3]), loss=loss, label_rule=rule)


@pytest.mark.parametrize(
    ("words", "message"),
    [({"ignore_index": "none"}, "must be a whole number, as in -100"), ({"ignore_index": 1.5}, "a whole number"),
     ({"class_weights": "1,a"}, "must be numbers, as in 1,0.5,2"), ({"class_weights": [0, 0]}, "not all 0"),
     ({"class_weights": "1,-1"}, "must be 0 or more"), ({"label_smoothing": "much"}, "must lie in 0..1, as in 0.1"),
     ({"label_smoothing": 1.5}, "must lie in 0..1")],
)  # fmt: skip
def test_words_of_such_rules(words: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        label_rule(**words)
