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
from poetopt.util.errors import FormulationError, PlanError
from tests.problems import random_tight


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


def test_the_model_knows_what_it_was_built_of() -> None:
    """Without being told, in both formulations and with blocks; every block judges the plan."""
    compared = forbidden = 0
    for seed in range(12):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6, training=True)
        for base in (po.formulations.retention, po.formulations.poet):
            free = base.build(problem, ram_bytes=ram_bytes)
            if not settled(free):
                continue
            written = bytes_out(po.plan_of(free))
            for most in {0, written}:
                chosen = base.with_block(po.formulations.flash_wear.flash_wear(most))
                model = chosen.build(problem, ram_bytes=ram_bytes)
                if not settled(model):
                    continue
                plan = po.plan_of(model)
                simulation = po.simulate(plan, ram_bytes=ram_bytes)
                assert bytes_out(plan) <= most
                assert simulation.overhead_j == pytest.approx(pyo.value(model.overhead_j), abs=1e-6)
                compared += 1
                if written > most:
                    model.flash_wear.deactivate()  # the model forgets the rule, the judgement doesn't
                    settled(model)
                    with pytest.raises(PlanError, match="a block refuses it: the plan writes"):
                        po.plan_of(model)
                    forbidden += 1
    assert compared > 10
    assert forbidden


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
    with pytest.raises(FormulationError, match=r"2 of a formulation in it \(usual, others\[slow\]\); ask for each"):
        po.plan_of(larger)


def bytes_out(plan: po.Plan) -> int:
    return sum(plan.problem.tensors[step.target].nbytes for step in plan.instructions if step.action == "page_out")


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


def test_what_can_not_be_made_a_plan() -> None:
    problem, ram_bytes = random_tight(random.Random(1), operators=7, training=True)
    for formulation in (po.formulations.retention, po.formulations.poet):
        model = formulation.build(problem, ram_bytes=ram_bytes, scope="full")
        for ask in (po.plan_of, po.add_late_rows):
            with pytest.raises(PlanError, match=r"no solution in it: none of its .* variables has a value"):
                ask(model)
        for variable in model.component_data_objects(pyo.Var):
            variable.value = 0.4
        with pytest.raises(PlanError, match="isn't solved to whole numbers"):
            po.plan_of(model)
        pyo.TransformationFactory("core.relax_integer_vars").apply_to(model)
        with pytest.raises(PlanError, match="isn't solved to whole numbers"):
            po.plan_of(model)
    with pytest.raises(FormulationError, match="no model that a formulation's `build` has made"):
        po.plan_of(pyo.ConcreteModel())
    with pytest.raises(FormulationError, match="a Problem is no Pyomo model"):
        po.plan_of(problem)
