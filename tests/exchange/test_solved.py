"""A model that the caller solves: rows that come late, and the plan."""

from __future__ import annotations

import random
from typing import Any

import pyomo.environ as pyo
import pytest

import poetopt as po
from poetopt.diagnosis.solve import solve
from poetopt.engine.solution import Options, Status
from poetopt.errors import FormulationError, PlanError
from poetopt.problem import Problem
from tests.problems import random_tight


def solved(problem: Problem, ram_bytes: int) -> tuple[Any, int]:
    """The model, solved until no rows come any more, and how many did; None where it has no solution."""
    model = po.formulations.retention.build(problem, ram_bytes=ram_bytes, scope="full")
    solver = pyo.SolverFactory("appsi_highs")
    late = 0
    while True:
        found = solver.solve(model, load_solutions=False)
        if found.solver.termination_condition != pyo.TerminationCondition.optimal:
            return None, late
        model.solutions.load_from(found) if found.solution else solver.load_vars()
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


def test_what_can_not_be_made_a_plan() -> None:
    problem, ram_bytes = random_tight(random.Random(1), operators=7, training=True)
    model = po.formulations.retention.build(problem, ram_bytes=ram_bytes, scope="full")
    for variable in model.component_data_objects(pyo.Var):
        variable.value = 0.4
    with pytest.raises(PlanError, match="isn't solved to whole numbers"):
        po.plan_of(model)
    with pytest.raises(FormulationError, match="no model that a formulation's `build` has made"):
        po.plan_of(pyo.ConcreteModel())
