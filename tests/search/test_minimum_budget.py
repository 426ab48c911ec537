"""The smallest budget and the shortest deadline: schedules keep both, and none is looked for once the time is up."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from typing import Any

import pytest

import poetopt as po
from poetopt.graph.problem import Problem
from poetopt.plan import codec
from poetopt.plan.simulate import simulate
from poetopt.report.verification import compared
from poetopt.search.diagnosis.minimum_budget import RESOLUTION, least_deadline
from poetopt.search.search import search
from poetopt.search.solution import Options, Status
from poetopt.testing.problems import crowded
from poetopt.util.errors import InfeasibleError, NoScheduleError
from tests.bruteforce import plan_optimum
from tests.problems import random_tight
from tests.seeds import some


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


@pytest.mark.parametrize("seed", range(6))
def test_the_least_ram_within_an_energy_is_that_of_exhaustion(seed: int) -> None:
    problem, _ = random_tight(random.Random(seed))
    times = (1.0, 1.1, 1.3)[seed % 3]
    room_j = (times - 1) * problem.baseline_energy_j + 1e-9
    report = po.solve(problem, minimize="ram", energy_limit=f"{100 * times:g}%", threads=1)
    said = report.to_dict()
    optima = ((ram_bytes, plan_optimum(problem, ram_bytes)) for ram_bytes in range(1000))
    least = next(ram_bytes for ram_bytes, best in optima if best is not None and best.overhead_j <= room_j)
    assert (said["status"], said["ram_budget_bytes"], said["ram_bound_bytes"]) == ("optimal", least, least)
    found = simulate(report.plan, ram_bytes=least)  # type: ignore[arg-type]
    assert found.overhead_j <= room_j
    assert not compared(codec.from_json(json.loads(report.plan_text())), found)[0]


@pytest.mark.parametrize("seed", some(range(8), 3))
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
