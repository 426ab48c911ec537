"""Replays that follow a relaxation: what they make of a whole point, what they keep to, and what they never offer."""

from __future__ import annotations

import random

from poetopt.formulations import formulation
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.schedule import FractionalSchedule, Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.cutting import model_of
from poetopt.search.diagnosis.solve import solve
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.heuristics.list_scheduling import list_schedule
from poetopt.search.solution import Options
from poetopt.testing.problems import tight
from tests.seeds import seeds
from tests.support.points import FakePoint

RETENTION = formulation("retention")


def shares_of(problem: Problem, ram_bytes: int, schedule: Schedule) -> FractionalSchedule | None:
    """The shares of a schedule, as a point of the model."""
    model = model_of(RETENTION, problem, Options(ram_bytes=ram_bytes), "full")
    values = RETENTION.search.values(model, schedule)
    return None if values is None else RETENTION.search.fractional(model, FakePoint(values, True))


def overhead(problem: Problem, ram_bytes: int, schedule: Schedule | None) -> float | None:
    """Joules of a schedule's plan above one pass; None where there is none within the budget."""
    if schedule is None:
        return None
    simulation = simulate(plan_of(problem, schedule))
    return simulation.overhead_j if simulation.peak_bytes <= ram_bytes else None


def test_an_optimum_leads_back_to_itself() -> None:
    """What the best schedule keeps, computes again and pages in: followed, it nearly always comes out again."""
    same = better = told = 0
    for seed in seeds(120):
        problem, ram_bytes = tight(random.Random(seed), forward=5)
        solution = solve(problem, Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1))
        if solution.plan is None or solution.simulation is None:
            continue
        shares = shares_of(problem, ram_bytes, schedule_of(solution.plan))
        if shares is None:
            continue
        told += 1
        best = solution.simulation.overhead_j
        found = overhead(problem, ram_bytes, list_schedule(problem, ram_bytes, shares, paging=True, remat=True))
        plain = overhead(problem, ram_bytes, greedy(problem, ram_bytes, paging=True, remat=True))
        assert found is None or solution.overhead_bound_j is None or found >= solution.overhead_bound_j - 1e-9
        same += found is not None and found <= best + 1e-9
        better += found is not None and (plain is None or found < plain - 1e-9)
    assert told > 2 / 3 * len(seeds(120))
    assert same > 0.8 * told
    assert better > 0.2 * told
