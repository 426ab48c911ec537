"""What the update operators compute: against plain numpy, and against torch.optim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poetopt.autodiff.optimizers import with_updates
from tests.support.autodiff.by_hand import SETTINGS, Array, by_hand, data, perceptron, trained, weights, with_optimizer

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


@pytest.mark.torch
@pytest.mark.parametrize("optimizer", SETTINGS)
def test_parameters_are_those_of_torch(optimizer: str) -> None:
    torch: Any = pytest.importorskip("torch")
    by = SETTINGS[optimizer]
    first, second = torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)
    start = weights("float32")
    parameters = {"w1": first.weight, "b1": first.bias, "w2": second.weight, "b2": second.bias}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(start[name].T.copy()))
    betas = {"betas": (by.get("beta1"), by.get("beta2")), "eps": by.get("eps")} if "beta1" in by else {}
    kinds = {"sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    more = {"momentum": by["momentum"]} if "momentum" in by else {}
    descent = kinds[optimizer](parameters.values(), lr=by["lr"], weight_decay=by["weight_decay"], **betas, **more)
    for step in range(1, STEPS + 1):
        feeds = {name: torch.from_numpy(array) for name, array in data("float32", step).items()}
        loss = torch.nn.functional.mse_loss(second(torch.tanh(first(feeds["x"]))), feeds["target"])
        descent.zero_grad()
        loss.backward()
        descent.step()
    losses, found = trained(with_optimizer("float32", optimizer), STEPS, "float32")
    assert losses[-1] == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, parameter in parameters.items():
        assert far(found[name].T, parameter.detach().numpy().astype(np.float64)) <= 1e-6, name
    names = {"momentum": {"momentum_buffer"}, "sgd": set[str]()}.get(optimizer, {"exp_avg", "exp_avg_sq"})
    for name, parameter in parameters.items():
        for state in names:
            wanted = descent.state[parameter][state].numpy().astype(np.float64)
            assert far(found[f"{name}.{state}"].T, wanted) <= 1e-5, (name, state)


@pytest.mark.parametrize("optimizer", SETTINGS)
@pytest.mark.parametrize("fuse", [True, False])
def test_rates_by_pattern_are_those_of_groups_of_parameters(optimizer: str, fuse: bool) -> None:
    graph = with_updates(perceptron("float32"), optimizer, fuse=fuse, rates={"w2": 0.5, "?2": 3.0, "b1": 0.0})
    losses, found = trained(graph, STEPS, "float32")
    wanted_losses, wanted = by_hand(optimizer, STEPS, rates={"w2": 0.5, "b2": 3.0, "b1": 0.0})
    assert losses == pytest.approx(wanted_losses, rel=1e-4)
    assert all(far(found[name], wanted[name]) <= 1e-5 for name in wanted)
    assert "rate: 0.5 times lr for w2" in graph.notes
