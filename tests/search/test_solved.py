"""A model that the caller solves: rows that come late, and the plan."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyomo.environ as pyo
import pytest

import poetopt as po
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from poetopt.util.errors import FormulationError
from tests.support.problems import random_tight


def solved(problem: Problem, ram_bytes: int) -> tuple[Any, int]:
    """The model, solved until no rows come any more, and how many did; None where it has no solution."""
    model = po.formulations.retention.build(problem, ram_bytes=ram_bytes, scope="full")
    late = 0
    while True:
        if not optimal(model):
            return None, late
        more = po.add_late_rows(model)
        if not more:
            return model, late
        late += more


def test_it_is_the_optimum_that_solve_proves() -> None:
    late = infeasible = 0
    for seed in range(30):
        problem, ram_bytes = random_tight(random.Random(seed), operators=7, training=True)
        model, came = solved(problem, ram_bytes)
        late += came
        ours = solve(problem, Options(ram_bytes=ram_bytes, scope="full", gap=0.0, time_limit_s=20))
        if model is None:
            infeasible += 1
            assert ours.plan is None
            continue
        plan = po.plan_of(model)
        assert po.simulate(plan, ram_bytes=ram_bytes).overhead_j == pytest.approx(pyo.value(model.overhead_j), abs=1e-6)
        if ours.status is Status.OPTIMAL and not ours.outdone:
            assert ours.simulation is not None
            assert ours.simulation.overhead_j == pytest.approx(pyo.value(model.overhead_j), abs=1e-6)
    assert late
    assert infeasible < 15


def test_scenarios_are_models_inside_a_larger_one() -> None:
    """An extensive form of two scenarios, one as a block of its own kind and one of an indexed block."""
    problem, ram_bytes = random_tight(random.Random(1), operators=7, training=True)
    alone, _ = solved(problem, ram_bytes)
    slower = replace(
        problem, tensors=tuple(t.moved_for(page_in_j=t.page_in_j * 3, page_in_s=1.0) for t in problem.tensors)
    )
    dear, _ = solved(slower, ram_bytes)
    larger = pyo.ConcreteModel()
    larger.usual = po.formulations.retention.build(problem, ram_bytes=ram_bytes, scope="full")
    other = po.formulations.retention.build(slower, ram_bytes=ram_bytes, scope="full")
    larger.others = pyo.Block(["slow"], rule=lambda block, _: block.transfer_attributes_from(other))
    scenarios = [larger.usual, larger.others["slow"]]
    for scenario in scenarios:
        scenario.overhead_j.deactivate()
    larger.expected = pyo.Objective(expr=sum(scenario.overhead_j.expr for scenario in scenarios) / 2)
    assert optimal(larger)
    while sum(po.add_late_rows(scenario) for scenario in scenarios):
        assert optimal(larger)
    values = [po.simulate(po.plan_of(scenario), ram_bytes=ram_bytes).overhead_j for scenario in scenarios]
    assert values == pytest.approx([pyo.value(alone.overhead_j), pyo.value(dear.overhead_j)], abs=1e-6)
    assert larger.usual.model() is larger
    with pytest.raises(FormulationError, match=r"2 models of a formulation \(usual, others\[slow\]\)\. Call"):
        po.plan_of(larger)


def settled(model: Any) -> bool:
    """Solve until no rows come any more. Says whether there is a solution."""
    while optimal(model):
        if not po.add_late_rows(model):
            return True
    return False


def optimal(model: Any) -> bool:
    solver = pyo.SolverFactory("appsi_highs")
    found = solver.solve(model, load_solutions=False)
    if found.solver.termination_condition != pyo.TerminationCondition.optimal:
        return False
    solver.load_vars()
    return True
