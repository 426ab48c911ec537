"""Gradients of an activation that a MaxPool alone reads are taken of the maxima, and are torch's all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from poetopt.autodiff import differentiate
from poetopt.graph import TrainingGraph
from tests.support.autodiff.build import graph
from tests.support.autodiff.oracle import batch, run
from tests.support.later import later, uses_torch

torch = later("torch")
f = later("torch.nn.functional")

POOL = "MaxPool<kernel_shape=[3 3];strides=[2 2];pads=[1 1 1 1]>"
CONSTANTS = {"zero": 0.0, "six": 0.75, "low": -0.5, "high": 0.5}
ACTIVATIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Relu": ("Relu(h)", lambda h: torch.relu(h)),
    "LeakyRelu": ("LeakyRelu<alpha=0.2>(h)", lambda h: f.leaky_relu(h, 0.2)),
    "Relu6": ("Clip(h, zero, six)", lambda h: torch.clamp(h, 0.0, 0.75)),
    "HardTanh": ("Clip(h, low, high)", lambda h: torch.clamp(h, -0.5, 0.5)),
    "Sigmoid": ("Sigmoid(h)", lambda h: torch.sigmoid(h)),
    "Tanh": ("Tanh(h)", lambda h: torch.tanh(h)),
}


def step_of(expression: str, rest: str) -> TrainingGraph:
    """The step of a convolution, an activation z of it, and what follows."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.standard_normal((4, 2, 3, 3)).astype(np.float32)}
    lines = f"h = Conv<pads=[1 1 1 1]>(x, w)\nz = {expression}\n{rest}"
    used = {name: np.array(value, np.float32) for name, value in CONSTANTS.items() if name in expression}
    found = graph(lines, {"x": [2, 2, 9, 9]}, {**weights, **used}, ["y"], train="w")
    return differentiate(found, loss="mse")


def read_backwards(step: TrainingGraph) -> set[str]:
    return {name for operator in step.operators if operator.backward for name in operator.inputs}


@uses_torch
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_is_torch_s(name: str, shared: bool) -> None:
    """Windows overlap. Read by another one too, the output of the activation (or its input) is kept as ever."""
    expression, function = ACTIVATIONS[name]
    step = step_of(expression, f"p = {POOL}(z)\n" + ("g = GlobalMaxPool(z)\ny = Add(p, g)" if shared else "y = Neg(p)"))
    assert bool(read_backwards(step) & {"z", "h"}) == shared
    feeds = batch(step, 5)
    w = torch.from_numpy(np.array(step.values["w"])).requires_grad_(True)
    z = function(f.conv2d(torch.from_numpy(feeds["x"]), w, padding=1))
    p = f.max_pool2d(z, 3, 2, 1)
    y = p + z.amax((2, 3), keepdim=True) if shared else -p
    target = torch.from_numpy(next(feeds[n] for n in step.added_inputs))
    torch.nn.functional.mse_loss(y, target).backward()
    assert w.grad is not None
    found = run(step, feeds)["w.grad"]
    assert np.abs(found).max() > 0
    assert np.allclose(found, w.grad.numpy(), rtol=1e-4, atol=1e-6)
