"""A batch in parts in C: the whole batch's step to rounding, the unscheduled parts' to the bit, in the plan's RAM."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import execute_on, train_on
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.run import Ran, run
from poetopt.backends.c.sensitivity import distance, moved_by
from poetopt.backends.onnxruntime.batch import Batch, random_batch
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all
from poetopt.plan.closing import closing_plan
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from tests.support.c import HOST, WARNINGS, needs_host
from tests.test_micro_batches import network, tight

PARTS = 4


def step(optimizer: str, parts: int = PARTS, parameters: str = "resident") -> Problem:
    """A small network's step on eight images, for kernels in C."""
    model = po.load(network(0), batch=8, micro_batch=parts)
    assert isinstance(model, po.Model)
    return model.differentiate(optimizer=optimizer).cost("m4", runtime="c", parameters=parameters)


@cache
def paged() -> Plan:
    """A plan with some parameters and sums in RAM from part to part, and others on storage."""
    problem = step("momentum", parameters="paged")
    plan = po.solve(problem, ram=problem.least_ram_bytes + 6400, threads=1, time_limit="20s").plan
    assert plan is not None
    kept = {problem.tensors[i].name for i in plan.problem.lasting}
    assert any(name.endswith(".grad.sum") for name in kept)
    assert po.simulate(plan).page_ins > PARTS
    assert not kept.issuperset(problem.graph.sums.values() if problem.graph else ())
    return plan


@cache
def away() -> Plan:
    """A plan that keeps nothing in RAM from part to part, and streams, behind the last part too."""
    problem = step("sgd", parameters="paged")
    plan = tight(problem, 500)
    assert not plan.problem.lasting
    after = closing_plan(plan)
    assert after is not None
    assert all(any(step.variant for step in one.instructions) for one in (plan, after))
    return plan


def program_of(plan: Plan) -> DeviceProgram:
    assert plan.problem.graph is not None
    return device_program(plan, plan.problem.graph)


def batch_of(problem: Problem) -> Batch:
    assert problem.graph is not None
    return random_batch(problem.graph.whole, 3)


def ran(program: DeviceProgram, folder: Path) -> Ran:
    write(program, HOST, folder)
    built = build(program, HOST, folder, warnings=("-Werror", *WARNINGS))
    return run(built, batch_of(program.plan.problem))


@needs_host
def test_a_step_in_parts_is_the_whole_batchs_and_the_unscheduled_parts(tmp_path: Path) -> None:
    """The whole batch in one is another program, whose sums are in another order."""
    plan = paged()
    found = execute_on(plan, "host", data=batch_of(plan.problem))
    assert found.ok, found.message
    assert found.bytes_paged == po.simulate(plan).bytes_paged > 0
    one = step("momentum", 1)
    assert one.graph is not None
    whole = ran(program_of(lay_out(store_all(one))), tmp_path).results
    mine, theirs = (moved_by(one.graph, one.graph.values, results) for results in (found.results, whole))
    assert distance(mine, theirs, one.graph.trained) < 1e-5
    assert found.loss == pytest.approx(float(whole["loss"]), rel=1e-6)
    half = {name: np.concatenate([array[:4], array[:4]]) for name, array in batch_of(one).items()}
    other = execute_on(plan, "host", data=half)
    apart = moved_by(one.graph, one.graph.values, other.results)
    assert distance(apart, theirs, one.graph.trained) > 1e-2


@needs_host
@pytest.mark.parametrize("plan", [paged, away])
def test_steps_in_parts_go_on_as_onnxruntimes_do(plan: Callable[[], Plan]) -> None:
    """Each step begins with sums of zero; there are two batches, in turn."""
    graph = plan().problem.graph
    assert graph is not None
    drawn = [random_batch(graph.whole, seed) for seed in range(2)]
    data = {name: np.concatenate([batch[name] for batch in drawn]) for name in graph.inputs}
    found = train_on(plan(), "host", 4, 0.05, data=data)
    assert found.ok, found.message
    assert len(set(found.losses)) == 4
