"""Parameters with their home on storage: optima against exhaustive searches."""

from __future__ import annotations

import random

import pytest

from poetopt.formulations import formulation
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.solve import solve
from poetopt.search.search import search
from poetopt.search.solution import Options, Solution, Status
from poetopt.testing.block import held as at_schedule
from tests.seeds import seeds, some
from tests.support.bruteforce import stage_optimum
from tests.support.closed import closed
from tests.support.every_plan import least_overhead_j
from tests.support.small import poet_storage
from tests.support.stored import tight_with_parameters
from tests.support.three_steps import run_thrice

TOLERANCE = 1e-6


def optimal(problem: Problem, ram_bytes: int) -> Solution:
    options = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1, time_limit_s=60)
    return search(problem, options)


def overhead(found: Solution) -> float | None:
    return None if found.simulation is None else found.simulation.overhead_j


@pytest.mark.parametrize("seed", seeds(300))
def test_optima_are_those_of_all_plans_that_can_be_repeated(seed: int) -> None:
    """Every plan of so small a step is in the space, instruction by instruction."""
    problem, ram_bytes = tight_with_parameters(random.Random(seed), forward=2)
    if len(problem.tensors) > 9:
        return
    known, found = least_overhead_j(problem, ram_bytes), optimal(problem, ram_bytes)
    assert (known is None) is (found.status is Status.INFEASIBLE)
    if known is not None:
        assert found.scope_bound_j == pytest.approx(known, abs=TOLERANCE)


@pytest.mark.parametrize("seed", some(range(320), 12))
def test_poet_is_algorithm_1_over_steps(seed: int) -> None:
    """Parameters, states, ties and frozen ones, in Algorithm 1's stages; a plan has no less than those."""
    problem, ram_bytes = tight_with_parameters(random.Random(seed), forward=2)
    options = Options(ram_bytes=ram_bytes, formulation="poet", scope="full", gap=0.0, threads=1, time_limit_s=60)
    found, known = solve(problem, options), stage_optimum(problem, ram_bytes)
    plain = least_overhead_j(problem, ram_bytes) if len(problem.tensors) <= 9 else None
    if known is None:
        assert found.status is Status.INFEASIBLE
        return
    assert found.scope_bound_j == pytest.approx(known.overhead_j, abs=TOLERANCE)
    if found.plan is not None:
        run_thrice(found.plan, ram_bytes)
    if closed(found):  # else its schedules of least energy have no layout in the budget
        assert overhead(found) == pytest.approx(known.overhead_j, abs=TOLERANCE)
    if plain is not None:
        assert plain <= known.overhead_j + TOLERANCE


def test_the_best_of_algorithm_1_is_a_point_on_a_full_storage() -> None:
    """`poet` completes the values of a schedule's recomputes and page-ins by all others, what the storage holds too."""
    chosen, compared = formulation("poet"), 0
    for seed in range(20):
        case = poet_storage(seed)
        known = stage_optimum(case.problem, case.ram_bytes)
        if known is not None and known.schedule.page_ins:
            found = at_schedule(chosen, case.problem, case.ram_bytes, known.schedule, "highs")
            assert found is not None
            assert found.objective == pytest.approx(known.overhead_j, abs=TOLERANCE)
            compared += hasattr(chosen.build(case.problem, ram_bytes=case.ram_bytes), "capacity")
    assert compared
