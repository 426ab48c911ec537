"""Keep-sets of Chen et al. and Revolve against brute force, in their own models and in plans."""

from __future__ import annotations

import heapq
import random

import pytest

from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.keeping import forward_operators, kept_for, repaired
from poetopt.comparison.baselines.revolve import Reversal
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Action
from poetopt.plan.simulate import simulate
from poetopt.util.errors import NoScheduleError
from tests.support.chains import chain
from tests.support.every_plan import least_overhead_j
from tests.support.problems import random_problem


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


@pytest.mark.parametrize("hold_skips", [True, False])
def test_repaired_keep_sets_make_valid_plans(hold_skips: bool) -> None:
    rng = random.Random(11)
    for _ in range(80):
        problem = random_problem(rng, operators=rng.randint(3, 12), training=True)
        forward = forward_operators(problem)
        chosen = frozenset(v for v in forward if rng.random() < 0.3)
        schedule = repaired(problem, kept_for(problem, chosen, hold_skips=hold_skips))
        simulate(plan_of(problem, schedule))


def least_steps(lengths: list[int], slots: int) -> int:
    """Fewest steps that reverse a chain, by search over what the slots and the working state hold.

    Reversing step k needs the working state k, and is free, as it is to copy between slots and the working state.
    """
    start = (len(lengths), 0, frozenset({0}))
    queue: list[tuple[int, int, int, tuple[int, ...]]] = [(0, start[0], 0, (0,))]
    done = set()
    while queue:
        cost, left, state, kept = heapq.heappop(queue)
        if left == 0:
            return cost
        if (left, state, kept) in done:
            continue
        done.add((left, state, kept))
        if state == left - 1:
            heapq.heappush(queue, (cost, left - 1, state, tuple(k for k in kept if k < left)))
        if state < left - 1:
            heapq.heappush(queue, (cost + lengths[state], left, state + 1, kept))
        for k in kept:
            heapq.heappush(queue, (cost, left, k, kept))
            heapq.heappush(queue, (cost, left, state, tuple(j for j in kept if j != k)))
        if len(kept) < slots and state not in kept:
            heapq.heappush(queue, (cost, left, state, tuple(sorted((*kept, state)))))
    raise AssertionError("the first state was lost")


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_recurrence_equals_search(slots: int) -> None:
    rng = random.Random(slots)
    for count in range(1, 8):
        for lengths in ([1] * count, [rng.randint(1, 5) for _ in range(count)]):
            table = Reversal([float(length) for length in lengths])
            assert table.further(min(slots, count)) == least_steps(lengths, slots)


@pytest.mark.parametrize("own_output", [True, False])
@pytest.mark.parametrize("layers", [2, 3, 4])
def test_plans_equal_brute_force_on_unit_chains(layers: int, own_output: bool) -> None:
    problem = chain(layers, own_output=own_output)
    for ram in range(problem.least_ram_bytes, 2 * layers + 3):
        optimum = least_overhead_j(problem, ram, paging=False)
        if optimum is None:
            with pytest.raises(NoScheduleError):
                method("revolve").schedule(problem, ram)
        else:
            plan = method("revolve").schedule(problem, ram)
            assert simulate(plan, ram_bytes=ram).overhead_j == optimum
