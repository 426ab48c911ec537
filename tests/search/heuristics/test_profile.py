"""Recomputes and page-ins along the memory profile: valid, counted to the byte, near the optimum where it is known."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of, store_all
from poetopt.plan.simulate import simulate
from poetopt.search.heuristics.profile import ProfileSearch
from poetopt.util.work import Work
from tests.support.every_plan import least_overhead_j
from tests.support.problems import random_problem


def without_backward(seed: int, operators: int) -> Problem:
    rng = random.Random(seed)
    made = random_problem(rng, operators=operators, training=False, paging=False)
    return replace(made, operators=tuple(replace(operator, backward=False) for operator in made.operators))


@pytest.mark.parametrize("seed", range(60))
def test_schedules_fit_and_get_cheaper_and_no_optimum_is_undercut(seed: int) -> None:
    problem = without_backward(seed, 7)
    peak = simulate(store_all(problem)).peak_bytes
    for ram in range(peak - 1, peak * 6 // 10, -2):
        known = least_overhead_j(problem, ram, paging=False)
        costs = []
        for schedule in ProfileSearch(problem, ram, Work(10_000)).schedules():
            simulation = simulate(plan_of(problem, schedule))
            assert simulation.peak_bytes <= ram
            costs.append(simulation.energy_j - problem.baseline_energy_j)
        assert costs == sorted(costs, reverse=True)
        assert known is not None or not costs
        if known is not None and costs:
            assert costs[-1] >= known
