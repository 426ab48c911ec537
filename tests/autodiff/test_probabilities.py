"""Probabilities that no layer has turned into logits: whatever is done to them, no Softmax is put on them again."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.graph import Graph
from poetopt.util.errors import ModelError
from tests.autodiff.build import graph
from tests.autodiff.test_tails import bce, check, nll

Array = NDArray[Any]

P = "p = Softmax<axis=-1>(z)\n"
S = "p = Sigmoid(z)\n"
STORED: dict[str, Array] = {
    "half": np.array(0.5, np.float32), "two": np.array(2.0, np.float32), "minus": np.array(-1.0, np.float32),
    "share": np.array([0.2, 0.5, 0.3, 0.4], np.float32), "grid": np.array([0, 1, 2, 3], np.float32),
    "groups": np.array([[1, 0], [0, 1], [0, 1], [1, 0]], np.float32), "ones": np.ones((4, 1), np.float32),
    "mix": np.array([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 0.2, 0.3], [0, 0, 0.4, 0.6]], np.float32),
    "frozen": np.array([[1, -1, 0], [0, 2, 1], [1, 0, -2], [0, 1, 1]], np.float32),
    "w2": np.array([[0.5, -1, 0], [0, 2, 1], [1, 0, -2], [0, 1, 1]], np.float32),
    "scale": np.array([1.0, 0.5, 2.0, 1.5], np.float32), "shift": np.array([0.1, -0.2, 0.3, 0.0], np.float32),
    "mean": np.zeros(4, np.float32), "variance": np.ones(4, np.float32), "keep": np.array([1, 0, 1, 1], np.float32),
    "last": np.array([-1]), "first": np.array([1]), "one": np.array(1), "four": np.array(4.0, np.float32),
    "yes": np.array(True), "square": np.array([3, 4, 1, 1]), "cube": np.array([3, 1, 4]), "flat": np.array([3, 4]),
    "places": np.array([[3, 2, 1, 0]] * 3), "empty": np.zeros((3, 4), np.float32), "step": np.array(0.01, np.float32),
    "point": np.array(0, np.uint8), "wide": np.array([3, 4, 1]),
}  # fmt: skip

TRAINED = ("w2", "scale", "shift", "keep", "groups")


def model(tail: str) -> Graph:
    """A dense layer z of [3, 4], and a tail that writes y; what is trained is `w` and those of `TRAINED` it reads."""
    w = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    read = set(re.findall(r"\w+", tail))
    train = ",".join(["w", *(name for name in TRAINED if name in read)])
    return graph(f"z = MatMul(x, w)\n{tail}", {"x": [3, 5]}, {"w": w, **STORED}, ["y"], train)


SHARES = {
    "negated": P + "y = Neg(p)",
    "summed up": P + "y = CumSum(p, one)",
    "merged classes": P + "y = MatMul(p, groups)",
    "merged by fixed weights": P + "y = MatMul(p, mix)",
    "einsum": P + "y = Einsum<equation=ij->ij>(p)",
    "weighed": P + "t = Transpose<perm=[1 0]>(p)\ny = MatMul(t, p)",
    "normalized over the batch": P + "y = BatchNormalization(p, scale, shift, mean, variance)",
    "normalized": P + "y = LayerNormalization(p, scale, shift)",
    "scattered": P + "y = ScatterElements<axis=1>(empty, places, p)",
    "dropped": P + "y = Dropout(p, half, yes)",
    "quantized": P + "q = QuantizeLinear(p, step, point)\ny = DequantizeLinear(q, step, point)",
    "scaled by what is trained": P + "q = Mul(p, scale)\ny = Add(q, shift)",
    "bent": P + "q = Mul(p, two)\ny = Tanh(q)",
    "over a mean": "e = Exp(z)\nm = ReduceMean(e, last)\nq = Div(e, m)\ny = Div(q, four)",
    "over a product with ones": "e = Exp(z)\nm = MatMul(e, ones)\ny = Div(e, m)",
    "moved into space": P + "q = Reshape(p, square)\ny = DepthToSpace<blocksize=2>(q)",
    "experts": P + "a = Reshape(p, cube)\nb = Reshape(p, wide)\nq = MatMul(b, a)\ny = MatMul(a, q)",
}  # fmt: skip


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("loss", ["auto", "cross-entropy", "bce"])
def test_what_no_layer_has_read_is_no_logit(name: str, loss: str) -> None:
    found = model(SHARES[name])
    with pytest.raises(ModelError, match=r"output 'y' .*--loss \(mse takes any output\).*--output"):
        differentiate(found, loss=loss, straight_through=True)
    assert differentiate(found, loss="mse", straight_through=True).loss_kind == "mse"


SIGMOIDS = {
    "masked by what is trained": S + "y = Mul(p, keep)",
    "on a grid": S + "q = Add(p, grid)\ny = Mul(q, scale)",
    "quantized": S + "q = QuantizeLinear(p, step, point)\ny = DequantizeLinear(q, step, point)",
    "normalized": S + "y = BatchNormalization(p, scale, shift, mean, variance)",
    "boxes beside classes": S + "q = Concat<axis=1>(p, z)\ny = Mul(q, two)",
    "written over": S + "y = ScatterElements<axis=1>(z, places, p)",
}


@pytest.mark.parametrize("name", SIGMOIDS)
def test_sigmoids_get_mse(name: str) -> None:
    found = model(SIGMOIDS[name])
    assert differentiate(found, straight_through=True).loss_kind == "mse"
    for loss in ("cross-entropy", "bce"):
        with pytest.raises(ModelError, match="output 'y'"):
            differentiate(found, loss=loss, straight_through=True)


NEGATED = {
    "LogSoftmax": "l = LogSoftmax<axis=-1>(z)\ny = Neg(l)",
    "Log": P + "l = Log(p)\ny = Mul(l, minus)",
    "of a mixture": P + "q = MatMul(p, mix)\nl = Log(q)\nn = Neg(l)\ny = Div(n, two)",
    "from one": "l = LogSoftmax<axis=-1>(z)\ny = Sub(half, l)",
}


@pytest.mark.parametrize("name", NEGATED)
def test_minus_logarithms_of_probabilities_are_no_logits(name: str) -> None:
    """The class of the highest value would be the least likely."""
    for loss in ("auto", "cross-entropy"):
        with pytest.raises(ModelError, match=r"minus the logarithms of probabilities.*--loss"):
            differentiate(model(NEGATED[name]), loss=loss)


LOGITS = {
    "trained layer": P + "y = MatMul(p, w2)",
    "frozen layer": S + "y = MatMul(p, frozen)",
    "layer in two ops": S + "q = Reshape(p, wide)\nm = Mul(q, w2)\ny = ReduceSum<keepdims=0>(m, first)",
    "attention": "t = Transpose<perm=[1 0]>(z)\ns = MatMul(z, t)\np = Softmax<axis=-1>(s)\ny = MatMul(p, z)",
    "gate": S + "y = Mul(p, z)",
    "gate of itself": P + "q = Mul(z, p)\ny = MatMul(q, w2)",
    "skip": S + "y = Add(z, p)",
    "log of a mixture": P + "q = MatMul(p, mix)\ny = Log(q)",
    "twice negated": "l = LogSoftmax<axis=-1>(z)\nn = Neg(l)\ny = Mul(n, minus)",
    "log odds": S + "q = Sub(four, p)\na = Log(p)\nb = Log(q)\ny = Sub(a, b)",
    "scores of two": S + "t = Transpose<perm=[1 0]>(p)\ny = MatMul(p, t)",
    "normalized logits": "y = LayerNormalization(z, scale, shift)",
}


@pytest.mark.parametrize("name", LOGITS)
def test_layers_attention_and_gates_make_logits(name: str) -> None:
    found = model(LOGITS[name])
    assert differentiate(found).loss_kind == "cross-entropy"
    assert "it reads" not in differentiate(found).notes[-1]


@pytest.mark.parametrize(
    "tail",
    [P + "y = CastLike(p, half)", "e = Exp(z)\ns = ReduceSum(e, last)\nr = Pow(s, minus)\ny = Mul(r, e)"],
)
def test_what_passes_a_softmax_on_is_read_through(tail: str) -> None:
    check(model(tail), "cross-entropy", lambda y, feeds: nll(y, feeds["labels"], 1))


@pytest.mark.parametrize(
    "move",
    ["DepthToSpace<blocksize=2>", "DepthToSpace<blocksize=2;mode=CRD>", "SpaceToDepth<blocksize=2>"],
)
def test_a_sigmoid_that_is_moved_in_space_is_read_through(move: str) -> None:
    tail = f"q = Reshape(z, image)\np = Sigmoid(q)\ny = {move}(p)"
    w = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    found = graph(f"z = MatMul(x, w)\n{tail}", {"x": [3, 5]}, {"w": w, "image": np.array([3, 4, 2, 4])}, ["y"], "w")
    check(found, "bce", lambda y, feeds: bce(y, feeds["target"]))
