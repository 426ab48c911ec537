"""Perturbed replays: what deviations change, what is found by them, and when they are at work."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from poetopt.diagnosis.solve import solve
from poetopt.engine.guide import Guide
from poetopt.engine.incumbent import Incumbent
from poetopt.engine.meanwhile import Meanwhile
from poetopt.engine.model import model_of, session_of
from poetopt.engine.run import Run
from poetopt.engine.solution import Options
from poetopt.formulations.rows import PointLike
from poetopt.heuristics.greedy import Replay, may_run_again
from poetopt.heuristics.guided import guided
from poetopt.heuristics.problem_space import Deviation, ProblemSpace
from poetopt.plan.assemble import plan_of
from poetopt.plan.simulate import simulate
from poetopt.problem import Problem
from poetopt.schedule import Leaning, Schedule
from poetopt.testing.problems import tight
from tests.seeds import seeds

ENOUGH_S = 30.0


def vague(problem: Problem) -> Leaning:
    """A point that is half of everything."""
    stages, tensors = range(len(problem.operators)), range(len(problem.tensors))
    return Leaning(
        np.full((len(problem.tensors), len(problem.operators)), 0.5),
        {(t, j): 0.5 for t in stages for j in stages if j < t},
        {(t, i): 0.5 for t in stages for i in tensors},
    )


def space_of(problem: Problem, ram_bytes: int) -> tuple[ProblemSpace, Incumbent]:
    incumbent = Incumbent(problem, Options(ram_bytes=ram_bytes, scope="full"))
    space = ProblemSpace(problem, aims_at=incumbent.room_bytes, paging=True, remat=True, weigh=incumbent.weigh)
    space.aim(vague(problem))
    return space, incumbent


def test_the_first_step_is_the_replay_itself() -> None:
    told = 0
    for seed in range(40):
        problem, ram_bytes = tight(random.Random(seed), forward=5)
        space, incumbent = space_of(problem, ram_bytes)
        plain = guided(problem, incumbent.room_bytes, vague(problem), paging=True, remat=True)
        space.step()
        found = space.take(math.inf)
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
        space.step()
        first = space.take(math.inf)
        value = math.inf if first is None else incumbent.weigh(first)
        for _ in range(100):
            space.step()
        found = space.take(value)
        solution = solve(problem, Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1))
        if solution.simulation is None:
            continue
        solved += 1
        if found is not None:
            simulation = simulate(plan_of(problem, found))
            assert simulation.peak_bytes <= ram_bytes
            assert simulation.overhead_j == pytest.approx(incumbent.weigh(found))
            assert simulation.overhead_j < value
            value = simulation.overhead_j
            better += 1
        assert value >= solution.simulation.overhead_j - 1e-9
        optimal += value <= solution.simulation.overhead_j + 1e-9
    assert better > 5
    assert optimal > 0.5 * solved


def test_what_is_decided_stays() -> None:
    kept = np.array([[0.0, 1.0, 0.4]])
    leaning = Leaning(kept, {(1, 0): 1.0, (2, 0): 0.3}, {(2, 0): 0.2})
    moved = Deviation(np.array([0.3]), np.array([-0.5]), np.array([0.4]), 1.0).of(leaning)
    assert moved.kept.tolist() == [[0.0, 1.0, 0.7]]
    assert moved.recomputes == {(1, 0): 1.0, (2, 0): 0.7}
    assert moved.page_ins == {(2, 0): 0.0}


def test_what_was_refused_is_not_offered_again() -> None:
    problem, ram_bytes = tight(random.Random(3), forward=5)
    space, _ = space_of(problem, ram_bytes)
    offered = set[Schedule]()
    for _ in range(300):
        space.step()
        found = space.take(math.inf)
        if found is not None:
            assert found not in offered
            offered.add(found)
            space.refuse(found, math.inf)
    assert len(offered) > 3


def test_nothing_is_given_out_that_is_no_better() -> None:
    problem, ram_bytes = tight(random.Random(3), forward=5)
    space, _ = space_of(problem, ram_bytes)
    for _ in range(50):
        space.step()
    assert space.take(0.0) is None
    assert space.take(math.inf) is None  # and it isn't kept


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


def waiter() -> tuple[list[int], Callable[[Callable[[], None]], None]]:
    steps: list[int] = []

    def step(pause: Callable[[], None]) -> None:
        pause()
        time.sleep(0.001)
        steps.append(len(steps))

    return steps, step


def until(met: Callable[[], Any]) -> None:
    latest = time.monotonic() + ENOUGH_S
    while not met():
        assert time.monotonic() < latest
        time.sleep(0.001)


def test_works_only_while_somebody_waits() -> None:
    steps, step = waiter()
    with Meanwhile(step) as meanwhile:
        time.sleep(0.02)
        assert not steps
        with meanwhile.waiting():
            until(lambda: len(steps) > 2)
        count = len(steps)
        time.sleep(0.05)
        assert len(steps) <= count + 1  # the step at hand ends, however late
        count = len(steps)
        with meanwhile.waiting():
            until(lambda: len(steps) > count)
    assert not any(thread.name == "meanwhile" for thread in threading.enumerate())


def test_an_error_of_a_step_is_raised_in_the_end() -> None:
    failed = threading.Event()

    def step(pause: Callable[[], None]) -> None:
        failed.set()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), Meanwhile(step) as meanwhile, meanwhile.waiting():
        assert failed.wait(ENOUGH_S)


def guide_of(threads: int) -> tuple[Run, Guide, PointLike]:
    """A run, and a point of its relaxation with the guide for it."""
    problem, ram_bytes = tight(random.Random(3), forward=5)
    options = Options(ram_bytes=ram_bytes, scope="full", threads=threads)
    run = Run(problem, options, None)
    model = model_of(run.chosen, problem, options, "full")
    relaxed = session_of(model, options, scale=1.0).relax(60.0)
    assert relaxed.point is not None
    return run, Guide(run, run.chosen, model), relaxed.point


def test_a_guide_offers_what_is_found_beside_it() -> None:
    run, guide, point = guide_of(threads=0)

    def offered() -> bool:
        guide.perturb(point)
        return run.incumbent.value is not None

    with guide.beside():
        guide.perturb(point)
        with guide.solving():
            until(offered)
    assert run.incumbent.value is not None
    assert {progress.phase for progress in run.trace} == {"perturbed"}


def test_a_run_kept_to_one_thread_perturbs_nothing() -> None:
    run, guide, point = guide_of(threads=1)
    with guide.beside():
        guide.perturb(point)
        with guide.solving():
            assert not run.problem_space.aimed
    assert run.incumbent.value is None


def test_a_guide_dwells_on_its_last_point_for_as_long_as_it_is_told() -> None:
    run, guide, point = guide_of(threads=0)
    with guide.beside():
        guide.perturb(point)
    assert run.incumbent.value is None
    guide.dwell(0.0)
    assert run.incumbent.value is None
    while run.incumbent.value is None:
        guide.dwell(1.0)
    assert {progress.phase for progress in run.trace} == {"perturbed"}


def test_dwelling_ends_where_nothing_is_left_to_find() -> None:
    run, guide, point = guide_of(threads=0)
    with guide.beside():
        guide.perturb(point)
    run.raise_bound(math.inf, "proven")
    while run.incumbent.value is None:
        guide.dwell(1.0)
    begin = time.monotonic()
    guide.dwell(100 * ENOUGH_S)
    assert time.monotonic() - begin < ENOUGH_S


def test_points_of_nodes_are_perturbed_unless_another_is() -> None:
    run, guide, point = guide_of(threads=0)
    with run.problem_space.busy:
        guide.wander(point)
        assert not run.problem_space.aimed
    guide.wander(point)
    assert {progress.phase for progress in run.trace} == {"perturbed"}
    assert run.incumbent.value is not None
    assert not run.problem_space.busy.locked()
    spent_s = guide._wandered_s
    guide.wander(point)
    assert guide._wandered_s == spent_s > 0  # it has had its share of the time


def test_no_guide_dwells_in_one_thread() -> None:
    run, guide, point = guide_of(threads=1)
    assert guide.chosen.leaning is not None
    run.problem_space.aim(guide.chosen.leaning(guide.model, point))
    guide.dwell(1.0)
    assert run.incumbent.value is None


@pytest.mark.parametrize("seed", range(5))
def test_replays_keep_their_budget_where_storage_fills(seed: int) -> None:
    problem, ram_bytes = tight(random.Random(seed), forward=7)
    again = may_run_again(problem, True)
    free = Replay(problem, ram_bytes, True, again).run()
    some = replace(problem, storage_bytes=sum(tensor.nbytes for tensor in problem.tensors) // 4)
    schedule = Replay(some, ram_bytes, True, again).run()
    if schedule is not None:
        written = sum(some.blocks(i) for i in {i for _, i in schedule.page_ins})
        assert some.storage_blocks is not None
        assert written <= some.storage_blocks
    enough = replace(problem, storage_bytes=sum(tensor.nbytes for tensor in problem.tensors))
    assert Replay(enough, ram_bytes, True, again).run() == free
