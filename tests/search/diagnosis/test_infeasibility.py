"""What is said of a problem without a schedule is true: of sums that hold for all, and of schedules that exist."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import cache

import pytest

import poetopt as po
from poetopt.formulations import formulation
from poetopt.formulations.composition import without
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.goal import ENERGY, WRITTEN
from poetopt.formulations.language import Block, Formulation
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.infeasibility import explain
from poetopt.search.diagnosis.solve import solve
from poetopt.search.limits import hardest_step
from poetopt.search.solution import Options, Status
from poetopt.testing.problems import crowded, tight
from poetopt.util.errors import InfeasibleError
from tests.support.every_plan import least_overhead_j


def infeasible(seed: int, **asked: object) -> tuple[Problem, Options]:
    """A tight problem that has schedules, and none under the options that are asked for."""
    draw = random.Random(seed)
    while True:
        problem, ram_bytes = tight(draw, forward=3)
        options = Options(ram_bytes=ram_bytes, scope="full", time_limit_s=10, **asked)  # type: ignore[arg-type]
        if least_overhead_j(problem, ram_bytes) is not None and solve(problem, options).status is Status.INFEASIBLE:
            return problem, options


@pytest.mark.parametrize("seed", range(3))
def test_no_paging_is_named_with_what_it_costs(seed: int) -> None:
    problem, options = infeasible(seed, paging=False)
    solution = solve(problem, options)
    assert any(text.startswith("without the ban on paging a schedule exists (") for text in solution.why), solution.why
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
    assert "without the ban on recomputation" in said or "ban on recomputation" not in said


def test_nothing_is_promised_where_energy_is_short() -> None:
    problem, ram_bytes = tight(random.Random(6), forward=3)
    together = formulation("retention").with_block(energy_budget(problem.baseline_energy_j / 2))
    solution = solve(problem, Options(ram_bytes=ram_bytes, formulation=together))
    assert solution.status is Status.INFEASIBLE
    assert solution.least_ram_bytes is None
    assert "energy limit" in solution.reason
    assert any("without the block energy_budget" in text for text in solution.why)


def test_the_message_names_operator_and_tensors() -> None:
    problem = po.load("resnet18-cifar").differentiate().cost("a72")
    step = hardest_step(problem, Options(ram_bytes=0, paging=False, remat=False))
    with pytest.raises(InfeasibleError, match=r"needs [\d,]+ bytes without paging") as raised:
        po.solve(problem, ram=step.nbytes - 1, paging=False, remat=False, time_limit=5)
    assert f"'{problem.operators[step.operator].name}'" in str(raised.value)
    assert raised.value.report is not None
    assert raised.value.report["why"]
    assert raised.value.report["ram_bound_bytes"] == step.nbytes


@cache
def short(seed: int, name: str) -> tuple[Problem, Options, Formulation]:
    """A problem with schedules, and none where `name` allows half of what the one of least energy takes beyond one pass
    (`energy_budget`) or writes (`flash_wear`)."""
    draw = random.Random(seed)
    base = formulation("retention")
    while True:
        problem, ram_bytes = crowded(draw, again=name == "energy_budget")
        options = Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20, remat=name == "energy_budget")
        best = solve(problem, options)
        if best.plan is None or best.simulation is None:
            continue
        trial = base.trial(best.plan, best.simulation)
        made = limited(name, problem, WRITTEN.value(trial) / 2, trial.overhead_j / 2)
        asked = replace(options, formulation=base.with_block(made))
        if solve(problem, asked).status is Status.INFEASIBLE:
            return problem, asked, base


def limited(name: str, problem: Problem, nbytes: float, joules: float) -> Block:
    return flash_wear(int(nbytes)) if name == "flash_wear" else energy_budget(problem.baseline_energy_j + joules)


@pytest.mark.parametrize("name", ["energy_budget", "flash_wear"])
@pytest.mark.parametrize("seed", range(3))
def test_the_least_that_a_block_can_be_asked_for_is_named_and_exact(seed: int, name: str) -> None:
    problem, options, base = short(seed, name)
    solution = solve(problem, options)
    said = [text for text in solution.why if text.startswith(f"the least known to be feasible for {name} is ")]
    assert len(said) == 1, solution.why
    found = re.search(
        r"is ([\d.,]+) (?:bytes|J) a step, and no schedule with any operator recomputed at any time, "
        "once before each other has less",
        said[0],
    )
    assert found is not None, said
    least = float(found[1].replace(",", ""))
    above = least - problem.baseline_energy_j
    enough = base.with_block(limited(name, problem, least, above))
    assert solve(problem, replace(options, formulation=enough)).plan is not None
    less = base.with_block(limited(name, problem, max(0.0, least - 1), above * 0.99))
    assert solve(problem, replace(options, formulation=less)).status is Status.INFEASIBLE


@pytest.mark.parametrize("seed", range(3))
def test_the_least_is_of_the_other_blocks_too(seed: int) -> None:
    """What is written at least, within a battery whose block has a goal of its own."""
    problem, ram_bytes = crowded(random.Random(seed), again=False)
    base = formulation("retention")
    battery, wear = energy_budget(problem.baseline_energy_j * 3), flash_wear(0)
    eased = without(base.with_block(battery, wear), wear, minimising=WRITTEN)
    assert eased.goal is WRITTEN
    options = Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20, formulation=eased)
    found = solve(problem, options)
    assert found.plan is not None
    assert found.simulation is not None
    assert found.objective is not None
    assert found.objective.value == WRITTEN.value(eased.trial(found.plan, found.simulation))
    assert found.simulation.energy_j <= problem.baseline_energy_j * 3 * (1 + 1e-9)
    assert without(base.with_block(battery, wear), battery).goal is ENERGY


def test_without_time_the_heuristics_say_what_they_know() -> None:
    problem, options, base = short(0, "energy_budget")
    blank = solve(problem, options)
    why = explain(problem, options, blank, solve, seconds=0.0)
    found = re.search(r"for energy_budget is ([\d.]+) J a step$", " ".join(why.says))
    assert found is not None, why.says
    enough = base.with_block(energy_budget(float(found[1])))
    assert solve(problem, replace(options, formulation=enough)).plan is not None
