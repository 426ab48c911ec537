"""The exhaustive optima on their own: valid, ordered as their spaces are, and right where the answer is known."""

from __future__ import annotations

import random

import pytest

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import plan_of
from poetopt.plan.simulate import simulate
from tests.seeds import seeds
from tests.support.bruteforce import (
    StageRules,
    plan_optimum,
    random_budget,
    random_problem,
    random_tight,
    stage_optimum,
    store_all,
)


@pytest.mark.parametrize("seed", seeds(120))
def test_optima_are_valid_and_nested(seed: int) -> None:
    rng = random.Random(seed)
    if seed % 4:
        problem, ram_bytes = random_tight(rng, operators=rng.randint(3, 6))
    else:
        problem = random_problem(rng, operators=rng.randint(2, 6))
        ram_bytes = random_budget(rng, problem)
    whole = plan_optimum(problem, ram_bytes)
    stages = stage_optimum(problem, ram_bytes)
    forward = stage_optimum(problem, ram_bytes, StageRules(forward_only=True))
    if whole is not None:
        result = simulate(problem, whole.instructions, ram_bytes=ram_bytes)
        assert result.overhead_j == whole.overhead_j
        for restricted in (
            plan_optimum(problem, ram_bytes, paging=False),
            plan_optimum(problem, ram_bytes, remat=False),
        ):
            assert restricted is None or restricted.overhead_j >= whole.overhead_j
    if stages is not None:
        assert whole is not None
        assert whole.overhead_j <= stages.overhead_j
        # A plan frees and pages out earlier than a stage can, so it may do with less, but never needs more.
        assert simulate(plan_of(problem, stages.schedule), ram_bytes=ram_bytes).overhead_j <= stages.overhead_j
    if forward is not None:
        assert stages is not None
        assert stages.overhead_j <= forward.overhead_j
    if simulate(store_all(problem)).peak_bytes <= ram_bytes:
        assert whole is not None
        assert whole.overhead_j == 0


def line(paging: bool) -> Problem:
    """x -> a -> b -> loss -> gradient, which reads a again: keeping a over b's workspace is what costs memory."""
    tensors = (
        ProblemTensor("x", 1, -1, Transfers(9.0, 9.0, 9.0, 9.0)),
        ProblemTensor("a", 4, 0, Transfers(1.0, 1.0, 1.0, 0.5)),
        ProblemTensor("b", 1, 1, Transfers(9.0, 9.0, 9.0, 9.0)),
        ProblemTensor("c", 1, 2, Transfers(9.0, 9.0, 9.0, 9.0)),
    )
    operators = (
        ProblemOperator("a", (0,), (1,), 1.0, 3.0),
        ProblemOperator("b", (1,), (2,), 1.0, 3.0),
        ProblemOperator("c", (2,), (3,), 1.0, 3.0, workspace_bytes=4),
        ProblemOperator("g", (1, 3), (), 1.0, 3.0, backward=True),
    )
    return Problem("line", "toy", operators, tensors, paging=paging)


@pytest.mark.parametrize(("paging", "overhead"), [(True, 1.5), (False, 3.0)])
def test_known_answers(paging: bool, overhead: float) -> None:
    problem = line(paging)
    # Store-all needs a, b, c and the workspace at once: 10 bytes.
    assert simulate(store_all(problem)).peak_bytes == 10
    for optimum in (plan_optimum, stage_optimum):
        unbounded = optimum(problem, 10)
        assert unbounded is not None
        assert unbounded.overhead_j == 0
        bounded = optimum(problem, 8)
        assert bounded is not None
        assert bounded.overhead_j == overhead
        assert optimum(problem, 5) is None
