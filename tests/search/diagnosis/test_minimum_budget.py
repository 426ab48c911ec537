"""The smallest budget and the shortest deadline: schedules keep both, and none is looked for once the time is up."""

from __future__ import annotations

import json
import math
import random
import re
import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import poetopt as po
from poetopt.graph.problem import Problem
from poetopt.plan import codec
from poetopt.plan.assemble import store_all_bytes
from poetopt.plan.simulate import simulate
from poetopt.report.verification import compared
from poetopt.search.diagnosis.minimum_budget import RESOLUTION, STEP_S, least_deadline, least_ram
from poetopt.search.limits import hardest_step
from poetopt.search.search import search
from poetopt.search.solution import Options, Solution, Status
from poetopt.testing.problems import crowded, tight
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError
from tests.support.every_plan import least_overhead_j
from tests.support.problems import random_tight


@cache
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


@pytest.mark.parametrize("seed", range(6))
def test_the_least_ram_within_an_energy_is_that_of_exhaustion(seed: int) -> None:
    problem, _ = random_tight(random.Random(seed))
    times = (1.0, 1.1, 1.3)[seed % 3]
    room_j = (times - 1) * problem.baseline_energy_j + 1e-9
    report = po.solve(problem, minimize="ram", energy_limit=f"{100 * times:g}%", threads=1)
    said = report.to_dict()
    optima = ((ram_bytes, least_overhead_j(problem, ram_bytes)) for ram_bytes in range(1000))
    least = next(ram_bytes for ram_bytes, best in optima if best is not None and best <= room_j)
    assert (said["status"], said["ram_budget_bytes"], said["ram_bound_bytes"]) == ("optimal", least, least)
    found = simulate(report.plan, ram_bytes=least)  # type: ignore[arg-type]
    assert found.overhead_j <= room_j
    assert not compared(codec.from_json(json.loads(report.plan_text())), found)[0]


def test_the_least_ram_keeps_the_deadline_and_what_is_given_at_most() -> None:
    problem, _ = random_tight(random.Random(4))
    free, hurried = (
        po.solve(problem, minimize="ram", energy_limit="2x", deadline=deadline, threads=1) for deadline in (None, "1x")
    )
    assert free.solution.options.ram_bytes < hurried.solution.options.ram_bytes
    assert hurried.to_dict()["makespan_s"] == pytest.approx(problem.baseline_time_s)
    most = free.solution.options.ram_bytes - 1
    with pytest.raises(InfeasibleError):
        po.solve(problem, minimize="ram", energy_limit="2x", ram=most, threads=1)
    with pytest.raises(OptionError, match="one pass over all operators takes"):
        po.solve(problem, minimize="ram", energy_limit="90%")
    with pytest.raises(OptionError, match="--minimize time: must be energy or ram"):
        po.solve(problem, minimize="time")


@pytest.mark.parametrize("seed", range(8))
def test_what_a_refusal_says_is_found_by_the_next_call(seed: int) -> None:
    """The smallest RAM and the shortest deadline, asked for as they are written."""
    draw = random.Random(seed)
    problem, ram_bytes = crowded(draw, again=True) if seed % 2 else random_tight(draw, operators=8, dma=seed % 4 == 0)
    asked: list[dict[str, Any]] = [{"ram": problem.least_ram_bytes - 1}, {"ram": ram_bytes, "deadline": "1x"}]
    for given in asked:
        try:
            po.solve(problem, threads=1, **given)
        except (InfeasibleError, NoScheduleError) as error:
            said = str(error)
        else:
            continue
        hints = re.findall(r"--(ram|deadline) ([\d.e+-]+)", said)
        assert hints, said
        for option, value in hints:
            assert po.solve(problem, threads=1, **{**given, option: value}).plan is not None
