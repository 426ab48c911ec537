"""Blocks that care in which stage a tensor is moved: both formulations against a brute force over all such stages."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.block import Block
from poetopt.graph.problem import Problem
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from poetopt.testing import check_block
from poetopt.testing.problems import tight
from tests.seeds import seeds
from tests.support.closed import closed
from tests.support.moved import cheaper, forward_outs, loss_by, two_tariffs
from tests.support.problems import random_tight

TOLERANCE = 1e-6
SEEDS = seeds(300) if len(seeds(300)) == 300 else range(0, 100, 5)
HIGHEST = 20.0
"""What schedules may cost in a search for one where a solve says that there is none."""


def case(seed: int, *, dma: bool = False) -> tuple[Problem, int, Block]:
    """A problem that is short of memory, and a block that asks for something that may bind."""
    rng = random.Random(seed)
    problem, ram_bytes = random_tight(rng, operators=rng.randint(3, 5))
    problem = replace(problem, dma=dma)
    kind, last = seed % 3, problem.last_forward
    if kind == 0:
        return problem, ram_bytes, forward_outs(rng.randint(0, 1))
    if kind == 1:
        return problem, ram_bytes, two_tariffs(rng.randrange(1, len(problem.operators)), early=rng.random() < 0.6)
    one_pass = sum(operator.time_s for operator in problem.operators[: last + 1])
    return problem, ram_bytes, loss_by(one_pass * rng.choice((1.0, 1.2, 1.5)))


@pytest.mark.parametrize("name", ["retention", "poet"])
@pytest.mark.parametrize("seed", SEEDS)
def test_optima_over_all_stages_of_transfers(name: str, seed: int) -> None:
    problem, ram_bytes, block = case(seed)
    judge = formulation(name).with_block(block)
    found = solve(problem, Options(ram_bytes=ram_bytes, formulation=judge, scope="full", gap=1e-9))
    if found.plan is None:
        assert found.status is Status.INFEASIBLE or "exists, by proof" in found.reason
        assert cheaper(problem, ram_bytes, judge, HIGHEST) is None
        return
    trial = judge.trial(found.plan, simulate(found.plan, ram_bytes=ram_bytes))
    assert judge.refusal(trial) is None
    assert closed(found)
    assert cheaper(problem, ram_bytes, judge, judge.goal.value(trial) - TOLERANCE) is None


def prompt(problem: Problem) -> Block:
    """The loss without a delay."""
    return loss_by(sum(operator.time_s for operator in problem.operators[: problem.last_forward + 1]))


@pytest.mark.parametrize(
    ("name", "block"),
    [("retention", forward_outs(0)), ("retention", prompt), ("retention", two_tariffs(2)), ("poet", two_tariffs(2))],
)  # fmt: skip
def test_one_text_keeps_its_contract_in_both(name: str, block: Block | Callable[[Problem], Block]) -> None:
    problems = [tight(random.Random(seed), forward=2) for seed in range(8)]
    assert check_block(block, formulation=name, problems=problems).problems == len(problems)
