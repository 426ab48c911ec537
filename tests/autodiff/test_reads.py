"""What backward reads: of x and y the one that is there anyway, and the gradient is the same with either."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.graph import Graph, Operator, TrainingGraph
from tests.support.autodiff.build import graph
from tests.support.autodiff.errors import evaluator
from tests.support.autodiff.oracle import batch, run

Array = NDArray[Any]

UNARY = {
    "Relu": "Relu(s)", "LeakyRelu": "LeakyRelu<alpha=0.2>(s)", "Sigmoid": "Sigmoid(s)", "Tanh": "Tanh(s)",
    "Exp": "Exp(s)",    "Sqrt": "Sqrt(s)", "Reciprocal": "Reciprocal(s)", "Log": "Log(s)", "Softplus": "Softplus(s)",
    "Elu": "Elu<alpha=0.7>(s)",
    "Selu": "Selu(s)", "Celu": "Celu<alpha=0.7>(s)", "Softsign": "Softsign(s)", "HardSigmoid": "HardSigmoid(s)",
    "ThresholdedRelu": "ThresholdedRelu<alpha=0.6>(s)", "Clip": "Clip(s, low, high)",
}  # fmt: skip
READS_INPUT = {"Log", "Softplus"}
"""What these read where x and y are both kept, or neither is."""

SHAPES = {"w": (4, 6), "v": (6, 6), "u": (6, 6), "bias": (6,)}


def model(expression: str, x_kept: bool, y_kept: bool) -> Graph:
    """An op between two linear layers, either of whose tensors a weight gradient reads or not."""
    positive = "Relu" in expression or "Elu" in expression or "elu" in expression
    lines = ["h = MatMul(x, w)", "s = Add(h, bias)" if positive else "q = Abs(h)\ns = Add(q, one)"]
    lines += ["a = MatMul(s, v)" if x_kept else "a = Add(s, bias)", f"z = {expression}"]
    lines += ["b = MatMul(z, u)" if y_kept else "b = Add(z, bias)", "y = Add(a, b)"]
    rng = np.random.default_rng(4)
    weights: dict[str, Array] = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in SHAPES.items()}
    weights |= {"one": np.array(0.3, np.float32), "low": np.array(-0.5, np.float32), "high": np.array(0.9, np.float32)}
    text = "\n".join(lines)
    used = {name for name in weights if any(name in line.partition(" = ")[2].replace(",", " ").replace(")", " ")
            .replace("(", " ").split() for line in text.splitlines())}  # fmt: skip
    return graph(text, {"x": [5, 4]}, {n: weights[n] for n in weights if n in used}, ["y"],
                 train=",".join(n for n in SHAPES if n in used))  # fmt: skip


def gradient_of(step: TrainingGraph) -> Operator:
    """The backward operator of the op that writes z."""
    name = step.producers["z"].name
    return next(o for o in step.operators if o.name.startswith(f"{name}.grad"))


def check(op: str, expression: str, reads: dict[tuple[bool, bool], set[str]]) -> None:
    feeds = None
    wanted: dict[tuple[bool, bool], Array] = {}
    for (x_kept, y_kept), tensors in reads.items():
        step = differentiate(model(expression, x_kept, y_kept), loss="mse")
        read = set(gradient_of(step).inputs) & {"s", "z"}
        assert read == tensors, (op, x_kept, y_kept)
        feeds = feeds or batch(step, 7)
        wanted[x_kept, y_kept] = run(step, feeds)["w.grad"]
        slope = finite(step, feeds)
        assert np.allclose(wanted[x_kept, y_kept][0, 0], slope, rtol=2e-2, atol=2e-3), op


def finite(step: TrainingGraph, feeds: dict[str, Array]) -> float:
    """The slope of the loss by w[0, 0]."""
    loss = evaluator(step, (step.loss,))
    sides = []
    for sign in (1, -1):
        values = {n: np.array(step.values[n]) for n in step.trained}
        values["w"][0, 0] += sign * 2e-3
        sides.append(float(loss({**values, **feeds})[0]))
    return (sides[0] - sides[1]) / 4e-3


@pytest.mark.parametrize("op", UNARY)
def test_the_tensor_that_is_kept_anyway_is_read(op: str) -> None:
    usual = {"s"} if op in READS_INPUT else {"z"}
    check(op, UNARY[op], {(True, False): {"s"}, (False, True): {"z"}, (True, True): usual, (False, False): usual})
