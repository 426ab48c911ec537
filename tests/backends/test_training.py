"""Many steps with a schedule: the same bits as without, updates that are right, data sets in batches."""

from __future__ import annotations

import random
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poetopt.backends.onnxruntime import random_batch
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.onnxruntime.training import train
from poetopt.backends.step.region import ResidentRegion
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from tests.backends.support import NETWORKS, problem
from tests.problems import random_plan
from tests.seeds import everything


def graph_of(name: str) -> TrainingGraph:
    found = problem(name).graph
    assert found is not None
    return found


def wasteful(name: str, seed: int = 0) -> Plan:
    """A valid plan with recomputes and transfers at random places."""
    return lay_out(random_plan(random.Random(seed), problem(name), length=60))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_loss_is_that_of_training_without_a_schedule(name: str, tmp_path: Path) -> None:
    ended = train(wasteful(name), 6, 0.01, workdir=tmp_path, check=1)
    assert ended.ok, ended.message
    assert ended.losses == ended.reference_losses
    assert len(set(ended.losses)) == 6
    assert name == "dropout" or ended.losses[-1] < ended.losses[0]
    assert ended.optimizer_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_steps_are_gradient_descent_with_statistics_carried_over() -> None:
    """Each step again by a network that holds the parameters and statistics so far, updated with numpy."""
    graph = graph_of("residual")
    batch = random_batch(graph, 5)
    ended = train(wasteful("residual", 1), 4, 0.1, data=batch)
    names = (graph.loss, *graph.gradients.values(), *graph.states.values())
    values: dict[str, Any] = dict(graph.values)
    for step in range(4):
        now = replace(graph, values=dict(values))
        done = NodeByNode(now, Sessions(now), ResidentRegion.of(now).given, names).run(batch)
        assert float(done[graph.loss].reshape(-1)[0]) == ended.losses[step]
        for name, made in graph.gradients.items():
            gradient: Any = done[made]
            values[name] = values[name] - gradient * np.float32(0.1)
        for old, new in graph.states.items():
            values[old] = done[new]
    assert set(ended.values) == {*graph.gradients, *graph.states}
    for name, value in ended.values.items():
        np.testing.assert_array_equal(value, values[name])
        assert not np.array_equal(value, graph.values[name])


@pytest.mark.skipif(not everything(), reason="`make bench` runs it")
def test_the_example_fine_tunes_inside_its_budget() -> None:
    path = Path(__file__).resolve().parents[2] / "docs" / "examples" / "finetune.py"
    example = runpy.run_path(str(path))
    assert example["main"](10) > 0.2
