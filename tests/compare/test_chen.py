"""Keep-sets, their repair, and the methods of Chen et al."""

from __future__ import annotations

import random

import numpy as np
import pytest

from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.keeping import (
    every_sqrt,
    forward_operators,
    greedy_checkpoints,
    irreplaceable,
    kept_for,
    repaired,
)
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Action
from poetopt.plan.simulate import simulate
from poetopt.util.errors import NoScheduleError
from tests.compare.chains import chain
from tests.problems import random_problem


def computes(problem: Problem, name: str, ram_bytes: int) -> tuple[int, int]:
    plan = method(name).schedule(problem, ram_bytes)
    runs = sum(step.action is Action.COMPUTE for step in plan.instructions)
    return simulate(plan).peak_bytes, runs


def test_sixteen_unit_layers() -> None:
    problem = chain(16)
    assert computes(problem, "chen-sqrtn", 100) == (9, 45)
    assert computes(problem, "checkpoint-all", 100) == (18, 33)
    with pytest.raises(NoScheduleError, match="leanest plan needs 9 bytes, 1 over"):
        method("chen-sqrtn").schedule(problem, 8)


def test_every_sqrt() -> None:
    assert every_sqrt(range(16)) == {3, 7, 11, 15}
    assert every_sqrt(range(17)) == {3, 7, 11, 15}
    assert every_sqrt(()) == frozenset()
    assert every_sqrt((5,)) == {5}


def test_greedy_counts_bytes_since_the_last_checkpoint() -> None:
    problem = chain(6, sizes=[1, 2, 3, 1, 1, 5])
    assert greedy_checkpoints(problem, 3) == {2, 5}


@pytest.mark.parametrize("hold_skips", [True, False])
def test_repaired_keep_sets_make_valid_plans(hold_skips: bool) -> None:
    rng = random.Random(11)
    for _ in range(80):
        problem = random_problem(rng, operators=rng.randint(3, 12), training=True)
        forward = forward_operators(problem)
        chosen = frozenset(v for v in forward if rng.random() < 0.3)
        schedule = repaired(problem, kept_for(problem, chosen, hold_skips=hold_skips))
        simulate(plan_of(problem, schedule))


def test_repair_computes_what_is_missing() -> None:
    rng = random.Random(3)
    for _ in range(60):
        problem = random_problem(rng, operators=8)
        kept = np.array([[rng.random() < 0.4 for _ in problem.tensors] for _ in problem.operators])
        schedule = repaired(problem, kept)
        simulate(plan_of(problem, schedule))
        for stage in range(len(problem.operators)):
            runs = {operator for at, operator in schedule.recomputes if at == stage} | {stage}
            for i in range(len(problem.tensors)):
                producer = problem.tensors[i].producer
                if irreplaceable(problem, i) or producer >= stage:
                    continue
                read = any(i in problem.operators[operator].inputs for operator in runs)
                gained = stage + 1 < len(problem.operators) and kept[stage + 1, i] and not kept[stage, i]
                assert producer in runs or not ((read and not kept[stage, i]) or gained)
