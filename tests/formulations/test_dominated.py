"""A recompute that costs as much as paging is left out: nothing is lost by it, and it stays where more counts."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from poetopt.formulations.block import Limits
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.retention import retention
from poetopt.formulations.retention.enumeration import dominated, retention_space
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from poetopt.testing.exhaustive import MOST_DECISIONS, best, decisions, valid
from poetopt.testing.problems import crowded, tight
from tests.problems import random_budget, random_problem
from tests.seeds import seeds


def some_dear(rng: random.Random, problem: Problem) -> Problem:
    """`problem` where about half of the operators cost as much as paging what they write, or more."""
    operators = []
    for operator in problem.operators:
        price = sum(problem.tensors[i].page_in_j + problem.tensors[i].page_out_j for i in operator.outputs)
        share = rng.choice((0.3, 0.8, 1.0, 1.0, 1.5, 3.0))
        operators.append(replace(operator, energy_j=price * share))
    return replace(problem, operators=tuple(operators))


def with_few_decisions(seed: int) -> tuple[Problem, int, str]:
    """A problem with dear operators whose schedules can all be tried, its budget, and a scope."""
    rng = random.Random(seed)
    while True:
        problem, ram = tight(rng, forward=rng.choice([2, 3])) if rng.random() < 0.5 else crowded(rng, again=True)
        problem, scope = some_dear(rng, problem), rng.choice(["forward", "depth:1", "full"])
        limits = Limits(ram_bytes=ram)
        whole = retention_space(problem, limits, scope, True, True)
        fewer = len(retention_space(problem, limits, scope, True, True, True).recompute_stage) < len(
            whole.recompute_stage
        )
        if fewer and sum(map(len, decisions(whole))) <= MOST_DECISIONS:
            return problem, ram, scope


@pytest.mark.parametrize("seed", seeds(60))
def test_no_optimum_is_lost(seed: int) -> None:
    problem, ram, scope = with_few_decisions(seed)
    limits = Limits(ram_bytes=ram)
    whole, lean = (retention_space(problem, limits, scope, True, True, lean) for lean in (False, True))
    least = best(retention, valid(whole, ram), ram)
    found = best(retention, valid(lean, ram), ram)
    if least is None:
        assert found is None
        return
    assert found is not None
    assert found[0] == pytest.approx(least[0])


@pytest.mark.parametrize("seed", seeds(40))
def test_both_models_have_the_same_optimum(seed: int) -> None:
    rng = random.Random(seed)
    problem = some_dear(rng, random_problem(rng, operators=10, training=True))
    scope = rng.choice(["depth:1", "depth:2", "forward", "full"])
    asked = Options(ram_bytes=random_budget(rng, problem), scope=scope, gap=1e-7)
    all_ = replace(retention, name="all", lean=False)
    one, other = solve(problem, asked), solve(problem, replace(asked, formulation=all_))
    assert one.status is other.status
    if one.simulation is None or other.simulation is None:
        assert one.status is Status.INFEASIBLE
        return
    assert one.simulation.overhead_j == pytest.approx(other.simulation.overhead_j, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", seeds(30))
def test_a_schedule_with_dear_recomputes_is_a_start(seed: int) -> None:
    """The model knows a schedule that does as well, wherever a plan of it exists."""
    problem, ram, scope = with_few_decisions(seed)
    model = retention.build(problem, ram_bytes=ram, scope=scope)
    space = model.space
    for schedule, _, simulation in valid(retention_space(problem, space.limits, scope, True, True), ram)[:40]:
        values = retention.points.values(model, schedule)
        if values is None:
            continue
        given = {id(variable): array for variable, array in values}
        cost = np.array([problem.operators[j].energy_j for j in space.recompute_operator])
        paged = space.point_tensor[space.page_point]
        assert (
            given[id(model.recompute.r)] @ cost
            + given[id(model.paging.p)] @ np.array([problem.tensors[i].page_in_j for i in paged])
            + given[id(model.paging.o)] @ np.array([problem.tensors[i].page_out_j for i in model.paging.o_tensor])
            <= simulation.overhead_j * (1 + 1e-9) + 1e-12
        )


def test_all_recomputes_stay_where_more_than_energy_counts() -> None:
    problem, ram, scope = with_few_decisions(1)
    limits = Limits(ram_bytes=ram)
    assert dominated(problem, limits, True).any()
    for timed in (replace(limits, makespan_s=1.0), replace(limits, compute_s=1.0)):
        assert not dominated(problem, timed, True).any()
    assert not dominated(problem, limits, False).any()
    assert not dominated(replace(problem, wake_j=1.0), limits, True).any()
    assert not dominated(replace(problem, storage_bytes=1), limits, True).any()
    other = retention.with_block(flash_wear(10**9))
    assert not other.build(problem, ram_bytes=ram, scope=scope).space.lean
    assert retention.build(problem, ram_bytes=ram, scope=scope).space.lean
