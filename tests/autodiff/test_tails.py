"""Hidden Softmaxes and Sigmoids: the loss is that of the probabilities, and its gradients are those of float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import Graph, Node, TrainingGraph
from poetopt.util.errors import ModelError
from tests.support.autodiff.build import graph
from tests.support.autodiff.errors import TOLERANCE, evaluator
from tests.support.autodiff.oracle import run

Array = NDArray[Any]

HEAD = "a = MatMul(x, w1)\nr = Tanh(a)\nh = MatMul(r, w2)\nz = Add(h, b)\n"
SINGLE = {"tiny": 1e-7, "one": 1.0, "minus": -1.0, "half": 0.5, "two": 2.0, "low": 0.2, "zero": [0.0]}
WHOLE = {"nought": 0, "first": [0], "place": [1], "last": [-1], "both": [0, 1], "row": [4, 1, 3], "wide": [4, 3]}
WHOLE |= {"nought1": [0], "two1": [2]}
CONSTANTS: dict[str, Array] = {
    **{name: np.array(value, np.float32) for name, value in SINGLE.items()},
    **{name: np.array(value, np.int64) for name, value in WHOLE.items()},
    "w3": np.eye(3, dtype=np.float32) - np.float32(0.5),
    "mix": np.array([[0.5, 0.5, 0], [0, 1, 0], [0, 0.4, 0.6]], np.float32),
    "zero1": np.array(0, np.float32),
}


def model(tail: str, shape: tuple[int, ...] = (4, 5), outputs: int = 3, seed: int = 0) -> Graph:
    """Two dense layers with Tanh between, and a tail that writes y of z [..., outputs]."""
    rng = np.random.default_rng(seed)
    sizes = {"w1": (shape[-1], 6), "w2": (6, outputs), "b": (outputs,)}
    weights = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    return graph(HEAD + tail, {"x": list(shape)}, {**weights, **CONSTANTS}, ["y"], "w1,w2,b")


def doubled(found: Graph) -> Graph:
    """The same in float64."""
    tensors = {n: replace(t, dtype="float64") if t.dtype == "float32" else t for n, t in found.tensors.items()}
    values = {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in found.values.items()}
    operators = tuple(replace(o, nodes=tuple(_double(node) for node in o.nodes)) for o in found.operators)
    return replace(found, tensors=tensors, values=values, operators=operators)


def _double(node: Node) -> Node:
    if node.attributes.get("to") != 1:
        return node
    return replace(node, attributes={"to": 11})


def nll(y: Array, labels: Array, axis: int) -> float:
    """Of probabilities."""
    return float(-np.log(np.take_along_axis(y, np.expand_dims(labels, axis), axis)).mean())


def bce(y: Array, target: Array) -> float:
    """Of probabilities."""
    return float(-(target * np.log(y) + (1 - target) * np.log(1 - y)).mean())


def mse(y: Array, target: Array) -> float:
    """Of anything."""
    return float(((y - target) ** 2).mean())


def log_nll(y: Array, labels: Array, axis: int) -> float:
    """Of their logarithms."""
    return nll(np.exp(y), labels, axis)


def feeds_of(step: TrainingGraph, seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    drawn: dict[str, Array] = {}
    for name in step.inputs:
        tensor = step.tensors[name]
        if name == "labels":
            drawn[name] = rng.integers(0, 2, tensor.shape)
        elif name == "target":
            drawn[name] = rng.uniform(0.05, 0.95, tensor.shape).astype(tensor.dtype)
        else:
            drawn[name] = rng.standard_normal(tensor.shape).astype(tensor.dtype)
    return drawn


def check(found: Graph, kind: str, value: Callable[[Array, dict[str, Array]], float], *, exact: bool = True) -> None:
    """The loss of the training graph is `value` of the model's own output; so are its slopes, in float64."""
    step = differentiate(found)
    assert step.loss_kind == kind, step.notes[-1]
    feeds = feeds_of(step)
    got = run(step, feeds, ("y", "loss"))
    assert got["loss"] == pytest.approx(value(got["y"].astype(np.float64), feeds), rel=2e-5 if exact else 2e-3)
    step = differentiate(doubled(found))
    feeds = feeds_of(step)
    ask = evaluator(step, ("y", "loss", *step.gradients.values()))
    weights: dict[str, Array] = {name: np.asarray(step.values[name]) for name in step.trained}
    y, loss, *gradients = ask({**feeds, **weights})
    assert loss == pytest.approx(value(y, feeds), rel=1e-5 if exact else 2e-3)
    rng = np.random.default_rng(5)
    for name, gradient in zip(step.gradients, gradients, strict=True):
        direction = rng.standard_normal(gradient.shape)
        sides = []
        for sign in (1, -1):
            moved = {**weights, name: weights[name] + sign * 1e-5 * direction}
            y, loss, *_ = ask({**feeds, **moved})
            sides.append(value(y, feeds) if exact else float(loss))
        slope = (sides[0] - sides[1]) / 2e-5
        scale = max(1.0, float(np.linalg.norm(gradient) * np.linalg.norm(direction)))
        assert abs(slope - float(np.sum(gradient * direction))) <= TOLERANCE * scale, name


