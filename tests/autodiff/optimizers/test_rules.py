"""What the update operators compute: against plain numpy, and against torch.optim."""

from __future__ import annotations

import numpy as np
import pytest

from poetopt.autodiff.optimizers import with_updates
from tests.support.autodiff.by_hand import SETTINGS, Array, by_hand, perceptron, trained, weights, with_optimizer

STEPS = 25


def far(found: Array, wanted: Array) -> float:
    """Their distance, relative to the norm."""
    return float(np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("optimizer", SETTINGS)
@pytest.mark.parametrize(("dtype", "most"), [("float64", 1e-12), ("float32", 1e-6)])
def test_parameters_are_those_of_plain_numpy(dtype: str, most: float, optimizer: str, fuse: bool) -> None:
    wanted_losses, wanted = by_hand(optimizer, STEPS)
    losses, found = trained(with_optimizer(dtype, optimizer, fuse=fuse), STEPS, dtype)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
    for name, value in wanted.items():
        assert found[name].dtype == dtype
        assert far(found[name], value) <= most, name
        moved = np.linalg.norm(weights("float32")[name].astype(np.float64) - value)
        assert moved > 1e3 * most * np.linalg.norm(value), name


@pytest.mark.parametrize("optimizer", SETTINGS)
def test_half_precision_computes_in_float32(optimizer: str) -> None:
    """Each number is rounded to float16 once a step; the parameter keeps its type, and so do states."""
    _, wanted = by_hand(optimizer, 5)
    graph = with_optimizer("float16", optimizer)
    assert {graph.tensors[name].dtype for name in graph.optimizer_states} <= {"float16"}
    _, found = trained(graph, 5, "float16")
    for name, value in wanted.items():
        assert found[name].dtype == np.float16
        assert far(found[name], value) <= 5e-3, name


@pytest.mark.parametrize("optimizer", SETTINGS)
@pytest.mark.parametrize("fuse", [True, False])
def test_rates_by_pattern_are_those_of_groups_of_parameters(optimizer: str, fuse: bool) -> None:
    graph = with_updates(perceptron("float32"), optimizer, fuse=fuse, rates={"w2": 0.5, "?2": 3.0, "b1": 0.0})
    losses, found = trained(graph, STEPS, "float32")
    wanted_losses, wanted = by_hand(optimizer, STEPS, rates={"w2": 0.5, "b2": 3.0, "b1": 0.0})
    assert losses == pytest.approx(wanted_losses, rel=1e-4)
    assert all(far(found[name], wanted[name]) <= 1e-5 for name in wanted)
    assert "rate: 0.5 times lr for w2" in graph.notes
