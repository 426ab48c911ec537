"""Replays that follow a relaxation: what they make of a whole point, what they keep to, and what they never offer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from poetopt.formulations import formulation
from poetopt.formulations.language import Block
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.schedule import FractionalSchedule, Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.cutting import model_of, session_of
from poetopt.search.diagnosis.solve import solve
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.heuristics.list_scheduling import list_schedule
from poetopt.search.replays import Replays
from poetopt.search.run import Run
from poetopt.search.solution import Options
from poetopt.testing.problems import tight
from tests.formulations.points import FakePoint
from tests.seeds import seeds

RETENTION = formulation("retention")


def shares_of(problem: Problem, ram_bytes: int, schedule: Schedule) -> FractionalSchedule | None:
    """The shares of a schedule, as a point of the model."""
    model = model_of(RETENTION, problem, Options(ram_bytes=ram_bytes), "full")
    values = RETENTION.points.values(model, schedule)
    return None if values is None else RETENTION.points.fractional(model, FakePoint(values, True))


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


@pytest.mark.parametrize(("paging", "remat"), [(True, False), (False, True)])
def test_what_is_ruled_out_isnt_followed(paging: bool, remat: bool) -> None:
    """However much of it the point has."""
    found = 0
    for seed in range(60):
        problem, ram_bytes = tight(random.Random(seed), forward=5)
        stages = range(len(problem.operators))
        everything = FractionalSchedule(
            np.zeros((len(problem.tensors), len(problem.operators))),
            {(t, j): 1.0 for t in stages for j in stages if j < t},
            {(t, i): 1.0 for t in stages for i in range(len(problem.tensors))},
        )
        schedule = list_schedule(problem, ram_bytes, everything, paging=paging, remat=remat)
        if schedule is not None:
            found += 1
            assert paging or not schedule.page_ins
            assert remat or not schedule.recomputes
    assert found > 10


def test_a_storage_isnt_filled_beyond_what_it_holds() -> None:
    full = 0
    for seed in range(80):
        problem, ram_bytes = tight(random.Random(seed), forward=5)
        problem = replace(problem, storage_bytes=6, storage_block_bytes=1)
        nothing = FractionalSchedule(np.zeros((len(problem.tensors), len(problem.operators))), {}, {})
        schedule = list_schedule(problem, ram_bytes, nothing, paging=True, remat=True)
        if schedule is not None:
            written = {i for _, i in schedule.page_ins}
            assert sum(problem.blocks(i) for i in written) <= 6
            full += bool(written)
    assert full > 10


def followed(change: Callable[[Options], Options] = lambda options: options) -> list[float]:
    """The values of what replayss offer of relaxations of random problems."""
    values = []
    for seed in range(30):
        problem, ram_bytes = tight(random.Random(seed), forward=5)
        options = change(Options(ram_bytes=ram_bytes, scope="full"))
        run = Run(problem, options, None)
        model = model_of(run.chosen, problem, options, "full")
        relaxed = session_of(model, options, scale=1.0).relax(60.0)
        if relaxed.point is None:
            continue
        Replays(run, run.budget, model, run.work).follow(relaxed.point)
        if run.incumbent.value is not None:
            assert run.incumbent.value >= relaxed.objective - 1e-6 * abs(relaxed.objective)
            values.append(run.incumbent.value)
    return values


def test_relaxations_are_made_schedules() -> None:
    assert len(followed()) > 15


def test_where_only_the_model_judges_nothing_is_offered() -> None:
    """A block that restricts and doesn't say how plans are judged: no plan counts that isn't a point of the model."""
    silent = RETENTION.with_block(Block("silent", lambda block: None))
    assert not silent.judged
    assert not followed(lambda options: replace(options, formulation=silent))


def test_a_solve_gains_by_them() -> None:
    """With one thread, so that there is no tree: after rounds of cutting some schedule comes first of a replay."""
    phases = set()
    for seed in range(12):
        problem, ram_bytes = tight(random.Random(seed), forward=14)
        solution = solve(problem, Options(ram_bytes=ram_bytes, scope="depth:8", threads=1))
        phases |= {progress.phase for progress in solution.trace}
    assert "guided" in phases