SOFTMAXES = {
    "plain": "y = Softmax<axis=-1>(z)",
    "cast": "p = Softmax<axis=-1>(z)\nq = Cast<to=11>(p)\ny = Cast<to=1>(q)",
    "clip": "p = Softmax<axis=-1>(z)\ny = Clip(p, tiny, one)",
    "dropout": "p = Softmax<axis=-1>(z)\ny = Dropout(p, half)",
    "views": "p = Softmax<axis=-1>(z)\nq = Reshape(p, row)\ns = Squeeze(q, place)\ny = Identity(s)",
    "temperature": "t = Div(z, two)\ny = Softmax<axis=-1>(t)",
    "row": "p = Softmax<axis=-1>(z)\nq = Clip(p, tiny, one)\ns = Cast<to=1>(q)\ny = Reshape(s, row)",
}
"""What writes y, of shape [..., 3], from logits z."""


@pytest.mark.parametrize("name", SOFTMAXES)
def test_a_softmax_is_found(name: str) -> None:
    check(model(SOFTMAXES[name]), "cross-entropy", lambda y, feeds: nll(y, feeds["labels"], y.ndim - 1))


def test_to_half_precision_and_back() -> None:
    """To rounding of the output, which has ten bits; the loss is the plain one."""
    plain, cast = (
        differentiate(model(f"p = Softmax<axis=-1>(z)\n{tail}"))
        for tail in ("y = Identity(p)", "q = Cast<to=10>(p)\ny = Cast<to=1>(q)")
    )
    feeds = feeds_of(plain)
    want, got = run(plain, feeds), run(cast, feeds)
    assert all(np.array_equal(want[name], got[name]) for name in ("loss", *plain.gradients.values()))
    assert not np.array_equal(want["y"], got["y"])


@pytest.mark.parametrize(
    ("shape", "tail", "axis"),
    [((4, 5), "p = Softmax<axis=-1>(z)\ny = Transpose<perm=[1 0]>(p)", 0),
     ((4, 5), "y = Softmax<axis=0>(z)", 0),
     ((2, 3, 5), "y = Softmax<axis=1>(z)", 1),
     ((2, 3, 4, 5), "y = Softmax<axis=2>(z)", 2),
     ((2, 3, 4, 5), "p = Softmax<axis=1>(z)\ny = Transpose<perm=[0 2 3 1]>(p)", 3),
     ((2, 3, 4, 5), "p = Softmax<axis=2>(z)\ny = Transpose<perm=[3 2 1 0]>(p)", 1),
     ((2, 3, 4, 5), "t = Transpose<perm=[0 3 2 1]>(z)\np = Softmax<axis=1>(t)\ny = Transpose<perm=[0 3 2 1]>(p)", 3),
     ((2, 2, 1, 5), "p = Softmax<axis=-1>(z)\nq = Transpose<perm=[1 2 0 3]>(p)\ny = Reshape(q, row)", 2),
     ((2, 3, 4, 5), "p = Softmax<axis=1>(z)\nq = Transpose<perm=[1 0 2 3]>(p)\ny = Flatten<axis=1>(q)", 0)],
)  # fmt: skip
def test_classes_lie_where_the_softmax_was(shape: tuple[int, ...], tail: str, axis: int) -> None:
    check(model(tail, shape), "cross-entropy", lambda y, feeds: nll(y, feeds["labels"], axis))


@pytest.mark.parametrize(
    "tail",
    ["p = Softmax<axis=-1>(z)\ny = Log(p)", "p = Softmax<axis=-1>(z)\nq = Clip(p, tiny, one)\ny = Log(q)",
     "y = LogSoftmax<axis=-1>(z)", "p = LogSoftmax<axis=-1>(z)\ny = Transpose<perm=[1 0]>(p)"],
)  # fmt: skip
def test_logarithms_of_probabilities(tail: str) -> None:
    axis = 0 if "Transpose" in tail else 1
    check(model(tail), "cross-entropy", lambda y, feeds: log_nll(y, feeds["labels"], axis))


