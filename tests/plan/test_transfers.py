"""Planned transfers cost nothing, keep every budget, and hide as much as an exhaustive search can."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import out_of_reach, plan_transfers
from poetopt.testing.problems import small_problem
from tests.seeds import examples, seeds, some
from tests.support.problems import random_plan, random_problem
from tests.support.simulator import reference
from tests.support.stored import with_parameters
from tests.support.three_steps import run_thrice
from tests.support.transfers_bruteforce import least_makespan


@settings(deadline=None, max_examples=examples(200))
@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.sampled_from([0, 50, 4000]))
def test_never_costs_anything(seed: int, spare: int, nodes: int) -> None:
    rng = random.Random(seed)
    plan = random_plan(rng, random_problem(rng, operators=rng.randint(1, 10), dma=True))
    before = simulate(plan)
    ram_bytes = before.peak_bytes + spare
    planned = plan_transfers(plan, ram_bytes, nodes=nodes)
    after = simulate(planned, ram_bytes=ram_bytes)
    assert after.overhead_j <= before.overhead_j
    assert after.makespan_s <= before.makespan_s
    assert after.bytes_paged <= before.bytes_paged
    assert reference(planned).makespan_s == pytest.approx(after.makespan_s)
    assert plan_transfers(planned, ram_bytes, nodes=nodes).problem is plan.problem


def test_random_plans_end_as_early_as_any_order_lets_them() -> None:
    compared = gained = 0
    for seed in seeds(600):
        rng = random.Random(seed)
        problem = random_problem(rng, operators=rng.randint(4, 8), dma=True)
        plan = normalize(random_plan(rng, problem, length=rng.randint(20, 45)))
        before = simulate(plan)
        if not before.page_ins or len(plan.instructions) > 34:
            continue
        ram_bytes = before.peak_bytes + rng.choice((0, 0, 1, 3))
        least = least_makespan(plan, ram_bytes)
        if least is not None:
            after = simulate(plan_transfers(plan, ram_bytes), ram_bytes=ram_bytes)
            assert after.makespan_s == least
            compared += 1
            gained += after.makespan_s < before.makespan_s
    assert compared > 0.17 * len(seeds(600))
    assert gained > 0.07 * len(seeds(600))


def stored_plan(seed: int) -> tuple[Plan, int]:
    """A random schedule of a step with parameters on storage, and a budget for it."""
    rng = random.Random(seed)
    problem = with_parameters(rng, small_problem(rng, forward=2, dma=True))
    back = [(k, i) for i in problem.stored_at_start for k in problem.readers[i] if rng.random() < 0.6]
    plan = normalize(plan_of(problem, Schedule(page_ins=frozenset(back))))
    return plan, simulate(plan).peak_bytes + rng.choice((0, 0, 1, 3))


def test_parameters_come_and_go_as_early_as_any_order_lets_them() -> None:
    compared = gained = 0
    chosen = some(range(400), 40)
    for seed in chosen:
        plan, ram_bytes = stored_plan(seed)
        before = simulate(plan)
        planned = plan_transfers(plan, ram_bytes)
        after = simulate(planned, ram_bytes=ram_bytes)
        run_thrice(planned, ram_bytes)
        assert after.overhead_j == before.overhead_j
        least = least_makespan(plan, ram_bytes) if len(plan.instructions) <= 28 else None
        if least is not None and before.page_ins:
            assert after.makespan_s == pytest.approx(least)
            assert out_of_reach(plan, ram_bytes, least * (1 - 1e-6)) or least == before.makespan_s
            assert not out_of_reach(plan, ram_bytes, least * (1 + 1e-6))
            compared += 1
            gained += after.makespan_s < before.makespan_s
    assert compared > len(chosen) // 5
    assert gained > len(chosen) // 10
