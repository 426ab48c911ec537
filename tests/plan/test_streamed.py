"""Computes by a variant: what they need of RAM and storage, cost and take, and what is refused of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Transfers, Variant
from poetopt.plan.codec import from_json, to_json
from poetopt.plan.gather import gather
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import check_layout, lay_out
from poetopt.plan.normalize import normalize
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import plan_transfers
from poetopt.testing.problems import small_problem
from poetopt.util.errors import PlanError
from tests.seeds import seeds
from tests.support.problems import random_problem, steps
from tests.support.stored import with_parameters
from tests.support.streamed import random_streamed_plan, with_variants
from tests.support.three_steps import BrokenError, run_thrice

X, W, Y, G = range(4)
MOVES = Transfers(1.0, 0.1, 2.0, 0.2)


def network(**changes: Any) -> Problem:
    """x, w -> forward -> y; y, x -> backward -> g; g, w -> update; w lies on storage and is updated.

    Tensors of 10, 20, 30 and 40 bytes. The forward operator streams w in (1), or w in and y out (2); the update both
    ways (1).
    """
    tensors = (
        ProblemTensor("x", 10, -1, MOVES),
        ProblemTensor("w", 20, -1, MOVES, home=Home.STORAGE, carried=True, updated_by=2),
        ProblemTensor("y", 30, 0, MOVES),
        ProblemTensor("g", 40, 1, MOVES),
    )
    forward = (Variant((W,), (), 4, 6.0, 3.0, 20), Variant((W,), (Y,), 6, 9.0, 5.0, 20, 30))
    backward = (Variant((Y,), (), 3, 4.0, 3.5, 30),)
    operators = (
        ProblemOperator("forward", (X, W), (Y,), 4.0, 1.0, workspace_bytes=5, variants=forward),
        ProblemOperator("backward", (X, Y), (G,), 2.0, 2.0, backward=True, variants=backward),
        ProblemOperator(
            "update", (W, G), (), 1.0, 4.0, backward=True, variants=(Variant((W,), (W,), 8, 3.0, 7.0, 20, 20),)
        ),
    )
    return replace(Problem("network", "toy", operators, tensors, storage_block_bytes=8), **changes)


STREAMED = "compute 0:2, compute 1:1, free 0, compute 2:1, free 3"


@pytest.mark.parametrize(
    ("text", "why"),
    [("page_in 1, compute 0, compute 1:1", "it streams 'y' in, but it was never written out"),
     ("page_in 1, compute 0, page_out 2, compute 0:2", "it streams 'y' out, but an old copy is in RAM"),
     ("page_in 1, compute 0, compute 1, compute 2:1", "it streams 'w' out, but an old copy is in RAM"),
     ("compute 0:1, compute 0", "it reads 'w', which is not in RAM"),
     ("compute 0:2, compute 1", "it reads 'y', which is not in RAM"), ("compute 0:3", "it has no variant 3"),
     ("compute 0:-1", "it has no variant -1"), ("compute 1:1", "it must run after 'forward'"),
     (f"{STREAMED}, compute 0:1", "it reads 'w' as it was before 'update'")],
)  # fmt: skip
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        simulate(network(), steps(text))
    with pytest.raises(BrokenError):
        run_thrice(Plan(network(), steps(text)))


def drawn(seed: int) -> tuple[random.Random, Problem]:
    rng = random.Random(seed)
    dma, wake_j = rng.random() < 0.5, rng.choice((0.0, 0.0, 1.0))
    if rng.random() < 0.5:
        problem = with_parameters(rng, small_problem(rng, forward=rng.randint(1, 4), dma=dma))
    else:
        problem = random_problem(rng, operators=rng.randint(1, 8), dma=dma)
    return rng, replace(with_variants(rng, problem), wake_j=wake_j)


def test_random_plans_are_what_an_independent_walk_says() -> None:
    """Live bytes, refusals of mutants, files, and whatever rearranges a plan."""
    verdicts, streamed = {True: 0, False: 0}, 0
    for seed in seeds(1000):
        rng, problem = drawn(seed)
        plan = random_streamed_plan(rng, problem)
        before = simulate(plan)
        streamed += before.streamed_runs
        assert run_thrice(plan) == list(before.live_bytes)
        laid_out = lay_out(plan)
        check_layout(laid_out)
        run_thrice(laid_out)
        assert from_json(json.loads(json.dumps(to_json(laid_out)))).plan == laid_out
        cleaned = normalize(plan)
        assert normalize(cleaned).instructions == cleaned.instructions
        for better in (cleaned, plan_transfers(plan, before.peak_bytes), gather(plan, before.peak_bytes)):
            run_thrice(better, before.peak_bytes)
            after = simulate(better, ram_bytes=before.peak_bytes)
            assert after.overhead_j <= before.overhead_j
            assert after.makespan_s <= before.makespan_s or problem.wake_j
        for _ in range(3):
            tried = mutated(rng, plan)
            try:
                live = run_thrice(tried)
            except BrokenError:
                verdicts[False] += 1
                with pytest.raises(PlanError):
                    simulate(tried)
                continue
            verdicts[True] += 1
            assert list(simulate(tried).live_bytes) == live
    assert min(verdicts.values()) > len(seeds(1000)) // 4
    assert streamed > len(seeds(1000))


def mutated(rng: random.Random, plan: Plan) -> Plan:
    """The plan with an instruction left out, put in, or of another variant."""
    problem, found = plan.problem, list(plan.instructions)
    kind = rng.randrange(3)
    at = rng.randrange(len(found))
    if kind == 0:
        del found[at]
    elif kind == 1:
        action = rng.choice(list(Action))
        target = rng.randrange(len(problem.operators if action is Action.COMPUTE else problem.tensors))
        found.insert(at, Instruction(action, target))
    else:
        runs = [k for k, step in enumerate(found) if step.action is Action.COMPUTE]
        at = rng.choice(runs)
        variants = len(problem.operators[found[at].target].variants)
        found[at] = replace(found[at], variant=rng.randint(0, variants))
    return replace(plan, instructions=tuple(found))
