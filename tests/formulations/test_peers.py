"""Formulations against exhaustive search and against each other, on random problems that are short of memory.

The spaces are nested: Algorithm 1's stages within `retention`'s full scope within all plans. So the
optima are ordered, `poet` meets the stage-wise brute force exactly, and nothing may cost less than the
best plan of all.
"""

from __future__ import annotations

import math
import random

import pytest

from poetopt.graph.problem import Problem
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from tests.seeds import seeds
from tests.support.bruteforce import StageOptimum, StageRules, stage_optimum
from tests.support.closed import closed
from tests.support.every_plan import least_overhead_j
from tests.support.problems import random_budget, random_problem, random_tight, store_all

TOLERANCE = 1e-6


def case(seed: int) -> tuple[Problem, int]:
    rng = random.Random(seed)
    if seed % 4:
        return random_tight(rng, operators=rng.randint(3, 6))
    problem = random_problem(rng, operators=rng.randint(2, 6))
    return problem, random_budget(rng, problem)


def optimum(problem: Problem, ram_bytes: int, formulation: str, scope: str, **options: bool) -> float:
    """The overhead of a solve to optimality, infinite where it is proven that the formulation has no schedule."""
    asked = Options(
        ram_bytes=ram_bytes,
        formulation=formulation,
        scope=scope,
        gap=1e-9,
        time_limit_s=60,
        **options,  # type: ignore[arg-type]
    )
    solution = solve(problem, asked)
    if solution.simulation is None:
        assert solution.status is Status.INFEASIBLE or "exists, by proof" in solution.reason
        return math.inf
    assert closed(solution)
    assert solution.plan is not None
    simulate(solution.plan, ram_bytes=ram_bytes)
    return solution.simulation.overhead_j


def overhead(found: StageOptimum | None) -> float:
    return math.inf if found is None else found.overhead_j


def least(problem: Problem, ram_bytes: int, **options: bool) -> float:
    known = least_overhead_j(problem, ram_bytes, **options)
    return math.inf if known is None else known


@pytest.mark.parametrize("seed", seeds(500))
def test_spaces_are_nested_and_poet_is_algorithm_1(seed: int) -> None:
    problem, ram_bytes = case(seed)
    if simulate(store_all(problem)).peak_bytes <= ram_bytes:
        assert optimum(problem, ram_bytes, "retention", "full") == 0
        return
    plans = least(problem, ram_bytes)
    stages = overhead(stage_optimum(problem, ram_bytes))
    retention = optimum(problem, ram_bytes, "retention", "full")
    assert optimum(problem, ram_bytes, "poet", "full") == pytest.approx(stages, abs=TOLERANCE)
    assert plans - TOLERANCE <= retention
    assert retention <= stages + TOLERANCE
    forward = overhead(stage_optimum(problem, ram_bytes, StageRules(forward_only=True)))
    assert optimum(problem, ram_bytes, "retention", "forward") <= forward + TOLERANCE


@pytest.mark.parametrize("seed", [4 * k for k in seeds(40)])
@pytest.mark.parametrize("left_out", ["paging", "remat"])
def test_leaving_a_block_out_is_the_smaller_space(seed: int, left_out: str) -> None:
    problem, ram_bytes = case(seed + 1)
    if simulate(store_all(problem)).peak_bytes <= ram_bytes:
        pytest.skip("everything fits")
    without = {left_out: False}
    plans = least(problem, ram_bytes, **without)
    stages = overhead(stage_optimum(problem, ram_bytes, StageRules(**without)))
    assert optimum(problem, ram_bytes, "poet", "full", **without) == pytest.approx(stages, abs=TOLERANCE)
    retention = optimum(problem, ram_bytes, "retention", "full", **without)
    assert plans - TOLERANCE <= retention <= stages + TOLERANCE


@pytest.mark.parametrize("seed", [5 * k for k in seeds(32)])
def test_depth_grows_to_the_forward_scope(seed: int) -> None:
    problem, ram_bytes = case(seed)
    forward = optimum(problem, ram_bytes, "retention", "forward")
    deepest = optimum(problem, ram_bytes, "retention", f"depth:{len(problem.operators)}")
    shallow = optimum(problem, ram_bytes, "retention", "depth:1")
    assert deepest == pytest.approx(forward, abs=TOLERANCE)
    assert forward <= shallow + TOLERANCE
