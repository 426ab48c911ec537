"""Composite regions: every spelling is found, nothing else is, no bit of the forward result changes, memory falls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import differentiate, reverse
from poetopt.autodiff.regions import compose
from poetopt.graph import Graph, TrainingGraph
from tests.support.autodiff.build import graph
from tests.support.autodiff.oracle import batch, run

Array = NDArray[Any]

WEIGHTS: dict[str, Array] = {
    "w": np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32),
    "v": np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32),
    "scale": np.random.default_rng(2).uniform(0.5, 2, 6).astype(np.float32),
    "shift": np.random.default_rng(3).standard_normal(6).astype(np.float32),
    "half": np.array(0.5, np.float32), "one": np.array([1.0], np.float32), "two": np.array(2.0, np.float32),
    "three": np.array(3.0, np.float32), "root2": np.array(math.sqrt(2), np.float32),
    "zero": np.array(0.0, np.float32), "six": np.array(6.0, np.float32), "quick": np.array(1.702, np.float32),
    "cubic": np.array(0.044715, np.float32), "tanh": np.array(math.sqrt(2 / math.pi), np.float32),
    "epsilon": np.array(1e-5, np.float32), "last": np.array([-1], np.int64), "first": np.array([0], np.int64),
}  # fmt: skip
"""Of every text below; those that a text doesn't read are left out."""

GELU = "a = Div(h, root2)\nb = Erf(a)\nc = Add(b, one)\nd = Mul(h, c)\nz = Mul(d, half)"
NEW_GELU = (
    "a = Pow(h, three)\nb = Mul(a, cubic)\nc = Add(h, b)\nd = Mul(c, tanh)\ne = Tanh(d)\nf = Add(one, e)\n"
    "g = Mul(h, half)\nz = Mul(g, f)"
)
ROWS = "m = ReduceMean(h, last)\nd = Sub(h, m)\np = Pow(d, two)\nq = ReduceMean(p, last)\ne = Add(q, epsilon)\n"
SQUARES = "p = Mul(h, h)\nq = ReduceMean(p, last)\ne = Add(epsilon, q)\ns = Sqrt(e)\n"
SPELLINGS = {
    "gelu": ("Gelu", GELU),
    "new-gelu": ("Gelu", NEW_GELU),
    "new-gelu-products": ("Gelu", "hh = Mul(h, h)\n" + NEW_GELU.replace("Pow(h, three)", "Mul(h, hh)")),
    "swish": ("Swish", "a = Sigmoid(h)\nz = Mul(h, a)"),
    "quick-gelu": ("Swish", "a = Mul(quick, h)\nb = Sigmoid(a)\nz = Mul(h, b)"),
    "swish-exp": ("Swish", "a = Neg(h)\nb = Exp(a)\nc = Add(b, one)\nz = Div(h, c)"),
    "sigmoid": ("Sigmoid", "a = Neg(h)\nb = Exp(a)\nc = Add(b, one)\nz = Div(one, c)"),
    "mish": ("Mish", "a = Softplus(h)\nb = Tanh(a)\nz = Mul(b, h)"),
    "hard-swish": ("HardSwish", "a = HardSigmoid<alpha=0.16666667;beta=0.5>(h)\nz = Mul(h, a)"),
    "hard-swish-clip": ("HardSwish", "a = Add(h, three)\nb = Clip(a, zero, six)\nc = Mul(b, h)\nz = Div(c, six)"),
    "layer-norm": ("LayerNormalization", ROWS + "s = Sqrt(e)\nn = Div(d, s)\nk = Mul(n, scale)\nz = Add(k, shift)"),
    "layer-norm-bare": ("LayerNormalization", ROWS + "s = Sqrt(e)\nz = Div(d, s)"),
    "layer-norm-inverse": (
        "LayerNormalization",
        ROWS + "s = Sqrt(e)\ni = Reciprocal(s)\nn = Mul(i, d)\nk = Mul(scale, n)\nz = Add(shift, k)",
    ),
    "rms-norm": ("RMSNormalization", SQUARES + "i = Reciprocal(s)\nn = Mul(h, i)\nz = Mul(scale, n)"),
    "rms-norm-div": ("RMSNormalization", SQUARES + "i = Div(one, s)\nn = Mul(h, i)\nz = Mul(n, scale)"),
    "rms-norm-bare": ("RMSNormalization", SQUARES + "z = Div(h, s)"),
    "guard": ("Softmax", "a = Softmax(h)\nb = IsNaN(a)\nz = Where(b, zero, a)"),
}  # fmt: skip

