"""The smallest budget and the shortest deadline: schedules keep both, and none is looked for once the time is up."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import pytest

from poetopt.diagnosis.minimum_budget import RESOLUTION, STEP_S, least_deadline, least_ram
from poetopt.engine.limits import hardest_step
from poetopt.engine.search import search
from poetopt.engine.solution import Options, Solution, Status
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem
from poetopt.testing.problems import crowded, tight
from tests.problems import random_tight


def hurried(seed: int) -> tuple[Problem, Options, float]:
    """A problem without a schedule in time, and the quickest that the heuristics find for it."""
    draw = random.Random(seed)
    while True:
        problem, ram_bytes = crowded(draw, again=True)
        options = Options(ram_bytes=ram_bytes, deadline_s=1.02 * problem.baseline_time_s, scope="full")
        if search(problem, options).status is Status.INFEASIBLE:
            quickest = least_deadline(problem, options, search, until=0.0)
            if quickest is not None:
                return problem, options, quickest


@pytest.mark.parametrize("seed", range(3))
def test_the_shortest_deadline_is_met_and_no_shorter_one(seed: int) -> None:
    problem, options, by_heuristics = hurried(seed)
    shortest = least_deadline(problem, options, search, until=math.inf)
    assert shortest is not None
    assert options.deadline_s is not None
    assert options.deadline_s < shortest <= by_heuristics
    assert search(problem, replace(options, deadline_s=shortest)).plan is not None
    assert search(problem, replace(options, deadline_s=shortest * (1 - 2 / RESOLUTION))).status is Status.INFEASIBLE


def test_a_search_finds_shorter_ones_than_the_heuristics() -> None:
    problem, options, by_heuristics = hurried(0)
    shortest = least_deadline(problem, options, search, until=math.inf)
    assert shortest is not None
    assert shortest < 0.98 * by_heuristics


@pytest.mark.parametrize("seed", range(3))
def test_once_the_time_is_up_nothing_more_is_tried(seed: int) -> None:
    problem, options, _ = hurried(seed)
    tried: list[float] = []
    least_deadline(problem, options, search, 0.0, lambda candidate: tried.append(candidate.value))
    assert len(tried) <= 1
    unhurried = replace(options, deadline_s=None)
    assert least_ram(problem, unhurried, until=0.0) == store_all_bytes(problem)
    assert least_ram(problem, unhurried, search, until=0.0) == store_all_bytes(problem)
    assert (least_ram(problem, unhurried) or 0) < store_all_bytes(problem)


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_no_budget_below_what_the_hardest_step_needs_is_tried(seed: int) -> None:
    problem, ram_bytes = tight(random.Random(seed), forward=3)
    options = Options(ram_bytes=ram_bytes, paging=False, scope="full")
    bound = hardest_step(problem, options).nbytes
    assert bound > problem.least_ram_bytes
    tried: list[int] = []

    def watched(problem: Problem, trial: Options) -> Solution:
        tried.append(trial.ram_bytes)
        return search(problem, trial)

    least = least_ram(problem, options, watched)
    assert least is not None
    assert min([least, *tried]) >= bound


@pytest.mark.parametrize("what", ["ram", "deadline"])
def test_no_step_is_given_more_than_is_left(what: str) -> None:
    problem, options, _ = hurried(1)
    limits: list[tuple[float, float]] = []
    until = time.monotonic() + 0.8 * STEP_S
    free = until - time.monotonic()

    def watched(problem: Problem, trial: Options) -> Solution:
        nonlocal free
        limits.append((trial.time_limit_s, free))
        found = search(problem, trial)
        free = until - time.monotonic()
        return found

    if what == "ram":
        least_ram(problem, options, watched, until)
    else:
        least_deadline(problem, options, watched, until)
    assert limits
    assert all(0 < limit_s <= left_s for limit_s, left_s in limits), limits


def test_what_is_known_is_a_schedule_of_the_formulation() -> None:
    """The paper's model is stricter than plans are: what greedy rules find needn't be one of its points."""
    stricter = 0
    for seed in range(60):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6)
        options = Options(ram_bytes=ram_bytes, formulation="poet", scope="full", time_limit_s=20)
        if search(problem, options).status is not Status.INFEASIBLE:
            continue
        known = least_ram(problem, options, search)
        stricter += known != least_ram(problem, replace(options, formulation="retention"), search)
        if known is not None:
            assert known > ram_bytes
            assert search(problem, replace(options, ram_bytes=known)).plan is not None
    assert stricter
