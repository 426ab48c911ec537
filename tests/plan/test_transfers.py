"""Planned transfers cost nothing, keep every budget, and hide as much as an exhaustive search can."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import plan_of
from poetopt.plan.gather import gather
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import out_of_reach, overlap, plan_transfers
from poetopt.testing.problems import small_problem
from poetopt.util.errors import PlanError
from tests.bruteforce import plan_optimum, random_tight
from tests.plan.reference import reference
from tests.plan.three_steps import run_thrice
from tests.plan.transfers_bruteforce import least_makespan
from tests.problems import random_plan, random_problem
from tests.seeds import examples, seeds, some
from tests.stored import with_parameters


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


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(0, 2**32 - 1))
def test_a_clean_plan_keeps_its_computes_and_transfers(seed: int) -> None:
    rng = random.Random(seed)
    plan = normalize(random_plan(rng, random_problem(rng, operators=rng.randint(1, 10), dma=True)))
    planned = plan_transfers(plan, simulate(plan).peak_bytes)
    for action in (Action.PAGE_IN, Action.PAGE_OUT):
        assert _targets(planned, action, ordered=False) == _targets(plan, action, ordered=False)
    assert _targets(planned, Action.COMPUTE) == _targets(plan, Action.COMPUTE)


def _targets(plan: Plan, action: Action, *, ordered: bool = True) -> list[int]:
    found = [step.target for step in plan.instructions if step.action is action]
    return found if ordered else sorted(found)


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


def test_schedules_of_least_energy_end_as_early_as_any_order_lets_them() -> None:
    compared = 0
    for seed in seeds(320):
        rng = random.Random(seed)
        problem, ram_bytes = random_tight(rng, operators=rng.randint(6, 8), training=True, dma=True)
        optimum = plan_optimum(problem, ram_bytes, remat=rng.random() < 0.3)
        if optimum is None:
            continue
        plan = normalize(Plan(problem, optimum.instructions))
        if simulate(plan).page_ins < 2:
            continue
        least = least_makespan(plan, ram_bytes)
        if least is not None:
            assert simulate(plan_transfers(plan, ram_bytes), ram_bytes=ram_bytes).makespan_s == least
            compared += 1
    assert compared >= 0.03 * len(seeds(320))


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


def test_parameters_are_gathered_where_a_wake_costs() -> None:
    gained = 0
    chosen = some(range(100), 30)
    for seed in chosen:
        plan, ram_bytes = stored_plan(seed)
        problem = replace(plan.problem, wake_j=2.0, dma=seed % 2 == 0)
        plan = replace(plan, problem=problem)
        gathered = gather(plan, ram_bytes)
        run_thrice(gathered, ram_bytes)
        gained += simulate(gathered).wakes < simulate(plan).wakes
        assert simulate(gathered).overhead_j <= simulate(plan).overhead_j
    assert gained > len(chosen) // 10


def chain(*, dma: bool = True, page_s: float = 2.0) -> Problem:
    """Four operators forward, four back; each backward one reads what its forward one read."""
    reads = [(k,) for k in range(4)] + [(k, 7 - k) for k in range(4, 8)]
    operators = tuple(
        ProblemOperator(f"op{k}", tuple(sorted(set(read))), (k + 1,), 1.0, 1.0, backward=k > 3)
        for k, read in enumerate(reads)
    )
    tensors = tuple(ProblemTensor(f"t{k}", 8, k - 1, Transfers(page_s, 1.0, page_s, 1.0)) for k in range(9))
    return Problem("chain", "toy", operators, tensors, dma=dma)


def steps(text: str) -> tuple[Instruction, ...]:
    words = text.split()
    return tuple(Instruction(Action(a), int(k)) for a, k in zip(words[::2], words[1::2], strict=True))


LATE = steps(
    "compute 0 compute 1 page_out 1 free 1 compute 2 compute 3 compute 4 free 3 compute 5 free 2 "
    "page_in 1 compute 6 compute 7"
)


def test_hides_a_transfer_behind_computes() -> None:
    plan = Plan(chain(), LATE)
    before = simulate(plan)
    assert before.waits_s == 4.0
    planned = plan_transfers(plan, before.peak_bytes + 8)
    after = simulate(planned, ram_bytes=before.peak_bytes + 8)
    assert after.waits_s == 0.0
    assert after.makespan_s == 8.0
    found = overlap(planned)
    assert (found.transfer_s, found.hidden_s, found.transfer_bytes, found.hidden_bytes) == (4.0, 4.0, 16, 16)
    assert found.share == 1.0
    assert overlap(plan).share == 0.0


def test_page_ins_come_just_in_time() -> None:
    planned = plan_transfers(Plan(chain(), LATE), 1000)
    simulation = simulate(planned)
    place = planned.instructions.index(Instruction(Action.PAGE_IN, 1))
    use = planned.instructions.index(Instruction(Action.COMPUTE, 6))
    assert simulation.end_s[place] == simulation.start_s[use]


def test_without_dma_nothing_can_be_hidden() -> None:
    plan = Plan(chain(dma=False), LATE)
    assert plan_transfers(plan, 1000) is plan
    assert overlap(plan).hidden_s == 0.0
    assert overlap(plan).hidden_bytes == 0


def test_a_plan_without_transfers_stays_as_it_is() -> None:
    plan = Plan(chain(), tuple(Instruction(Action.COMPUTE, k) for k in range(8)))
    assert plan_transfers(plan, 1000) is plan
    assert overlap(plan).share == 1.0


def test_a_plan_over_its_budget_is_refused() -> None:
    with pytest.raises(PlanError, match="more than the RAM budget of 24 bytes"):
        plan_transfers(Plan(chain(), LATE), 24)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 2**32 - 1))
def test_a_goal_is_met_where_it_would_be_without_one(seed: int) -> None:
    rng = random.Random(seed)
    plan = normalize(random_plan(rng, random_problem(rng, operators=rng.randint(3, 9), dma=True)))
    ram_bytes = simulate(plan).peak_bytes + rng.choice((0, 2))
    best = simulate(plan_transfers(plan, ram_bytes)).makespan_s
    for goal_s in (best, best * 1.1, best * 0.9):
        found = simulate(plan_transfers(plan, ram_bytes, goal_s=goal_s), ram_bytes=ram_bytes).makespan_s
        assert found <= max(goal_s, simulate(plan).makespan_s if goal_s < best else best) * (1 + 1e-9)
