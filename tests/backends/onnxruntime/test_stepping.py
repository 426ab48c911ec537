"""Steps by a plan alone: the losses and values of ordinary training, and the same bits after a stop and a new start."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.autodiff.optimizers import with_updates
from poetopt.backends.onnxruntime import random_batch
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.onnxruntime.stepping import ScheduledStep
from poetopt.backends.step.region import WINDOW, ResidentRegion, reseeded
from poetopt.frontends import load
from poetopt.graph import Graph, TrainingGraph
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.util.errors import ModelError, OptionError
from tests.support.backends import NETWORKS, dropout, embedding
from tests.support.problems import random_plan


def graph_of(plan: Plan) -> TrainingGraph:
    found = plan.problem.graph
    assert found is not None
    return found


@cache
def plan_of(name: str, optimizer: str = "none", parameters: str = "resident") -> Plan:
    """A valid plan; of resident parameters one with recomputes and transfers at random places."""
    made = {**NETWORKS, "embedding": embedding}[name]()
    problem = po.load(made).differentiate(optimizer=optimizer).cost("a72", parameters=parameters)
    if parameters == "paged":
        return lay_out(store_all(problem))
    return lay_out(random_plan(random.Random(3), problem, length=60))


def unscheduled(graph: TrainingGraph, batches: list[Any], hyper: Mapping[str, float]) -> tuple[list[float], Any]:
    """Losses and values of the whole graph, node by node, with everything carried over by hand."""
    values: dict[str, Any] = dict(graph.values)
    losses = []
    for step, batch in enumerate(batches, 1):
        for name, tensor in graph.hyperparameters.items():
            values[tensor] = np.array({**hyper, "step": step}.get(name, values[tensor]), values[tensor].dtype)
        done = NodeByNode(graph, Sessions(graph), values, graph.results).run(batch)
        losses.append(float(done[graph.loss].reshape(-1)[0]))
        values |= {old: done[new] for old, new in graph.carried.items()}
    return losses, values


CASES = [
    ("residual", "sgd", "resident"),
    ("residual", "adamw", "resident"),
    ("residual", "momentum", "paged"),
    ("residual", "adam", "paged"),
    ("embedding", "sgd", "paged"),
    ("mlp", "adam", "paged"),
]


@pytest.mark.parametrize(("name", "optimizer", "parameters"), CASES)
def test_steps_are_those_of_the_whole_graph(name: str, optimizer: str, parameters: str) -> None:
    plan = plan_of(name, optimizer, parameters)
    network = load({**NETWORKS, "embedding": embedding}[name]())
    assert isinstance(network, Graph)
    whole = with_updates(differentiate(network), optimizer)
    batches = [random_batch(whole, seed) for seed in range(4)]
    losses, values = unscheduled(whole, batches, {"lr": 0.05})
    with ScheduledStep(plan) as step:
        assert [step.run(batch, {"lr": 0.05}) for batch in batches] == losses
        assert set(step.values()) == set(whole.carried)
        for found, array in step.values().items():
            np.testing.assert_array_equal(array, values[found])
            assert not np.array_equal(array, whole.values[found])


@pytest.mark.parametrize(("name", "optimizer", "parameters"), CASES)
def test_a_new_start_goes_on_with_the_same_bits(name: str, optimizer: str, parameters: str, tmp_path: Path) -> None:
    plan = plan_of(name, optimizer, parameters)
    batches = [random_batch(graph_of(plan), seed) for seed in range(5)]
    with ScheduledStep(plan, workdir=tmp_path) as step:
        for batch in batches[:2]:
            step.run(batch, {"lr": 0.05})
        stopped = {found: np.array(array) for found, array in step.values().items()}
        losses = [step.run(batch) for batch in batches[2:]]
        ended = {found: np.array(array) for found, array in step.values().items()}
    with ScheduledStep(plan, workdir=tmp_path) as step:
        step.run(batches[0], {"lr": 7.0})
        step.load(stopped, taken=2)
        assert [step.run(batch, {"lr": 0.05}) for batch in batches[2:]] == losses
        for found, array in step.values().items():
            np.testing.assert_array_equal(array, ended[found])
    assert list(tmp_path.iterdir()) == []


def test_gradients_are_handed_out_and_statistics_go_on() -> None:
    plan = plan_of("residual")
    graph = graph_of(plan)
    batch = random_batch(graph, 4)
    with ScheduledStep(plan) as step:
        for _ in range(2):
            expected = NodeByNode(
                graph, Sessions(graph), {**ResidentRegion.of(graph).given, **step.values()}, graph.results
            ).run(batch)
            assert step.run(batch) == float(expected[graph.loss].reshape(-1)[0])
            assert set(step.gradients) == set(graph.gradients)
            for name, gradient in step.gradients.items():
                np.testing.assert_array_equal(gradient, expected[graph.gradients[name]])
                parameter: Any = step.parameters[name]
                parameter -= np.float32(0.1) * np.asarray(gradient, np.float32)
            for old, new in graph.states.items():
                np.testing.assert_array_equal(step.values()[old], expected[new])
    assert not any(np.array_equal(array, graph.values[name]) for name, array in step.parameters.items())


@pytest.mark.parametrize("parameters", ["resident", "paged"])
def test_dropout_goes_on_where_it_stopped(parameters: str) -> None:
    """Over the step where its generators are seeded anew."""
    problem = po.load(dropout()).differentiate(optimizer="sgd").cost("a72", parameters=parameters)
    plan = lay_out(store_all(problem))
    batch = random_batch(graph_of(plan))
    losses = []
    with ScheduledStep(plan) as step:
        for k in range(WINDOW + 6):
            if k in (3, WINDOW, WINDOW + 3):
                stopped = {name: np.array(array) for name, array in step.values().items()}
                with ScheduledStep(plan) as other:
                    other.load(stopped, taken=k)
                    expected = [other.run(batch, {"lr": 1e-4}) for _ in range(3)]
                losses.append((k, expected))
            loss = step.run(batch, {"lr": 1e-4})
            for begin, expected in losses:
                if begin <= k < begin + 3:
                    assert loss == expected[k - begin]
                    assert expected[0] != expected[1]
    assert len(losses) == 3


def test_written_models_draw_by_any_seed_without_the_library_that_wrote_them(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(lay_out(store_all(po.load(dropout()).differentiate().cost("a72"))))
    fresh, ready = Sessions(graph), Sessions(graph, models=Sessions(graph).written())
    node = next(node for operator in graph.operators for node in operator.nodes if fresh.draws(node))
    name = node.outputs[0]

    def drawn(sessions: Sessions, window: int) -> Any:
        found = np.zeros(graph.tensors[name].shape, np.float32)
        sessions.bound(reseeded(node, window), {name: found.ctypes.data})()
        return found

    expected = [drawn(fresh, window) for window in (0, 1, 7)]
    assert len({array.tobytes() for array in expected}) == 3
    monkeypatch.delattr(Sessions, "_model")
    for window, array in zip((0, 1, 7), expected, strict=True):
        np.testing.assert_array_equal(drawn(ready, window), array)


def test_outputs_are_copies_of_what_the_step_computed() -> None:
    plan = plan_of("residual", "sgd")
    graph = graph_of(plan)
    batch = random_batch(graph)
    name = graph.outputs[0]
    inner = next(o.outputs[0] for o in graph.operators if o.view)
    done = NodeByNode(graph, Sessions(graph), dict(graph.values), (name, inner)).run(batch)
    with ScheduledStep(plan, outputs=(name, inner)) as step:
        step.run(batch)
        for found, array in step.outputs.items():
            np.testing.assert_array_equal(array, done[found])
    with pytest.raises(ModelError, match=f"computes no tensor 'logit'.*its outputs are '{name}'"):
        ScheduledStep(plan, outputs=["logit"])


def test_what_doesn_t_belong_to_the_step_is_refused() -> None:
    plan, plain = plan_of("residual", "sgd"), plan_of("residual")
    batch = random_batch(graph_of(plan))
    with ScheduledStep(plan) as step:
        with pytest.raises(OptionError, match="hyperparameter 'beta1': the step has none of that name; it has lr"):
            step.run(batch, {"beta1": 0.9})
        with pytest.raises(ModelError, match=r"no parameter, optimizer state or running statistic 'fc\.weights'"):
            step.load({"fc.weights": np.zeros(3)})
        with pytest.raises(ModelError, match=r"'fc.bias' is float64 of shape \[3\].*has it as float32 of shape \[10\]"):
            step.load({"fc.bias": np.zeros(3)})
        with pytest.raises(ModelError, match="the data lacks 'labels'"):
            step.run({"input": batch["input"]})
    with ScheduledStep(plain) as step, pytest.raises(OptionError, match="the plan has no optimizer"):
        step.run(batch, {"lr": 0.1})


def test_the_values_of_the_network_stay_as_they_are() -> None:
    plan = plan_of("residual", "sgd")
    before = {name: array.copy() for name, array in graph_of(plan).values.items()}
    with ScheduledStep(plan) as step:
        step.run(random_batch(graph_of(plan)), {"lr": 0.5})
        with pytest.raises(ValueError, match="read-only"):
            step.values()["fc.bias"][...] = 0
    for name, array in graph_of(plan).values.items():
        np.testing.assert_array_equal(array, before[name])
