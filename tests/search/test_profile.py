"""Recomputes and page-ins along the memory profile: valid, counted to the byte, near the optimum where it is known."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of, store_all
from poetopt.plan.simulate import simulate
from poetopt.search.heuristics.profile import RECOMPUTE, Profile, ProfileSearch
from poetopt.search.search import search
from poetopt.search.solution import Options
from poetopt.util.work import Work
from tests.bruteforce import plan_optimum
from tests.problems import random_problem, random_tight
from tests.stored import tight_with_parameters
from tests.taken import tight_with_takes


def without_backward(seed: int, operators: int) -> Problem:
    rng = random.Random(seed)
    made = random_problem(rng, operators=operators, training=False, paging=False)
    return replace(made, operators=tuple(replace(operator, backward=False) for operator in made.operators))


@pytest.mark.parametrize("seed", range(40))
def test_the_profile_is_the_simulators_whatever_is_recomputed_and_taken_back(seed: int) -> None:
    problem, rng = without_backward(seed, 12), random.Random(seed)
    profile = Profile(problem)
    assert profile.live().max() == simulate(store_all(problem)).peak_bytes
    before = profile.live().copy()
    keys = []
    for _ in range(6):
        stage = rng.randrange(1, 12)
        operator = rng.randrange(stage)
        key = stage * profile.stride + operator
        reads = all(profile.uses[i][0] < key for i in profile.reads[operator])
        if problem.operators[operator].recomputable and (key, RECOMPUTE) not in profile.decided and reads:
            profile.add((key, RECOMPUTE))
            keys.append((key, RECOMPUTE))
    for decision in rng.sample(keys, len(keys)):
        profile.remove(decision)
    assert np.array_equal(profile.live(), before)


@pytest.mark.parametrize("seed", range(60))
def test_schedules_fit_and_get_cheaper_and_no_optimum_is_undercut(seed: int) -> None:
    problem = without_backward(seed, 7)
    peak = simulate(store_all(problem)).peak_bytes
    for ram in range(peak - 1, peak * 6 // 10, -2):
        known = plan_optimum(problem, ram, paging=False)
        costs = []
        for schedule in ProfileSearch(problem, ram, Work(10_000)).schedules():
            simulation = simulate(plan_of(problem, schedule))
            assert simulation.peak_bytes <= ram
            costs.append(simulation.energy_j - problem.baseline_energy_j)
        assert costs == sorted(costs, reverse=True)
        assert known is not None or not costs
        if known is not None and costs:
            assert costs[-1] >= known.overhead_j


def test_most_small_ones_reach_the_optimum() -> None:
    """The control is the number of those that have a schedule at all."""
    reached = found = there = 0
    for seed in range(100):
        problem = without_backward(seed, 7)
        peak = simulate(store_all(problem)).peak_bytes
        for ram in (peak - 1, peak - 2):
            known = plan_optimum(problem, ram, paging=False)
            if known is None or not known.overhead_j:
                continue
            made = [*ProfileSearch(problem, ram, Work(10_000)).schedules()]
            there += 1
            if made:
                found += 1
                overhead_j = simulate(plan_of(problem, made[-1])).energy_j - problem.baseline_energy_j
                reached += overhead_j <= known.overhead_j + 1e-9
    assert there > 20
    assert found >= 0.8 * there
    assert reached >= 0.9 * found


def test_a_graph_without_a_backward_pass_has_a_plan_at_once() -> None:
    """No narrower scope than `full` recomputes anything there: the plan doesn't depend on a solver."""
    rng = random.Random(3)
    problem = without_backward(3, 40)
    problem = replace(
        problem, tensors=tuple(replace(tensor, nbytes=rng.randrange(1, 60)) for tensor in problem.tensors)
    )
    ram = simulate(store_all(problem)).peak_bytes * 9 // 10
    first: list[str] = []
    found = search(problem, Options(ram_bytes=ram, paging=False), lambda told: first.append(told.phase))
    assert found.plan is not None
    assert first[0] == "heuristic"
    assert simulate(found.plan).peak_bytes <= ram


@pytest.mark.parametrize("seed", range(60))
def test_page_ins_of_training_steps_are_counted_as_the_simulator_does(seed: int) -> None:
    """Bytes and joules; parameters with their home on storage, and outputs that take over an input, included."""
    rng = random.Random(seed)
    makers = (
        lambda: random_tight(rng, operators=7),
        lambda: tight_with_parameters(rng, forward=3),
        lambda: tight_with_takes(rng),
    )
    problem, ram = makers[seed % 3]()
    searching = ProfileSearch(problem, ram - problem.reserve_bytes, Work(5_000), paging=True)
    costs = []
    for schedule in searching.schedules():
        simulation = simulate(plan_of(problem, schedule))
        assert simulation.peak_bytes <= ram
        assert simulation.overhead_j == pytest.approx(searching.profile.total_j)
        costs.append(simulation.overhead_j)
    assert costs == sorted(costs, reverse=True)
    if seed % 3 == 0 and costs:
        known = plan_optimum(problem, ram)
        assert known is not None
        assert costs[-1] >= known.overhead_j - 1e-9
