"""The problem-space search: what deviations change, and what is found by them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import FractionalSchedule, Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.heuristics.greedy import Replay, may_run_again
from poetopt.search.heuristics.list_scheduling import list_schedule
from poetopt.search.heuristics.problem_space import Deviation, ProblemSpace
from poetopt.search.incumbent import Incumbent
from poetopt.search.solution import Options
from poetopt.testing.problems import tight
from tests.seeds import seeds


def vague(problem: Problem) -> FractionalSchedule:
    """A point that is half of everything."""
    stages, tensors = range(len(problem.operators)), range(len(problem.tensors))
    return FractionalSchedule(
        np.full((len(problem.tensors), len(problem.operators)), 0.5),
        {(t, j): 0.5 for t in stages for j in stages if j < t},
        {(t, i): 0.5 for t in stages for i in tensors},
    )


def space_of(problem: Problem, ram_bytes: int) -> tuple[ProblemSpace, Incumbent]:
    incumbent = Incumbent(problem, Options(ram_bytes=ram_bytes, scope="full"))
    room, weigh = incumbent.room_bytes, incumbent.weigh
    return ProblemSpace(problem, vague(problem), aims_at=room, paging=True, remat=True, weigh=weigh), incumbent


def test_the_first_step_is_the_replay_itself() -> None:
    told = 0
    for seed in range(40):
        problem, ram_bytes = tight(random.Random(seed), forward=5)
        space, incumbent = space_of(problem, ram_bytes)
        plain = list_schedule(problem, incumbent.room_bytes, vague(problem), paging=True, remat=True)
        found = space.step(math.inf)
        if plain is not None and incumbent.weigh(plain) < math.inf:
            told += 1
            assert found == plain
        else:
            assert found is None
    assert told > 20


def test_finds_what_one_replay_does_not_and_nothing_below_the_optimum() -> None:
    better = optimal = solved = 0
    for seed in range(25):
        problem, ram_bytes = tight(random.Random(seed), forward=5)
        space, incumbent = space_of(problem, ram_bytes)
        first = space.step(math.inf)
        value = start = math.inf if first is None else incumbent.weigh(first)
        for _ in range(100):
            found = space.step(value)
            if found is not None:
                simulation = simulate(plan_of(problem, found))
                assert simulation.peak_bytes <= ram_bytes
                assert simulation.overhead_j == pytest.approx(incumbent.weigh(found))
                assert simulation.overhead_j < value
                value = simulation.overhead_j
        solution = solve(problem, Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1))
        if solution.simulation is None:
            continue
        solved += 1
        better += value < start
        assert value >= solution.simulation.overhead_j - 1e-9
        optimal += value <= solution.simulation.overhead_j + 1e-9
    assert better > 5
    assert optimal > 0.5 * solved


def test_what_is_decided_stays() -> None:
    kept = np.array([[0.0, 1.0, 0.4]])
    shares = FractionalSchedule(kept, {(1, 0): 1.0, (2, 0): 0.3}, {(2, 0): 0.2})
    moved = Deviation(np.array([0.3]), np.array([-0.5]), np.array([0.4]), 1.0).of(shares)
    assert moved.kept.tolist() == [[0.0, 1.0, 0.7]]
    assert moved.recomputes == {(1, 0): 1.0, (2, 0): 0.7}
    assert moved.page_ins == {(2, 0): 0.0}


def test_no_schedule_is_given_out_twice_and_none_that_is_no_better() -> None:
    problem, ram_bytes = tight(random.Random(3), forward=5)
    space, _ = space_of(problem, ram_bytes)
    offered = [found for _ in range(300) if (found := space.step(math.inf)) is not None]
    assert len(offered) == len(set(offered)) > 3
    assert all(space.step(0.0) is None for _ in range(50))


class _Forgetful(dict[int, tuple[float, int]]):
    def __setitem__(self, key: int, value: tuple[float, int]) -> None:
        pass


def test_replays_are_the_same_whether_or_not_costs_are_remembered() -> None:
    schedules = set[Schedule | None]()
    for seed in seeds(150):
        problem, ram_bytes = tight(random.Random(seed), forward=7)
        again = may_run_again(problem, True)
        remembers = Replay(problem, ram_bytes, True, again)
        forgets = Replay(problem, ram_bytes, True, again, known=_Forgetful())
        schedule = remembers.run()
        assert schedule == forgets.run()
        schedules.add(schedule)
    assert len(schedules) > len(seeds(150)) / 3
