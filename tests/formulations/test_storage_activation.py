"""Waking the storage: the simulator's runs, and the model's bound and plans against exhaustive search."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.gather import gather
from poetopt.plan.instructions import Plan
from poetopt.plan.normalize import normalize
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import plan_transfers
from tests.seeds import seeds
from tests.support.problems import random_plan, random_problem, steps


def pages(*, dma: bool) -> Problem:
    """Three operators in a row of a second each; every transfer takes a quarter of one."""
    operators = tuple(ProblemOperator(f"op{k}", (k,), (k + 1,), 1.0, 1.0) for k in range(3))
    tensors = tuple(ProblemTensor(f"t{k}", 4, k - 1, Transfers(0.25, 1.0, 0.25, 1.0)) for k in range(4))
    return Problem("pages", "toy", operators, tensors, dma=dma, wake_j=10.0)


@pytest.mark.parametrize(
    ("text", "dma", "wakes"),
    [
        ("compute 0 compute 1 compute 2", False, 0),
        ("page_out 0 compute 0 page_out 1 compute 1 compute 2", False, 2),
        ("compute 0 page_out 0 free 0 page_out 1 compute 1 compute 2", False, 1),
        ("page_out 0 compute 0 page_out 1 compute 1 compute 2", True, 2),
        ("compute 0 page_out 0 page_out 1 compute 1 page_out 2 compute 2", True, 2),
    ],
)
def test_a_run_ends_where_the_storage_has_nothing_to_do(text: str, dma: bool, wakes: int) -> None:
    problem = pages(dma=dma)
    found = simulate(problem, steps(text))
    assert found.wakes == wakes
    free = simulate(replace(problem, wake_j=0.0), steps(text))
    assert found.overhead_j == free.overhead_j + 10.0 * wakes


def test_with_dma_a_run_goes_on_beside_the_cpu() -> None:
    slow = replace(pages(dma=True), tensors=tuple(t.moved_for(page_out_s=1.0) for t in pages(dma=True).tensors))
    assert simulate(slow, steps("page_out 0 compute 0 page_out 1 compute 1 compute 2")).wakes == 1


@pytest.mark.parametrize("seed", seeds(60))
def test_gathering_only_ever_saves(seed: int) -> None:
    rng = random.Random(seed)
    problem = replace(random_problem(rng, operators=rng.randint(3, 7), dma=seed % 2 == 0), wake_j=2.0)
    plan = Plan(problem, normalize(random_plan(rng, problem, length=25)).instructions)
    before = simulate(plan)
    ram_bytes = before.peak_bytes + rng.choice((0, 2, 5))
    after = simulate(gather(plan, ram_bytes, trials=300), ram_bytes=ram_bytes)
    assert after.overhead_j <= before.overhead_j
    assert after.bytes_paged == before.bytes_paged
    planned = simulate(plan_transfers(plan, ram_bytes), ram_bytes=ram_bytes)
    assert planned.overhead_j <= before.overhead_j


@pytest.mark.parametrize("dma", [False, True])
def test_a_run_of_several_joins_another_where_memory_allows(dma: bool) -> None:
    problem = pages(dma=dma)
    plan = Plan(problem, steps("compute 0 compute 1 page_out 0 page_out 1 compute 2 page_out 2 page_out 3"))
    assert simulate(plan).wakes == 2
    gathered = gather(plan, problem.nbytes(range(4)))
    assert simulate(gathered, ram_bytes=16).wakes == 1
    assert gather(gathered, 16) == gathered