NEAR_MISSES = {
    "other constant": NEW_GELU.replace("cubic", "epsilon"), "other factor": GELU.replace("half", "three"),
    "read twice": GELU + "\nz2 = Relu(z)\nz3 = Add(z2, c)", "weight in it": GELU.replace("d, half", "d, scale"),
    "two tensors": "g = Relu(h)\na = Sigmoid(g)\nz = Mul(h, a)",
    "other axis": (ROWS + "s = Sqrt(e)\nz = Div(d, s)").replace("last", "first"),
    "other square": ROWS.replace("Pow(d, two)", "Pow(d, three)") + "s = Sqrt(e)\nz = Div(d, s)",
    "other numerator": ROWS + "s = Sqrt(e)\nz = Div(h, s)", "no root": ROWS + "z = Div(d, e)",
    "other guard": "a = Softmax(h)\nb = IsNaN(a)\nz = Where(b, one, a)",
}  # fmt: skip


def model(text: str, result: str = "z", extra: tuple[str, ...] = ()) -> Graph:
    """The text between two matrix products, so that gradients flow in and out."""
    lines = f"h = MatMul(x, w)\n{text}\ny = MatMul({result}, v)"
    used = {name.strip("() ,") for line in lines.splitlines() for name in line.replace("(", " ").split()}
    weights = {name: value for name, value in WEIGHTS.items() if name in used}
    return graph(lines, {"x": [5, 4]}, weights, ["y", *extra], train="w,v" + ",scale" * ("scale" in weights))


def plainly(step: Graph, monkeypatch: pytest.MonkeyPatch, **options: Any) -> TrainingGraph:
    """Differentiated node by node."""
    with monkeypatch.context() as patch:
        patch.setattr(reverse, "compose", lambda graph: graph)
        return differentiate(step, **options)


def same_step(forward: Graph, composed: TrainingGraph, plain: TrainingGraph) -> None:
    """Equal bits forward, equal gradients to rounding."""
    feeds = batch(composed, 3)
    results = (*forward.outputs, composed.loss)
    got, want = run(composed, feeds), run(plain, feeds)
    for name in results:
        assert np.array_equal(got[name], want[name]), name
    own = run(forward, {name: feeds[name] for name in forward.inputs})
    assert all(np.array_equal(own[name], got[name]) for name in forward.outputs)
    assert composed.gradients == plain.gradients
    gradients = list(composed.gradients.values())
    # a bias in front of a normalization has none but for rounding
    floor = 1e-2 * max(float(np.linalg.norm(want[name])) for name in gradients)
    for name in gradients:
        assert np.linalg.norm(got[name] - want[name]) <= 1e-5 * max(float(np.linalg.norm(want[name])), floor), name


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_one_operator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, text = SPELLINGS[name]
    forward = model(text)
    step = differentiate(forward, loss="mse")
    (region,) = (o for o in step.operators if o.meaning is not None)
    assert region.kind == kind
    assert [n for o in step.operators if not o.backward for n in o.nodes][: len(text.splitlines()) + 1] == [
        n for o in forward.operators for n in o.nodes
    ][:-1]
    assert f"1 {kind}" in "".join(step.notes)
    same_step(forward, step, plainly(forward, monkeypatch, loss="mse"))


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_resembles_one_stays_as_it_is(name: str) -> None:
    text = NEAR_MISSES[name]
    forward = model(text, text.splitlines()[-1].partition(" = ")[0])
    assert compose(forward) is forward
