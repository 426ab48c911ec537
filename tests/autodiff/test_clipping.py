"""Clipping by global norm in the step: torch's, waits for all gradients, and is bit for bit that of the schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.autodiff.optimizers import CLIP, with_updates
from poetopt.autodiff.optimizers.attach import SCALE, SQUARES
from poetopt.autodiff.passes.in_place import in_place
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.devices import cost, device
from poetopt.frontends.proto import model_proto
from poetopt.graph import TrainingGraph
from poetopt.ops.runtimes.onnxruntime import runtime
from poetopt.plan.layout import lay_out
from tests.autodiff.build import graph
from tests.autodiff.by_hand import SETTINGS, Array, data, perceptron, trained, weights
from tests.autodiff.test_update_graphs import STEPS, compared, recomputed
from tests.autodiff.test_update_rules import far
from tests.later import later, uses_torch
from tests.problems import store_all
from tests.test_micro_batches import tight
from tests.training.support import MODELS, rows

torch = later("torch")
COUNT = 6


def clipped(dtype: str, optimizer: str, bound: float) -> TrainingGraph:
    """The perceptron's step with that bound as its default."""
    found = with_updates(perceptron(dtype), optimizer, clip=True)
    return replace(found, values={**found.values, found.hyperparameters[CLIP]: np.array(bound)})


def in_torch(optimizer: str, bound: float) -> tuple[list[float], dict[str, Array]]:
    """The norms, and parameters and states after COUNT steps in double precision."""
    by = SETTINGS[optimizer]
    p = {name: torch.nn.Parameter(torch.from_numpy(a.astype(np.float64))) for name, a in weights("float32").items()}
    betas = {"betas": (by.get("beta1"), by.get("beta2")), "eps": by.get("eps")} if "beta1" in by else {}
    more = {"momentum": by["momentum"]} if "momentum" in by else betas
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(optimizer, torch.optim.SGD)
    descent = kind(p.values(), lr=by["lr"], weight_decay=by["weight_decay"], **more)
    norms = []
    for step in range(1, COUNT + 1):
        feeds = {name: torch.from_numpy(array) for name, array in data("float32", step).items()}
        feeds = {name: value.double() for name, value in feeds.items()}
        y = torch.tanh(feeds["x"] @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        descent.zero_grad()
        torch.nn.functional.mse_loss(y, feeds["target"]).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(p.values(), bound)))
        descent.step()
    found = {name: value.detach().numpy() for name, value in p.items()}
    for name, value in p.items():
        state = descent.state[value]
        found |= {f"{name}.{s}": state[s].numpy() for s in ("momentum_buffer", "exp_avg", "exp_avg_sq") if s in state}
    return norms, found


@uses_torch
@pytest.mark.parametrize("bound", [0.3, 4.5, 1e9])
@pytest.mark.parametrize("optimizer", SETTINGS)
def test_steps_are_those_of_torch(optimizer: str, bound: float) -> None:
    norms, wanted = in_torch(optimizer, bound)
    assert bound != 4.5 or min(norms) < bound < max(norms)  # it clips in some steps alone
    _, found = trained(clipped("float32", optimizer, bound), COUNT, "float32")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert np.isfinite(found[name]).all()
        assert far(found[name], value) <= 1e-6, name
    _, free = trained(with_updates(perceptron("float32"), optimizer), COUNT, "float32")
    moved = max(far(free[name], value) for name, value in wanted.items())
    assert (moved > 1e-4) == (bound < 1e9)


def test_long_sums_are_exact_enough() -> None:
    """Row by row: as one float32 sum onnxruntime's is 1e-5 off here."""
    w = np.random.default_rng(1).standard_normal((1, 700, 900)).astype(np.float32)
    step = differentiate(graph("y = Mul(w, x)", {"x": [1, 700, 900]}, {"w": w}, ["y"]), loss="mse")
    found = with_updates(step, "sgd", clip=True)
    (squares,) = (operator for operator in found.operators if operator.kind == SQUARES)
    names = (*squares.inputs[:1], *squares.outputs)
    done = NodeByNode(found, Sessions(found), found.values, names).run(random_batch(found))
    gradient, total = (done[name].astype(np.float64) for name in names)
    assert float(total) == pytest.approx(float((gradient**2).sum()), rel=1e-6)


@pytest.mark.parametrize("name", STEPS)
def test_every_update_waits_for_all_gradients(name: str) -> None:
    """Each trained tensor counts once, with the sum of what its uses give; no gradient is one with its update."""
    found = with_updates(STEPS[name], "momentum", clip=True)
    onnx.checker.check_model(model_proto(found), full_check=True)
    place = {operator.name: k for k, operator in enumerate(found.operators)}
    squares = [operator for operator in found.operators if operator.kind == SQUARES]
    (scale,) = (operator for operator in found.operators if operator.kind == SCALE)
    assert len(squares) == len(found.trained)
    for operator in squares:
        gradient = operator.inputs[0]
        assert any(gradient in update.inputs for update in found.updaters.values())
        assert place[operator.name] < place[scale.name]
    for old in found.trained:
        update = found.updaters[old]
        assert update.kind == "momentum.update"
        assert set(scale.outputs) <= set(update.inputs)
        assert place[scale.name] < place[update.name]


@pytest.mark.parametrize(("name", "optimizer"), [("residual", "adam"), ("lenet", "sgd"), ("dropout", "momentum")])
def test_a_scheduled_step_leaves_the_parameters_of_an_unscheduled_one(name: str, optimizer: str) -> None:
    found = cost(in_place(with_updates(STEPS[name], optimizer, clip=True), runtime), device("a72"))
    assert compared(lay_out(store_all(found)))
    assert compared(recomputed(found))


def small_step(parts: int = 1, **more: Any) -> po.Problem:
    """The small perceptron at batch 4."""
    loaded = po.load(MODELS["small"](), batch=4, micro_batch=parts)
    return loaded.differentiate(optimizer="momentum", clip_norm=True).cost("a72", **more)


def test_a_batch_in_parts_is_clipped_by_the_norm_of_its_sum() -> None:
    """As the whole batch, to rounding; and bit for bit as the unscheduled accumulation."""
    plan, whole = tight(small_step(2, parameters="paged"), 2000), lay_out(store_all(small_step()))
    with po.Trainer(plan, lr=0.5, clip_norm=0.1) as mine, po.Trainer(whole, lr=0.5, clip_norm=0.1) as other:
        for batch in other.batches(rows(whole, 12), epoch=0):
            assert mine.step(batch) == pytest.approx(other.step(batch), rel=1e-5)
        value: Any
        for name, value in other.values().items():
            found: Any = mine.values()[name]
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-6 * np.abs(value).max())
    ended = po.train(plan, 2, 0.5, check=1)
    assert ended.bit_identical, ended.message
