"""Work is counted, and the clock only ends it: neither a slow machine nor a longer limit changes the way."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from poetopt.search.run import Run
from poetopt.search.search import search
from poetopt.search.solution import Options
from tests.backends.solvers import installed
from tests.problems import random_problem, random_tight


def test_a_part_lasts_as_long_on_a_machine_that_stands_still() -> None:
    run = Run(random_problem(random.Random(4), training=True), Options(ram_bytes=10**9, time_limit_s=1000.0), None)
    part = run.budget.part(0.5)
    before = part.remaining_s
    time.sleep(0.02)
    assert part.remaining_s == before
    run.work.compute(10.0)
    assert part.remaining_s == pytest.approx(before - 10.0)


def test_a_longer_limit_means_no_other_shares() -> None:
    problem = random_problem(random.Random(4), training=True)
    runs = [Run(problem, Options(ram_bytes=10**9, time_limit_s=limit_s), None) for limit_s in (60.0, 6000.0)]
    assert runs[0].budget.part(0.3).remaining_s == runs[1].budget.part(0.3).remaining_s


def test_what_is_meant_doubles_once_it_is_spent() -> None:
    run = Run(random_problem(random.Random(4), training=True), Options(ram_bytes=10**9, time_limit_s=60.0), None)
    run.work.compute(50.0)
    assert run.budget.meant_s == pytest.approx(10.0)
    run.work.compute(20.0)
    assert run.budget.meant_s == pytest.approx(50.0)


@pytest.mark.parametrize("seed", range(8))
def test_a_wider_scope_more_ram_and_a_longer_limit_cost_no_more(seed: int) -> None:
    rng = random.Random(seed)
    problem, ram_bytes = random_tight(rng, operators=rng.choice([7, 9]), training=True)
    asked = Options(ram_bytes=ram_bytes, gap=1e-7, threads=1)
    costs: list[float] = []
    for scope in ("depth:1", "depth:2", "forward", "auto"):
        found = search(problem, replace(asked, scope=scope))
        if found.simulation is not None:
            costs.append(found.simulation.overhead_j)
            assert costs[-1] <= min(costs) * (1 + 1e-6)
    longer = search(problem, replace(asked, time_limit_s=6000.0))
    assert longer.plan == search(problem, asked).plan
    before = min(costs, default=float("inf"))
    for share in (1.05, 1.2):
        more = search(problem, replace(asked, ram_bytes=int(share * ram_bytes)))
        if more.simulation is not None:
            assert more.simulation.overhead_j <= before * (1 + 1e-6)
            before = more.simulation.overhead_j


@pytest.mark.parametrize("backend", ["cbc", "gurobi", "scip"])
def test_a_solver_that_counts_nothing_goes_by_the_clock(backend: str) -> None:
    installed(backend)
    problem, ram_bytes = random_tight(random.Random(3), training=True)
    run = Run(problem, Options(ram_bytes=ram_bytes, backend=backend, time_limit_s=60.0), None)
    part = run.budget.part(0.5)
    before = part.remaining_s
    time.sleep(0.02)
    assert part.remaining_s < before
    asked = Options(ram_bytes=ram_bytes, gap=1e-7)
    found = [search(problem, replace(asked, backend=one)) for one in (backend, "highs")]
    assert found[0].status is found[1].status
