"""The simulator against hand-made plans, and against a second one on random plans."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.simulate import simulate
from poetopt.util.errors import PlanError
from tests.seeds import examples
from tests.support.problems import random_plan, random_problem, steps, store_all
from tests.support.simulator import reference
from tests.support.three_steps import run_thrice

seeds = st.integers(0, 2**32 - 1)


def chain(*, dma: bool = False, paging: bool = True) -> Problem:
    """x -> op0 -> a -> op1 -> b, with op2 reading a and b: 10, 20 and 30 bytes."""
    operators = (
        ProblemOperator("op0", (0,), (1,), 4.0, 1.0),
        ProblemOperator("op1", (1,), (2,), 2.0, 2.0, workspace_bytes=5),
        ProblemOperator("op2", (1, 2), (), 1.0, 4.0, backward=True),
    )
    tensors = (
        ProblemTensor("x", 10, -1, Transfers(1.0, 0.1, 2.0, 0.2)),
        ProblemTensor("a", 20, 0, Transfers(3.0, 0.3, 5.0, 0.5)),
        ProblemTensor("b", 30, 1, Transfers(1.0, 0.1, 1.0, 0.1)),
    )
    return Problem("chain", "toy", operators, tensors, dma=dma, paging=paging)


PAGED = steps("compute 0, free 0, page_out 1, compute 1, free 1, page_in 1, compute 2, free 1, free 2")


def test_store_all_has_no_overhead_and_adds_up() -> None:
    problem = chain()
    result = simulate(store_all(problem))
    assert result.overhead_j == 0
    assert result.energy_j == problem.baseline_energy_j
    assert result.makespan_s == problem.baseline_time_s
    assert result.live_bytes[0] == 30
    assert result.peak_bytes == 55
    assert (result.recomputes, result.page_ins, result.page_outs) == (0, 0, 0)


def test_transfers_add_up_without_dma() -> None:
    result = simulate(chain(), PAGED)
    assert result.makespan_s == 7 + 5 + 3
    assert result.transfer_s == 8
    assert result.waits_s == 0
    assert result.overhead_j == pytest.approx(0.8)
    assert result.bytes_paged == 40


def test_transfers_run_beside_the_cpu_with_dma() -> None:
    result = simulate(chain(dma=True), PAGED)
    # Out from 4 to 9 while op1 runs until 6; the free waits till 9; in until 12, op2 until 13.
    assert result.start_s == (0, 4, 4, 4, 9, 9, 12, 13, 13)
    assert result.end_s == (4, 4, 9, 6, 9, 12, 13, 13, 13)
    assert result.waits_s == 3 + 3
    assert result.makespan_s == 13


def test_reading_does_not_wait_for_a_page_out_but_overwriting_does() -> None:
    given = steps("compute 0, page_out 1, compute 1, compute 0, compute 2")
    result = simulate(chain(dma=True), given)
    assert result.start_s[2] == 4
    assert result.start_s[3] == 9
    assert result.peak_bytes == 10 + 20 + 30 + 5
    assert result.recomputes == 1


def test_makespan_includes_what_the_channel_still_does() -> None:
    given = steps("compute 0, compute 1, compute 2, page_out 1")
    assert simulate(chain(dma=True), given).makespan_s == 12


def test_refuses_more_than_the_budgets_with_figures() -> None:
    plan = store_all(chain())
    assert simulate(plan, ram_bytes=55, deadline_s=7).peak_bytes == 55
    with pytest.raises(PlanError, match=r"compute 'op1'\): 55 bytes are live, 1 more than the RAM budget of 54 bytes"):
        simulate(plan, ram_bytes=54)
    with pytest.raises(PlanError, match="graph inputs alone take 10 bytes"):
        simulate(plan, ram_bytes=9)
    with pytest.raises(PlanError, match="takes 7 s, 1 s more than the deadline of 6 s"):
        simulate(plan, deadline_s=6)


def test_refuses_paging_without_storage() -> None:
    with pytest.raises(PlanError, match=r"instruction 2 \(page_out 'a'\): device 'toy' has no storage"):
        simulate(chain(paging=False), PAGED)


def test_refuses_a_second_run_of_what_must_run_once() -> None:
    problem = chain()
    once = replace(problem, operators=(replace(problem.operators[0], recomputable=False), *problem.operators[1:]))
    with pytest.raises(PlanError, match="computed a second time"):
        simulate(once, steps("compute 0, compute 0"))


@settings(deadline=None, max_examples=examples(150))
@given(seeds, st.booleans(), st.booleans())
def test_agrees_with_the_reference_on_valid_plans(seed: int, dma: bool, paging: bool) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=rng.randint(1, 9), dma=dma, paging=paging)
    plan = random_plan(rng, problem)
    result, expected = simulate(plan), reference(plan)
    live = run_thrice(plan)
    assert list(result.live_bytes) == live
    assert result.peak_bytes == max(problem.nbytes(problem.at_start) + problem.reserve_bytes, *live)
    assert result.energy_j == expected.energy_j
    assert result.makespan_s == expected.makespan_s
    assert simulate(plan, ram_bytes=result.peak_bytes, deadline_s=result.makespan_s) == result
    if result.peak_bytes:
        with pytest.raises(PlanError, match="RAM budget"):
            simulate(plan, ram_bytes=result.peak_bytes - 1)
