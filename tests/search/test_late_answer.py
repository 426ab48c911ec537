"""What is tried where layout, clock or time refuse a plan, and schedules that are found in looking for remedies."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

import poetopt as po
from poetopt.formulations import formulation
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.flash_wear import flash_wear
from poetopt.graph.problem import Problem
from poetopt.plan.layout import check_layout
from poetopt.plan.simulate import simulate
from poetopt.search.constructive import first_schedules
from poetopt.search.diagnosis.solve import LateAnswer
from poetopt.search.run import Run
from poetopt.search.search import search
from poetopt.search.solution import OPTIMAL_GAP, Options, Solution, Status
from poetopt.testing.problems import crowded
from tests.seeds import some


@cache
def hasty(seed: int) -> tuple[Problem, Options, Solution]:
    """A problem with a schedule in time, which the heuristics miss, and a search that had no time for more."""
    draw = random.Random(seed)
    while True:
        problem, ram_bytes = crowded(draw, again=True)
        deadline_s = 1.3 * problem.baseline_time_s
        options = Options(ram_bytes=ram_bytes, deadline_s=deadline_s, scope="full", time_limit_s=0.0)
        blank = search(problem, options)
        if blank.status is Status.UNKNOWN and search(problem, replace(options, time_limit_s=20.0)).plan is not None:
            return problem, options, blank


def sighted(answer: LateAnswer, found: Solution, *, by_rules: bool = False) -> Solution | None:
    assert found.plan is not None
    assert found.simulation is not None
    assert found.arena_bytes is not None
    answer.see(found.plan, found.simulation, found.arena_bytes, by_rules=by_rules)
    return answer.solution


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_a_plan_that_fits_is_the_answer_with_the_first_search_s_bound(seed: int) -> None:
    problem, options, blank = hasty(seed)
    best = search(problem, replace(options, time_limit_s=20.0))
    answer = sighted(LateAnswer(problem, options, blank), best)
    assert answer is not None
    assert answer.plan is not None
    assert answer.simulation == simulate(answer.plan, ram_bytes=options.ram_bytes)
    check_layout(answer.plan, options.ram_bytes)
    assert answer.overhead_bound_j == min(blank.overhead_bound_j or 0.0, answer.simulation.overhead_j)
    assert answer.overhead_gap is not None
    assert (answer.status is Status.OPTIMAL) is (answer.overhead_gap <= OPTIMAL_GAP)
    assert answer.options == options


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_a_plan_that_breaks_what_was_asked_is_none(seed: int) -> None:
    problem, options, blank = hasty(seed)
    best = search(problem, replace(options, time_limit_s=20.0))
    assert best.simulation is not None
    moved = best.simulation.page_ins + best.simulation.page_outs
    energy_j = problem.baseline_energy_j + best.simulation.overhead_j / 2
    short = formulation("retention").with_block(energy_budget(energy_j))
    dry = formulation("retention").with_block(flash_wear(0))
    for asked, breaks in [
        (replace(options, ram_bytes=best.simulation.peak_bytes - 1), True),
        (replace(options, deadline_s=best.simulation.makespan_s * 0.99), True),
        (replace(options, deadline_s=best.simulation.makespan_s), False),
        (replace(options, paging=False), moved > 0),
        (replace(options, remat=False), best.simulation.recomputes > 0),
        (replace(options, formulation=short), True),
        (replace(options, formulation=dry), best.simulation.page_outs > 0),
        (replace(options, formulation="poet"), True),
    ]:
        assert (sighted(LateAnswer(problem, asked, blank), best) is None) is breaks, asked


def test_heuristics_find_a_plan_where_paging_is_cheap_and_slow() -> None:
    """The least energy pages to an SD card that takes longer than a pass; recomputing keeps the deadline."""
    problem = po.load("resnet18-cifar", batch=1).differentiate().cost(po.device("tx2"))
    budget = int(0.45 * po.store_all_peak_bytes(problem))
    options = Options(ram_bytes=budget, deadline_s=1.25 * problem.baseline_time_s)
    run = Run(problem, options, None)
    first_schedules(run, strict=False)
    best = run.incumbent.best
    assert best is not None
    again = simulate(best.plan, ram_bytes=budget)
    assert again.makespan_s <= 1.25 * problem.baseline_time_s * (1 + 1e-9)
