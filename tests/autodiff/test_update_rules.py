"""What the update operators compute: against plain numpy, and against torch.optim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poetopt.autodiff.optimizers import NAMES, with_updates
from poetopt.autodiff.optimizers.attach import parse_rates
from poetopt.autodiff.optimizers.rules import OPTIMIZERS
from poetopt.util.errors import OptionError
from tests.autodiff.by_hand import SETTINGS, Array, by_hand, data, perceptron, trained, weights, with_optimizer

STEPS = 25


def far(found: Array, wanted: Array) -> float:
    """Their distance, relative to the norm."""
    return float(np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted))


def test_each_optimizer_has_a_rule_and_settings_here() -> None:
    assert set(NAMES) - {"none"} == set(OPTIMIZERS) == set(SETTINGS)
    for name, optimizer in OPTIMIZERS.items():
        assert set(optimizer.hyperparameters) - {"step"} == set(SETTINGS[name])


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
def test_what_is_frozen_stays(optimizer: str) -> None:
    graph = with_optimizer("float64", optimizer, "w2,b2")
    assert {"w1", "b1"}.isdisjoint(graph.carried)
    _, wanted = by_hand(optimizer, STEPS, ("w2", "b2"))
    _, found = trained(graph, STEPS, "float64")
    assert found.keys() == graph.carried.keys()
    assert all(far(found[name], wanted[name]) <= 1e-12 for name in ("w2", "b2"))


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


@pytest.mark.parametrize(
    ("rates", "optimizer", "message"),
    [({"w3": 2.0}, "sgd", "--with rates=w3=2: no trained parameter is called so.*there are w1, b1, w2, b2"),
     ({"w2": 2.0}, "none", "--with rates: the step ends with gradients.*name one with --optimizer"),
     ("w2", "sgd", "say a pattern of parameters and what their learning rate is multiplied with"),
     ("w2=-1", "sgd", "--with rates=w2=-1: say a pattern"), (["w1=1", "w2=x"], "sgd", "--with rates=w2=x: say")],
)  # fmt: skip
def test_rates_that_can_t_be(rates: Any, optimizer: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        with_updates(perceptron("float32"), optimizer, rates=parse_rates(rates))


def test_a_forgotten_learning_rate_is_told() -> None:
    """It has no default in the file, and nor does the count of steps; all else has."""
    import onnxruntime as ort

    from poetopt.frontends.proto import model_proto

    session = ort.InferenceSession(model_proto(with_optimizer("float32", "adam")).SerializeToString())
    with pytest.raises(ValueError, match=r"lr.*step.* are missing"):
        session.run(None, data("float32", 1))
    session.run(None, {**data("float32", 1), "lr": np.array(0.1), "step": np.array(1)})


def test_without_an_optimizer_the_graph_is_itself() -> None:
    graph = perceptron("float32")
    assert with_updates(graph, "none") is graph
    assert not graph.updaters
    assert not graph.carried
