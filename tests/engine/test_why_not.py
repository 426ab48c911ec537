"""What is said of a problem without a schedule is true: of sums that hold for all, and of schedules that exist."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import poetopt as po
from poetopt.engine.loop import solve
from poetopt.engine.solution import Options, Status
from poetopt.engine.why_not import hardest_step
from poetopt.errors import InfeasibleError
from poetopt.formulations import formulation
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.flash_wear import flash_wear
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem
from poetopt.testing.problems import tight
from tests.bruteforce import plan_optimum


def infeasible(seed: int, **asked: object) -> tuple[Problem, Options]:
    """A tight problem that has schedules, and none under the options that are asked for."""
    draw = random.Random(seed)
    while True:
        problem, ram_bytes = tight(draw, forward=3)
        options = Options(ram_bytes=ram_bytes, scope="full", time_limit_s=10, **asked)  # type: ignore[arg-type]
        if plan_optimum(problem, ram_bytes) is not None and solve(problem, options).status is Status.INFEASIBLE:
            return problem, options


@pytest.mark.parametrize("seed", range(3))
def test_no_paging_is_named_with_what_it_costs(seed: int) -> None:
    problem, options = infeasible(seed, paging=False)
    solution = solve(problem, options)
    assert any(text.startswith("without --no-paging a schedule exists (") for text in solution.why), solution.why
    assert solution.least_ram_bytes is not None
    assert solution.least_ram_bytes > options.ram_bytes


def test_a_deadline_is_named_and_the_shortest_is_met() -> None:
    draw = random.Random(4)
    while True:
        problem, ram_bytes = tight(draw, forward=3)
        options = Options(ram_bytes=ram_bytes, deadline_s=problem.baseline_time_s * 1.01, scope="full")
        solution = solve(problem, options)
        if solution.status is Status.INFEASIBLE:
            break
    assert any(text.startswith("without the deadline of") for text in solution.why), solution.why
    shortest = solution.least_deadline_s
    assert shortest is not None
    assert solve(problem, replace(options, deadline_s=shortest)).plan is not None
    assert solve(problem, replace(options, deadline_s=shortest * 0.98)).status is Status.INFEASIBLE


def test_blocks_are_named() -> None:
    draw = random.Random(5)
    base = formulation("retention")
    while True:
        problem, ram_bytes = tight(draw, forward=3)
        together = base.with_block(flash_wear(0), energy_budget(problem.baseline_energy_j * 9))
        solution = solve(problem, Options(ram_bytes=ram_bytes, formulation=together, scope="full", remat=False))
        if solution.status is Status.INFEASIBLE:
            break
    said = " ".join(solution.why)
    assert "the block flash_wear (at most 0 B written to storage a step)" in said
    assert "without --no-remat" in said or "--no-remat" not in said


def test_nothing_is_promised_where_energy_is_short() -> None:
    problem, ram_bytes = tight(random.Random(6), forward=3)
    together = formulation("retention").with_block(energy_budget(problem.baseline_energy_j / 2))
    solution = solve(problem, Options(ram_bytes=ram_bytes, formulation=together))
    assert solution.status is Status.INFEASIBLE
    assert solution.least_ram_bytes is None
    assert "energy limit" in solution.reason
    assert any("without the block energy_budget" in text for text in solution.why)


@pytest.mark.parametrize("seed", range(30))
def test_the_hardest_step_is_a_bound(seed: int) -> None:
    """No schedule without paging (and none that keeps everything) does with less; the optimum's search agrees."""
    problem, _ = tight(random.Random(seed), forward=2)
    options = Options(ram_bytes=0, paging=False)
    step = hardest_step(problem, options)
    assert step.nbytes >= problem.least_ram_bytes
    assert plan_optimum(problem, step.nbytes - 1, paging=False) is None
    assert hardest_step(problem, replace(options, remat=False)).nbytes == store_all_bytes(problem)
    assert hardest_step(problem, replace(options, paging=True)).nbytes == problem.least_ram_bytes


def test_the_message_names_operator_and_tensors() -> None:
    problem = po.load("resnet18-cifar").differentiate().cost("a72")
    step = hardest_step(problem, Options(ram_bytes=0, paging=False, remat=False))
    with pytest.raises(InfeasibleError, match=r"needs [\d,]+ bytes without paging") as raised:
        po.solve(problem, ram=step.nbytes - 1, paging=False, remat=False, time_limit=5)
    assert f"'{problem.operators[step.operator].name}'" in str(raised.value)
    assert raised.value.report is not None
    assert raised.value.report["why"]
    assert raised.value.report["ram_bound_bytes"] == step.nbytes
