"""Starts that are given to a solve never leave it with less than it would find on its own."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from poetopt.comparison.baselines import method
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import schedule_of
from poetopt.plan.simulate import simulate
from poetopt.search import constructive
from poetopt.search.constructive import first_schedules, plain_schedules
from poetopt.search.diagnosis.solve import solve
from poetopt.search.run import Run
from poetopt.search.search import search
from poetopt.search.solution import Options, Solution
from poetopt.util.errors import NoScheduleError
from tests.compare.chains import chain


def test_a_dear_start_doesnt_keep_from_looking_for_quick_ones() -> None:
    """As in a comparison at another method's time: paging is cheap and slow, so that what costs least comes late."""
    rng = random.Random(5)
    better = 0
    for _ in range(75):
        layers = rng.randint(6, 12)
        sizes, costs = ([rng.randint(1, 5) for _ in range(layers)] for _ in range(2))
        problem = chain(
            layers, sizes=sizes, costs=list(map(float, costs)), paging=True, dma=True, page_s=3.0, page_j=0.01
        )
        least = problem.least_ram_bytes
        ram = rng.randint(least, least + sum(tensor.nbytes for tensor in problem.tensors) // 3)
        try:
            plan = method("dtr").schedule(problem, ram)
        except NoScheduleError:
            continue
        dear = simulate(plan)
        options = Options(ram_bytes=ram, deadline_s=dear.makespan_s)
        alone, given = Run(problem, options, None), Run(problem, options, None)
        first_schedules(alone, strict=False)
        first_schedules(given, strict=False, given=[schedule_of(plan)])
        if alone.incumbent.value is not None:
            assert given.incumbent.value is not None
            assert given.incumbent.value <= alone.incumbent.value
            better += given.incumbent.value < dear.overhead_j
    assert better


def test_targets_end_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constructive, "GRACE_S", -1.0)  # else a short problem's are all looked at in it
    problem = chain(12, sizes=[3] * 12, costs=[1.0] * 12, paging=True, dma=True, page_s=3.0, page_j=0.01)
    ram = problem.least_ram_bytes + 2
    tried = []
    for spent_s in (0.0, 1e3):
        run = Run(problem, Options(ram_bytes=ram, time_limit_s=10), None, begin=time.monotonic() - spent_s)
        first_schedules(run, strict=False)
        tried.append(len(run.starts))
    assert tried[0] > 0
    assert tried[1] == 0


def test_waking_is_never_worse_than_doing_without_paging_or_recomputing() -> None:
    compared = 0
    for seed in range(3):
        rng = random.Random(seed)
        sizes = [rng.randint(1, 5) for _ in range(10)]
        costs = [float(rng.randint(1, 5)) for _ in range(10)]
        problem = chain(10, sizes=sizes, costs=costs, paging=True, dma=seed % 2 == 0, page_s=0.2, page_j=0.05)
        problem = replace(problem, wake_j=rng.choice((2.0, 8.0)))
        options = Options(ram_bytes=problem.least_ram_bytes + rng.randint(0, 6), time_limit_s=5, threads=1)
        found = [
            solve(problem, replace(options, paging=paging, remat=remat)).simulation
            for paging, remat in ((True, True), (False, True), (True, False))
        ]
        plain = [simulation.overhead_j for simulation in found[1:] if simulation is not None]
        if plain:
            assert found[0] is not None
            assert found[0].overhead_j <= min(plain) * (1 + 1e-3)
            compared += min(plain) > 0
    assert compared >= 2


def test_plain_solutions_are_starts_and_an_interrupt_of_theirs_is_the_runs() -> None:
    problem = chain(8, sizes=[3] * 8, costs=[1.0] * 8, paging=True, dma=False, page_s=3.0, page_j=0.01)
    problem = replace(problem, wake_j=5.0)
    options = Options(ram_bytes=problem.least_ram_bytes + 2, time_limit_s=10, threads=1)
    asked: list[tuple[bool, bool]] = []

    def solved(problem: Problem, options: Options, whole: Run, share: float) -> Solution:
        asked.append((options.paging, options.remat))
        return search(problem, options, whole=whole, share=share)

    run = Run(problem, options, None)
    plain_schedules(run, solved)
    assert asked == [(False, True), (True, False)]
    assert run.incumbent.best is not None
    assert run.incumbent.best.schedule in run.starts
    asked.clear()
    plain_schedules(Run(replace(problem, wake_j=0.0), options, None), solved)
    assert not asked
    with pytest.raises(KeyboardInterrupt):
        plain_schedules(run, lambda problem, options, **_: replace(solve(problem, options), interrupted=True))