SIGMOIDS = {
    "one": ((4, 5), 1, "y = Sigmoid(z)"),
    "several": ((4, 5), 3, "y = Sigmoid(z)"),
    "batch of one": ((1, 5), 1, "y = Sigmoid(z)"),
    "vector": ((4, 5), 1, "p = Sigmoid(z)\ny = Squeeze(p, place)"),
    "map": ((2, 3, 4, 5), 1, "p = Sigmoid(z)\ny = Transpose<perm=[0 3 1 2]>(p)"),
    "turned": ((2, 3, 4, 5), 3, "p = Sigmoid(z)\nq = Transpose<perm=[0 3 2 1]>(p)\ny = Cast<to=1>(q)"),
    "turned before": ((2, 3, 4, 5), 3, "t = Transpose<perm=[0 3 2 1]>(z)\ny = Sigmoid(t)"),
    "clip": ((4, 5), 2, "p = Sigmoid(z)\ny = Clip(p, tiny, one)"),
    "read again": ((4, 5), 2, "p = Sigmoid(z)\nq = Mul(p, p)\nu = ReduceSum(q, last)\ny = Identity(p)"),
}  # fmt: skip
"""Input, outputs, and what writes y."""


@pytest.mark.parametrize("name", SIGMOIDS)
def test_a_sigmoid_is_found(name: str) -> None:
    shape, outputs, tail = SIGMOIDS[name]
    check(model(tail, shape, outputs), "bce", lambda y, feeds: bce(y, feeds["target"]))


def test_logarithms_of_a_sigmoid() -> None:
    check(model("p = Sigmoid(z)\ny = Log(p)"), "bce", lambda y, feeds: bce(np.exp(y), feeds["target"]))


@pytest.mark.parametrize(("shape", "tail"), [((4, 3), "y = Identity(z)"), ((2, 4, 4, 3), "y = Relu(z)")])
def test_an_output_of_the_inputs_shape_gets_mse(shape: tuple[int, ...], tail: str) -> None:
    found = model(tail, shape)
    check(found, "mse", lambda y, feeds: mse(y, feeds["target"]))
    assert "because the output has the shape of the input 'x'" in differentiate(found).notes[-1]


@pytest.mark.parametrize(("tail", "kind"), [("Softmax<axis=-1>", "cross-entropy"), ("Sigmoid", "bce")])
def test_a_chance_shape_is_no_autoencoder(tail: str, kind: str) -> None:
    assert differentiate(model(f"y = {tail}(z)", (4, 3))).loss_kind == kind


BLIND = {
    "scaled": "p = Softmax<axis=-1>(z)\ny = Mul(p, two)",
    "clipped far": "p = Softmax<axis=-1>(z)\ny = Clip(p, low, one)",
    "spelled": "e = Exp(z)\ns = ReduceSum(e, last)\ny = Div(e, s)",
    "guarded": "p = Softmax<axis=-1>(z)\nq = Add(p, tiny)\ns = Max(q, tiny)\ny = Min(s, one)",
    "of logarithms": "p = LogSoftmax<axis=-1>(z)\ny = Exp(p)",
    "mean of two": "p = Softmax<axis=-1>(z)\nq = Softmax<axis=-1>(h)\ns = Add(p, q)\ny = Mul(s, half)",
    "rest": "p = Softmax<axis=-1>(z)\ny = Sub(one, p)",
    "padded": "p = Softmax<axis=-1>(z)\nq = Concat<axis=1>(p, p)\ny = Identity(q)",
    "two of one": "s = Sigmoid(z)\nq = Sub(one, s)\ny = Concat<axis=1>(q, s)",
    "heads": "p = Sigmoid(z)\nf = Sigmoid(h)\ny = Concat<axis=1>(p, f)",
    "one of many": "p = Softmax<axis=-1>(z)\ny = Gather<axis=0>(p, place)",
    "several axes": "f = Flatten<axis=0>(z)\np = Softmax<axis=-1>(f)\ny = Reshape(p, wide)",
    "hard": "y = HardSigmoid(z)",
    "averaged": "p = Softmax<axis=-1>(z)\ny = MatMul(p, mix)",
    "summed up": "p = Softmax<axis=-1>(z)\ny = CumSum(p, place)",
}
"""Probabilities whose logits aren't read."""


@pytest.mark.parametrize("name", BLIND)
@pytest.mark.parametrize("loss", ["auto", "cross-entropy", "bce"])
def test_no_softmax_is_taken_twice(name: str, loss: str) -> None:
    found = model(BLIND[name])
    with pytest.raises(ModelError, match=r"output 'y' .*--loss none.*--output"):
        differentiate(found, loss=loss)
    assert differentiate(found, loss="mse").loss_kind == "mse"


