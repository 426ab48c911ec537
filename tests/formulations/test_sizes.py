"""Problems of 20 to 60 operators, beyond exhaustive search: scopes, formulations and backends against each other.

Every plan is the simulator's, no bound is above a plan that its scope holds, and where proofs are complete the nested
scopes have ordered optima, which all backends share.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.solution import Options, Solution, Status
from tests.seeds import some
from tests.support.closed import in_scope
from tests.support.problems import random_tight

SEEDS = some(range(10), 4)
TOLERANCE = 1e-6
FEW_FOR_POET = 32
"""Operators up to which Algorithm 1 is solved in a second."""
FEW_FOR_FULL = 45


def solved(
    problem: Problem, ram_bytes: int, scope: str, *, formulation: str = "retention", backend: str = "highs"
) -> Solution:
    """A solve by one thread; its plan is simulated again, and its bound is no higher than its plan."""
    asked = Options(
        ram_bytes=ram_bytes,
        formulation=formulation,
        scope=scope,
        backend=backend,
        gap=TOLERANCE,
        threads=1,
        time_limit_s=30,
    )
    solution = solve(problem, asked)
    assert solution.plan is not None
    assert solution.simulation is not None
    assert simulate(solution.plan, ram_bytes=ram_bytes).overhead_j == solution.simulation.overhead_j
    assert bound(solution) <= overhead(solution) + TOLERANCE
    return solution


def overhead(solution: Solution) -> float:
    assert solution.simulation is not None
    return solution.simulation.overhead_j


def bound(solution: Solution) -> float:
    return -1.0 if solution.scope_bound_j is None else solution.scope_bound_j


def is_closed(solution: Solution) -> bool:
    """Whether the plan is an optimum of its scope: a plan from outside may be less than all of it."""
    return in_scope(solution) in (Status.OPTIMAL, Status.WITHIN_GAP) and not solution.outdone


def case(seed: int) -> tuple[Problem, int, float]:
    """A training step, a budget that a greedy replay keeps, and the replay's overhead in joules."""
    rng = random.Random(seed)
    while True:
        problem, ram_bytes = random_tight(rng, operators=rng.randint(20, 60), training=True)
        schedule = greedy(problem, ram_bytes, paging=True, remat=True)
        if schedule is not None:
            replay = simulate(plan_of(problem, schedule))
            if replay.peak_bytes <= ram_bytes:
                return problem, ram_bytes, replay.overhead_j


@pytest.mark.parametrize("seed", SEEDS)
def test_scopes_and_formulations_agree(seed: int) -> None:
    problem, ram_bytes, replay_j = case(seed)
    scopes = ["depth:2", "depth:4", "forward"]
    if len(problem.operators) <= FEW_FOR_FULL:
        scopes.append("full")
    found = [solved(problem, ram_bytes, scope) for scope in scopes]
    for inner, outer in pairwise(found):
        if is_closed(inner) and is_closed(outer):
            assert overhead(outer) <= overhead(inner) + TOLERANCE
    if "full" in scopes:
        plans = [replay_j, *map(overhead, found)]
        if len(problem.operators) <= FEW_FOR_POET:
            plans.append(overhead(solved(problem, ram_bytes, "full", formulation="poet")))
        assert bound(found[-1]) <= min(plans) + TOLERANCE
