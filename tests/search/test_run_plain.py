"""What is proven of plain runs, or of a scope inside, isn't searched again: the answers stay the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.formulations.language import Formulation
from poetopt.formulations.retention import retention
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.solve import solve
from poetopt.search.search import search
from poetopt.search.solution import Options, Solution, Status
from tests.formulations.retention.test_streaming import tight_with_variants
from tests.seeds import some
from tests.support.problems import random_budget, random_problem

AGAIN = replace(retention, name="again", search=replace(retention.search, streaming_difference=None))
"""Searches all of it once more."""


def roomy(rng: random.Random) -> tuple[Problem, int]:
    """A step whose runs may stream, in a budget that has room for each of them plain, mostly no more."""
    problem, _ = tight_with_variants(rng, forward=rng.choice((2, 3)))
    most = max(map(problem.working_set_bytes, range(len(problem.operators)))) + problem.reserve_bytes
    return problem, max(most, problem.least_ram_bytes) + rng.choice((0, 0, 1, 2))


def solved(problem: Problem, ram_bytes: int, scope: str, formulation: str | Formulation = "retention") -> Solution:
    asked = Options(ram_bytes=ram_bytes, scope=scope, gap=1e-7, threads=1, time_limit_s=60)
    return search(problem, replace(asked, formulation=formulation))


@pytest.mark.parametrize("seed", some(range(60), 12))
def test_the_same_optimum_either_way(seed: int) -> None:
    rng = random.Random(seed)
    problem, ram_bytes = roomy(rng)
    scope = rng.choice(("depth:4", "forward", "full", "auto"))
    parts, whole = (solved(problem, ram_bytes, scope, chosen) for chosen in ("retention", AGAIN))
    assert parts.status is whole.status
    assert parts.scope_bound_j == pytest.approx(whole.scope_bound_j, rel=1e-6, abs=1e-9)
    if parts.simulation is not None:
        assert whole.simulation is not None
        assert parts.simulation.overhead_j == pytest.approx(whole.simulation.overhead_j, rel=1e-6, abs=1e-9)


WHOLE = replace(retention, name="whole", search=replace(retention.search, scope_difference=None))


@pytest.mark.parametrize("seed", some(range(60), 10))
def test_what_lies_beyond_a_proven_scope_is_searched_to_the_same_optimum(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=11, training=True)
    deadline_s = rng.choice([None, 1.15]) and 1.15 * problem.baseline_time_s
    asked = Options(
        ram_bytes=random_budget(rng, problem), scope=rng.choice(["forward", "full"]), gap=1e-7, deadline_s=deadline_s
    )
    parts, whole = solve(problem, asked), solve(problem, replace(asked, formulation=WHOLE))
    assert parts.status is whole.status
    if parts.simulation is None or whole.simulation is None:
        assert parts.status is Status.INFEASIBLE
        return
    assert parts.simulation.overhead_j == pytest.approx(whole.simulation.overhead_j, rel=1e-6, abs=1e-9)
    assert parts.scope_bound_j == pytest.approx(parts.simulation.overhead_j, rel=1e-6, abs=1e-9)