@pytest.mark.parametrize(
    "tail",
    ["p = Softmax<axis=-1>(z)\ny = MatMul(p, w3)", "y = Relu(z)", "y = Mul(z, half)", "y = Add(z, z)",
     "q = LeakyRelu(z)\ny = Slice(q, nought1, two1, place)"],
)  # fmt: skip
def test_what_a_layer_wrote_are_logits(tail: str) -> None:
    found = model(tail)
    assert differentiate(found).loss_kind == "cross-entropy"
    assert "it reads" not in differentiate(found).notes[-1]
    assert differentiate(found, loss="bce").loss_kind == "bce"


@pytest.mark.parametrize(
    "tail",
    ["p = Softmax<axis=-1>(z)\ny = Mul(p, z)", "p = Sigmoid(z)\ny = Add(p, z)", "y = Tanh(z)",
     "l = LogSoftmax<axis=-1>(z)\ny = Neg(l)", "y = Mul(z, z)", "y = Clip(z, zero1, one)",
     "p = Sigmoid(z)\ny = Concat<axis=1>(p, z)"],
)  # fmt: skip
@pytest.mark.parametrize("loss", ["cross-entropy", "bce", "mse"])
def test_of_anything_else_the_loss_is_asked_for(tail: str, loss: str) -> None:
    found = model(tail)
    with pytest.raises(ModelError, match=r"choose --loss mse .*--loss cross-entropy .*--loss bce"):
        differentiate(found)
    assert differentiate(found, loss=loss).loss_kind == loss


def test_what_goes_with_what() -> None:
    with pytest.raises(ModelError, match=r"final Sigmoid .*--loss bce"):
        differentiate(model("y = Sigmoid(z)"), loss="cross-entropy")
    with pytest.raises(ModelError, match=r"final Softmax makes values that sum to 1.*--loss cross-entropy"):
        differentiate(model("y = Softmax<axis=-1>(z)"), loss="bce")
    with pytest.raises(ModelError, match="axis of length 1"):
        differentiate(model("y = Softmax<axis=-1>(z)", outputs=1))


@pytest.mark.torch
def test_bce_is_stable_and_equals_torchs() -> None:
    torch = pytest.importorskip("torch")
    for tail, loss in (("y = Sigmoid(z)", "auto"), ("y = Identity(z)", "bce")):
        found = model(tail)
        weights = {**found.values, "w2": 40 * np.asarray(found.values["w2"], np.float32)}
        step = differentiate(replace(found, values=weights), loss=loss)
        feeds = feeds_of(step)
        feeds["target"] = np.round(feeds["target"])
        got = run(step, feeds)
        w1, w2, b = (torch.tensor(np.asarray(weights[n]), requires_grad=True) for n in ("w1", "w2", "b"))
        z = torch.tanh(torch.tensor(feeds["x"]) @ w1) @ w2 + b
        assert float(z.detach().abs().max()) > 89  # exp overflows there
        want = torch.nn.functional.binary_cross_entropy_with_logits(z, torch.tensor(feeds["target"]))
        want.backward()
        assert got["loss"] == pytest.approx(want.item(), rel=1e-5)
        for name, parameter in (("w1", w1), ("w2", w2), ("b", b)):
            np.testing.assert_allclose(got[f"{name}.grad"], parameter.grad.numpy(), rtol=2e-4, atol=1e-6)


def test_bce_of_half_precision_is_computed_in_single() -> None:
    found = model("c = Cast<to=10>(z)\ny = Sigmoid(c)")
    step = differentiate(found)
    assert (step.tensors["target"].dtype, step.tensors["loss"].dtype) == ("float16", "float32")
    feeds = feeds_of(step)
    want = run(differentiate(model("y = Sigmoid(z)")), {**feeds, "target": feeds["target"].astype(np.float32)})
    got = run(step, feeds)
    assert got["loss"] == pytest.approx(float(want["loss"]), rel=2e-3)
    np.testing.assert_allclose(got["w1.grad"], want["w1.grad"], atol=2e-3)


CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"


@pytest.mark.skipif(not CASES.exists(), reason="the cases aren't there")
@pytest.mark.parametrize(
    ("name", "kind"),
    [("softmax_cast", "cross-entropy"), ("softmax_clip", "cross-entropy"), ("sigmoid_one", "bce"),
     ("autoencoder_shape", "mse")],
)  # fmt: skip
def test_files_of_others(name: str, kind: str) -> None:
    step = differentiate(load_onnx(str(CASES / f"{name}.onnx")))
    assert step.loss_kind == kind
    if kind == "cross-entropy":
        plain = differentiate(load_onnx(str(CASES / "softmax_plain.onnx")))
        feeds = feeds_of(plain)
        assert run(step, feeds)["loss"] == pytest.approx(run(plain, feeds)["loss"], rel=1e-6)
