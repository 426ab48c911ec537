"""Cleaning never costs anything, and finds what is wasted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.instructions import Plan
from poetopt.plan.normalize import normalize
from poetopt.plan.simulate import simulate
from tests.seeds import examples
from tests.support.problems import random_plan, random_problem, steps


@settings(deadline=None, max_examples=examples(250))
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_never_raises_anything(seed: int, dma: bool) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=rng.randint(1, 9), dma=dma)
    plan = random_plan(rng, problem)
    before, after = simulate(plan), simulate(normalize(plan))
    assert after.peak_bytes <= before.peak_bytes
    assert after.overhead_j <= before.overhead_j
    assert after.makespan_s <= before.makespan_s
    assert after.recomputes <= before.recomputes
    assert after.page_ins <= before.page_ins
    assert after.page_outs <= min(before.page_outs, after.page_ins)
    assert normalize(normalize(plan)).instructions == normalize(plan).instructions


def chain(*, dma: bool = False) -> Problem:
    operators = tuple(ProblemOperator(f"op{k}", (k,), (k + 1,), 1.0, 1.0) for k in range(3))
    tensors = tuple(ProblemTensor(f"t{k}", 8, k - 1, Transfers(5.0, 1.0, 5.0, 1.0)) for k in range(4))
    return Problem("chain", "toy", operators, tensors, dma=dma)


CLEAN = "compute 0 free 0 compute 1 free 1 compute 2 free 2 free 3"


@pytest.mark.parametrize(
    ("wasteful", "cleaned"),
    [
        ("compute 0 compute 1 compute 2", CLEAN),
        ("compute 0 page_out 1 compute 1 compute 2", CLEAN),
        ("compute 0 compute 0 compute 0 compute 1 compute 1 compute 2", CLEAN),
        ("compute 0 compute 1 free 1 compute 0 compute 2", CLEAN),
        ("page_out 0 compute 0 free 0 compute 1 page_in 0 compute 0 compute 2", CLEAN),
        (
            "compute 0 page_out 1 free 1 page_in 1 page_out 1 compute 1 free 1 page_in 1 compute 2",
            "compute 0 free 0 page_out 1 free 1 page_in 1 compute 1 free 1 compute 2 free 2 free 3",
        ),
        (
            "compute 0 compute 1 free 1 compute 0 free 2 compute 1 compute 2",
            "compute 0 compute 1 free 1 free 2 compute 0 free 0 compute 1 free 1 compute 2 free 2 free 3",
        ),
    ],
)
def test_removes_what_has_no_effect(wasteful: str, cleaned: str) -> None:
    plan = Plan(chain(), steps(wasteful))
    simulate(plan)
    assert normalize(plan).instructions == steps(cleaned)
