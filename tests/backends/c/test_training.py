"""Steps in C one after another: losses and parameters beside onnxruntime's, and what must fail does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poetopt.backends.c import execute
from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import numbers, train_on
from poetopt.backends.c.execution import TOLERANCE
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import Ran, run_steps
from poetopt.backends.c.sensitivity import distance, moved_by
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.training import train
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.util.errors import OptionError
from tests.backends.c.support import (
    HOST,
    dropping,
    needs_host,
    network,
    other_board,
    paged_parameters,
    unscheduled,
    updating,
)

LR = 0.05


def data(plan: Plan) -> dict[str, object]:
    """Three different batches, which four steps take in turn."""
    graph = plan.problem.graph
    assert graph is not None
    drawn = [random_batch(graph, seed) for seed in range(3)]
    return {name: np.concatenate([batch[name] for batch in drawn]) for name in graph.inputs}


@needs_host
def test_paged_parameters_are_trained_as_onnxruntime_trains_them() -> None:
    """Its own losses, of another program, come out as well; each step has another batch."""
    plan = paged_parameters()
    found = train_on(plan, "host", 4, LR, data=data(plan))
    assert found.ok, found.message
    assert found.bit_identical
    assert found.hyperparameters["lr"] == pytest.approx(LR)
    ordinary = lay_out(store_all(network().differentiate(optimizer="sgd").cost("a72")))
    theirs = train(ordinary, 4, LR, data=data(ordinary))
    assert found.losses == pytest.approx(theirs.losses, rel=1e-5)
    assert len(set(found.losses)) == 4
    graph = plan.problem.graph
    assert graph is not None
    mine, others = (moved_by(graph, graph.values, values) for values in (found.values, theirs.values))
    longest = max(float(np.abs(others[name]).max()) for name in graph.trained)
    assert longest > 1e-3
    assert distance(mine, others, graph.trained) < 1e-4


@needs_host
def test_random_kernels_go_on_drawing_from_step_to_step() -> None:
    """The batch is the same in each step, and nothing is learned: only the masks differ."""
    found = train_on(lay_out(store_all(dropping())), "host", 3, 1e-30)
    assert found.bit_identical
    assert found.losses == pytest.approx(found.reference_losses, rel=1e-6)
    assert len(set(found.losses)) == 3


@other_board
def test_steps_on_a_cortex_m4_with_exactly_the_ram() -> None:
    """Adam counts its steps by a number that the tables have."""
    plan = lay_out(store_all(network().differentiate(optimizer="adam").cost("m4", runtime="c")))
    found = train_on(plan, "cortex-m4", 3, 0.01)
    assert found.ok, found.message
    assert found.linked_ram_bytes == found.planned_ram_bytes
    assert found.stack_bytes is not None
    assert 0 < found.stack_bytes <= plan.problem.stack_bytes


@needs_host
def test_a_step_that_is_left_out_and_another_learning_rate_are_noticed(tmp_path: Path) -> None:
    plan = lay_out(store_all(updating()))
    graph = updating().graph
    assert graph is not None
    told = numbers(graph, 0, {"lr": LR, "momentum": 0.5})
    other = numbers(graph, 0, {"lr": 1.01 * LR, "momentum": 0.5})
    batches = [random_batch(graph, 1)] * 3
    exact, near = execute.reference_ways(graph, batches, [told] * 3)
    allowed = TOLERANCE * max(execute.apart(way, exact) for way in near)
    program = device_program(plan, graph)
    write(program, HOST, tmp_path)
    built = build(program, HOST, tmp_path, measuring=False)

    def far(found: Ran) -> float:
        here = execute.Way(found.losses, moved_by(graph, graph.values, found.results))
        return execute.apart(here, exact)

    assert far(run_steps(built, batches, [told] * 3)) <= allowed
    assert far(run_steps(built, batches, [told, told, other])) > allowed
    assert far(run_steps(built, batches[:2], [told] * 2)) > allowed


def test_a_step_without_an_update_is_refused() -> None:
    with pytest.raises(OptionError, match="solve with --optimizer sgd"):
        train_on(unscheduled(), "host", 2, LR)
