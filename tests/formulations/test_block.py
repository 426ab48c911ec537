"""The blocks that change what is asked, against problems in which the same is asked without them.

Without DMA a makespan is a sum, so that idle power is a dearer problem, an energy limit a deadline with energies and
times exchanged, and no writing at all a device without storage.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.language import Block
from poetopt.formulations.static_power import static_power
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Solution, Status
from tests.seeds import some
from tests.support.closed import in_scope
from tests.support.problems import random_tight

SEEDS = some(range(24), 6)


def case(seed: int) -> tuple[Problem, int]:
    rng = random.Random(7000 + seed)
    problem, ram_bytes = random_tight(rng, operators=rng.randint(3, 6))
    timed = [replace(op, time_s=rng.choice((0.5, 1.0, 2.0, 3.0))) for op in problem.operators]
    return replace(problem, operators=tuple(timed)), ram_bytes


def run(
    problem: Problem,
    ram_bytes: int,
    *blocks: Block,
    name: str = "retention",
    deadline_s: float | None = None,
    paging: bool = True,
) -> Solution:
    asked = formulation(name)
    options = Options(
        ram_bytes=ram_bytes,
        deadline_s=deadline_s,
        formulation=asked.with_block(*blocks) if blocks else asked,
        scope="full",
        paging=paging,
        gap=1e-9,
    )
    solution = solve(problem, options)
    assert in_scope(solution) in (Status.OPTIMAL, Status.INFEASIBLE)
    return solution


def value(solution: Solution) -> float | None:
    if solution.simulation is None:
        return None
    if solution.objective is None:
        return solution.simulation.overhead_j
    assert solution.objective.value is not None
    assert solution.scope_bound == pytest.approx(solution.objective.value, abs=1e-6)
    return solution.objective.value


def same(found: float | None, wanted: float | None) -> bool:
    return found is wanted is None or (found is not None and found == pytest.approx(wanted, abs=1e-6))


@pytest.mark.parametrize("name", ["retention", "poet"])
@pytest.mark.parametrize("seed", SEEDS)
def test_static_power_is_a_dearer_problem(seed: int, name: str) -> None:
    problem, ram_bytes = case(seed)
    power_w = 0.25 * (1 + seed % 5)
    dearer = replace(
        problem,
        operators=tuple(replace(op, energy_j=op.energy_j + power_w * op.time_s) for op in problem.operators),
        tensors=tuple(
            t.moved_for(page_in_j=t.page_in_j + power_w * t.page_in_s, page_out_j=t.page_out_j + power_w * t.page_out_s)
            for t in problem.tensors
        ),
    )
    with_block = run(problem, ram_bytes, static_power(power_w), name=name)
    assert same(value(with_block), value(run(dearer, ram_bytes, name=name)))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_energy_budget_is_a_deadline_with_the_roles_exchanged(seed: int) -> None:
    problem, ram_bytes = case(seed)
    exchanged = replace(
        problem,
        operators=tuple(replace(op, energy_j=op.time_s, time_s=op.energy_j) for op in problem.operators),
        tensors=tuple(
            t.moved_for(page_in_j=t.page_in_s, page_in_s=t.page_in_j, page_out_j=t.page_out_s, page_out_s=t.page_out_j)
            for t in problem.tensors
        ),
    )
    for more in (0.5, 2.0, 6.0):
        limit = problem.baseline_energy_j + more
        found = run(problem, ram_bytes, energy_budget(limit))
        assert same(value(found), value(run(exchanged, ram_bytes, deadline_s=limit)))
        if found.simulation is not None:
            assert found.simulation.energy_j <= limit * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_more_wear_never_costs_more(seed: int) -> None:
    problem, ram_bytes = case(seed)
    found = [value(run(problem, ram_bytes, flash_wear(limit))) for limit in (0, 2, 5, 1000)]
    costs = [float("inf") if cost is None else cost for cost in found]
    assert costs == sorted(costs, reverse=True)
    assert same(found[-1], value(run(problem, ram_bytes)))
