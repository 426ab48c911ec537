"""Clipping by global norm in the step: torch's, waits for all gradients, and is bit for bit that of the schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
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
from poetopt.plan.instructions import Action, Instruction
from poetopt.plan.layout import lay_out
from poetopt.plan.simulate import simulate
from poetopt.util.errors import OptionError, PlanError
from tests.autodiff.optimizers.test_attach import STEPS, compared, recomputed, tied
from tests.autodiff.optimizers.test_rules import far
from tests.support.autodiff.build import graph
from tests.support.autodiff.by_hand import SETTINGS, Array, data, perceptron, trained, weights
from tests.support.c import needs_host, network
from tests.support.keeping_nothing import keeping_nothing
from tests.support.later import later, uses_torch
from tests.support.problems import store_all
from tests.support.training import MODELS, plan_of, rows
from tests.test_micro_batches import tight

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


def test_half_precision_sums_in_float32() -> None:
    """The squares of small gradients are no numbers of float16 any more."""
    bound = 1e-3
    _, wanted = trained(clipped("float32", "momentum", bound), 1, "float32")
    _, found = trained(clipped("float16", "momentum", bound), 1, "float16")
    for name in ("w1.momentum_buffer", "w2.momentum_buffer"):
        assert far(found[name], wanted[name].astype(np.float64)) <= 0.05


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


def test_rows_that_occur_twice_are_summed_before() -> None:
    """The table is tied too: what its uses give is one gradient."""
    found = with_updates(differentiate(tied(), loss="mse"), "sgd", clip=True)
    batch = random_batch(found)
    values = {**found.values, found.hyperparameters["lr"]: np.array(1.0), found.hyperparameters[CLIP]: np.array(1e-2)}
    done = NodeByNode(found, Sessions(found), values, ("w.new",)).run(batch)
    target: Any = batch["target"]
    new: Any = done["w.new"]
    w, ids = found.values["w"].astype(np.float64), [3, 9, 3, 3, 0, 39]
    h = np.tanh(w[ids])
    dy = 2 * (h @ w.T - target) / target.size
    gradient = dy.T @ h
    np.add.at(gradient, ids, (dy @ w) * (1 - h * h))
    wanted = w - gradient * 1e-2 / (np.linalg.norm(gradient) + 1e-6)
    assert far(new, wanted) <= 1e-6
    assert np.linalg.norm(new - w) == pytest.approx(1e-2, rel=1e-4)


@pytest.mark.parametrize(("name", "optimizer"), [("residual", "adam"), ("lenet", "sgd"), ("dropout", "momentum")])
def test_a_scheduled_step_leaves_the_parameters_of_an_unscheduled_one(name: str, optimizer: str) -> None:
    found = cost(in_place(with_updates(STEPS[name], optimizer, clip=True), runtime), device("a72"))
    assert compared(lay_out(store_all(found)))
    assert compared(recomputed(found))


def test_an_update_before_the_norm_is_refused() -> None:
    found = cost(in_place(with_updates(STEPS["lenet"], "sgd", clip=True), runtime), device("a72"))
    names = [operator.name for operator in found.operators]
    update, scale = names.index("fc2.bias.update"), names.index(SCALE)
    assert scale < update
    computes = [Instruction(Action.COMPUTE, k) for k in range(len(names))]
    simulate(found, computes)
    early = [*computes[:scale], computes[update], *computes[scale:update], *computes[update + 1 :]]
    with pytest.raises(PlanError, match=r"fc2\.bias\.update"):
        simulate(found, early)


def test_without_an_optimizer_nothing_is_clipped() -> None:
    with pytest.raises(
        OptionError, match=r"--clip-norm: the step ends with gradients.*choose an optimizer with --optimizer"
    ):
        with_updates(STEPS["lenet"], "none", clip=True)
    plain: Any = with_updates(STEPS["lenet"], "sgd")
    assert CLIP not in plain.hyperparameters


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


def test_training_is_told_the_bound_and_a_checkpoint_knows_it(tmp_path: Path) -> None:
    plan = tight(small_step(parameters="paged"), 100)
    data = rows(plan, 8)
    with po.Trainer(plan, lr=1.0, momentum=0.0, clip_norm=0.25) as trainer:
        before: dict[str, Any] = {name: np.array(value) for name, value in trainer.values().items()}
        trainer.step({name: array[:4] for name, array in data.items()})
        moved = {name: np.array(value) - before[name] for name, value in trainer.values().items()}
        change = [np.linalg.norm(value) for name, value in moved.items() if name in trainer.graph.trained]
        assert np.linalg.norm(change) == pytest.approx(0.25, rel=1e-4)
        trainer.save(tmp_path)
    with po.Trainer(plan) as trainer:
        assert trainer.hyperparameters[CLIP] == 1.0
        trainer.load(tmp_path)
        assert trainer.hyperparameters[CLIP] == 0.25
    with pytest.raises(OptionError, match=r"--clip-norm 0: must be more than 0"):
        po.Trainer(plan, clip_norm=0.0)
    with pytest.raises(OptionError, match=r"--clip-norm 2: .*solve with --optimizer and --clip-norm"):
        po.Trainer(plan_of("small", "sgd"), clip_norm=2.0)


def test_a_clipped_plan_says_so_and_is_verified(tmp_path: Path) -> None:
    model = tmp_path / "small.onnx"
    onnx.save(MODELS["small"](), model)
    asked: Any = {"device": "a72", "optimizer": "sgd", "parameters": "paged", "remat": False}
    report = po.solve(model, clip_norm=True, total_ram=13930, **asked)
    (tmp_path / "plan.json").write_text(report.plan_text(), encoding="utf-8")
    po.verify(tmp_path / "plan.json")
    said, free = report.to_dict(), po.solve(model, total_ram=13930, **asked).to_dict()
    assert (said["clip_norm"], free["clip_norm"]) == (True, False)
    assert free["overhead_j"] < said["overhead_j"]  # type: ignore[operator]


@needs_host
def test_a_clipped_step_streams_in_c() -> None:
    """Nothing is kept in RAM between two operators, so that whatever can be streamed is."""
    found = network().differentiate(optimizer="adamw", clip_norm=True).cost("m4", parameters="paged")
    ran = po.execute_on(keeping_nothing(found), "host")
    assert ran.bit_identical
    assert ran.distance <= 5 * ran.sensitivity
