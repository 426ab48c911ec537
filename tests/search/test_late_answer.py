"""A schedule that is found in looking for remedies, and keeps all that was asked, is the answer."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.flash_wear import flash_wear
from poetopt.graph.problem import Problem
from poetopt.plan.layout import check_layout
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import LateAnswer, solve
from poetopt.search.search import search
from poetopt.search.solution import OPTIMAL_GAP, Options, Solution, Status
from poetopt.testing.problems import crowded


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


def test_a_search_without_time_does_not_say_that_no_schedule_exists() -> None:
    _, options, blank = hasty(0)
    assert (blank.status, blank.scope) == (Status.UNKNOWN, options.scope)
    assert "none is proven impossible" in blank.reason
    assert "exists" not in blank.reason


def sighted(answer: LateAnswer, found: Solution, *, by_rules: bool = False) -> Solution | None:
    assert found.plan is not None
    assert found.simulation is not None
    assert found.arena_bytes is not None
    answer.see(found.plan, found.simulation, found.arena_bytes, by_rules=by_rules)
    return answer.solution


@pytest.mark.parametrize("seed", range(4))
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


@pytest.mark.parametrize("seed", range(4))
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


def test_the_quickest_plan_seen_is_the_shortest_deadline_known() -> None:
    """Also one for less RAM, or for no deadline; none that takes more RAM than was asked."""
    problem, options, blank = hasty(0)
    found = search(problem, replace(options, time_limit_s=20.0))
    late = replace(options, deadline_s=0.9 * problem.baseline_time_s)
    answer = LateAnswer(problem, late, replace(blank, options=late))
    assert sighted(answer, found) is None
    assert found.simulation is not None
    assert answer.quickest_s == found.simulation.makespan_s
    small = LateAnswer(problem, replace(late, ram_bytes=found.simulation.peak_bytes - 1), blank)
    assert sighted(small, found) is None
    assert small.quickest_s == math.inf


def test_strict_rules_are_taken_from_their_own_search_alone() -> None:
    problem, options, blank = hasty(1)
    best = search(problem, replace(options, time_limit_s=20.0))
    poet = LateAnswer(problem, replace(options, formulation="poet"), blank)
    assert sighted(poet, best, by_rules=True) is not None


def test_what_is_proven_impossible_stays_that() -> None:
    problem, options, blank = hasty(2)
    best = search(problem, replace(options, time_limit_s=20.0))
    assert sighted(LateAnswer(problem, options, replace(blank, status=Status.INFEASIBLE)), best) is None


@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_no_one_is_told_of_a_schedule_that_would_have_done(seed: int, factor: float) -> None:
    problem, options, _ = hasty(seed)
    deadline_s = factor * problem.baseline_time_s
    solution = solve(problem, replace(options, deadline_s=deadline_s))
    if solution.plan is None:
        least_bytes, least_s = solution.least_ram_bytes, solution.least_deadline_s
        assert solution.status is Status.INFEASIBLE or least_bytes is None or least_bytes > options.ram_bytes
        assert solution.status is Status.INFEASIBLE or least_s is None or least_s > deadline_s
    else:
        again = simulate(solution.plan, ram_bytes=options.ram_bytes)
        assert again == solution.simulation
        assert again.makespan_s <= deadline_s * (1 + 1e-9)
