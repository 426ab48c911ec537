"""Figures as data: mutable Params in place of numbers, and an AbstractModel that is given a problem's data."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyomo.environ as pyo
import pytest
from pyomo.core.base.units_container import UnitsError
from pyomo.util.check_units import assert_units_consistent

import poetopt as po
from poetopt.backends.solvers.matrix import compile_model
from poetopt.formulations.language import data_of
from poetopt.graph.problem import Problem
from poetopt.util.errors import FormulationError, ProblemError
from tests.problems import random_tight
from tests.search.test_solved import settled

BOTH = [po.formulations.retention, po.formulations.poet]


def optimum(model: Any) -> float | None:
    return pyo.value(model.overhead_j) if settled(model) else None


@pytest.mark.parametrize("formulation", BOTH)
@pytest.mark.parametrize("seed", range(4))
def test_a_changed_figure_needs_no_new_build(formulation: Any, seed: int) -> None:
    """One model, changed again and again, keeps the rows that came late, and has the optimum of a new one."""
    rng = random.Random(seed)
    problem, ram_bytes = random_tight(rng, operators=6, training=True)
    model = formulation.build(problem, ram_bytes=ram_bytes, compute_s=1e6, mutable=True)
    for _ in range(4):
        budget = ram_bytes + rng.randint(-2, 3)
        dearer, slower = rng.choice((0.5, 1.0, 3.0)), rng.choice((1.0, 2.0))
        deadline_s = problem.baseline_time_s * slower * rng.choice((1.1, 2.0))
        changed = replace(
            problem,
            operators=tuple(replace(operator, time_s=operator.time_s * slower) for operator in problem.operators),
            tensors=tuple(tensor.moved_for(page_in_j=tensor.page_in_j * dearer) for tensor in problem.tensors),
        )
        model.ram_bytes, model.deadline_s = budget, deadline_s
        for name, tensor in zip(model.tensors, changed.tensors, strict=True):
            model.page_in_j[name] = tensor.page_in_j
        for name, operator in zip(model.operators, changed.operators, strict=True):
            model.compute_s[name] = operator.time_s
        expected = optimum(formulation.build(changed, ram_bytes=budget, compute_s=deadline_s, mutable=True))
        lean = optimum(formulation.build(changed, ram_bytes=budget, compute_s=deadline_s))
        assert lean is None or (expected is not None and expected <= lean + 1e-6)  # it has fewer page-ins
        assert optimum(model) == (None if expected is None else pytest.approx(expected, abs=1e-6))
        if expected is None:
            continue
        plan = po.plan_of(model)
        simulation = po.simulate(plan, ram_bytes=budget)
        assert plan.problem.tensors == changed.tensors
        assert simulation.overhead_j == pytest.approx(expected, abs=1e-6)
        assert pyo.value(model.energy_j) == pytest.approx(changed.baseline_energy_j + expected, abs=1e-6)
        assert pyo.value(model.compute_time_s) == pytest.approx(simulation.compute_s, abs=1e-6)
        assert max(map(pyo.value, model.bytes_used.values())) <= budget


@pytest.mark.parametrize("formulation", BOTH)
def test_units_are_held(formulation: Any) -> None:
    problem, ram_bytes = random_tight(random.Random(1), operators=6, training=True)
    model = formulation.build(problem, ram_bytes=ram_bytes, makespan_s=1e6, mutable=True)
    assert_units_consistent(model)
    assert str(pyo.units.get_units(model.energy_j)) == "J"
    for wrong in (model.energy_j <= model.deadline_s, model.ram_bytes >= sum(model.bytes_used.values()) * pyo.units.s):
        model.wrong = pyo.Constraint(expr=wrong)
        with pytest.raises(UnitsError):
            assert_units_consistent(model)
        model.del_component("wrong")


def test_scenarios_link_one_to_one() -> None:
    """Costs leave nothing out, so that the indices are the same."""
    problem, ram_bytes = random_tight(random.Random(1), operators=7, training=True)
    free = replace(problem, tensors=tuple(t.moved_for(page_in_j=0.0, page_out_j=0.0) for t in problem.tensors))
    build = po.formulations.retention.build
    models = [build(p, ram_bytes=ram_bytes, mutable=True) for p in (problem, free)]
    assert list(models[0].page_ins) == list(models[1].page_ins)
    assert list(models[0].recomputations) == list(models[1].recomputations)


def test_what_keeps_numbers_is_refused() -> None:
    problem, ram_bytes = random_tight(random.Random(1), operators=6, training=True)
    powered = po.formulations.retention.with_block(po.formulations.static_power.static_power(1.0))
    with pytest.raises(FormulationError, match=r"block 'static_power' holds .* as numbers; build without mutable"):
        powered.build(problem, ram_bytes=ram_bytes, mutable=True)


def same(one: Any, other: Any) -> bool:
    ours, theirs = compile_model(one), compile_model(other)
    return (
        [v.name for v in ours.columns.variables] == [v.name for v in theirs.columns.variables]
        and (ours.rows != theirs.rows).nnz == 0
        and ours.costs.tolist() == theirs.costs.tolist()
        and ours.row_upper.tolist() == theirs.row_upper.tolist()
    )


@pytest.mark.parametrize("formulation", BOTH)
def test_data_make_the_same_model(formulation: Any) -> None:
    for seed in range(5):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6)
        model = formulation.from_data().create_instance(data_of(problem, ram_bytes=ram_bytes, deadline_s=1e6))
        assert same(model, formulation.build(problem, ram_bytes=ram_bytes, makespan_s=1e6))


def test_data_come_from_a_file(tmp_path: Path) -> None:
    """A step of two operators, as somebody writes it by hand."""
    path = tmp_path / "step.dat"
    path.write_text(
        """
        set operators := forward backward;
        set tensors := x y dx;
        set reads := (forward,x) (backward,x) (backward,y);
        set writes := (forward,y) (backward,dx);
        param: compute_j compute_s := forward 2 1  backward 3 1;
        param backward := backward 1;
        param tensor_bytes := x 4  y 2  dx 4;
        param ram_bytes := 10;
        """
    )
    asked = po.formulations.retention.from_data(mutable=True)
    portal = pyo.DataPortal(model=asked)
    portal.load(filename=str(path))
    for model in (asked.create_instance(portal), asked.create_instance(str(path))):
        assert settled(model)
        assert pyo.value(model.energy_j) == 5.0
        assert po.plan_of(model).problem.operators[1].backward
        assert list(model.tensors) == ["x", "y", "dx"]
    with pytest.raises(FormulationError, match=r"reads: \(forward, z\) is no pair"):
        asked.create_instance(_with_a_stranger(path))


def _with_a_stranger(path: Path) -> str:
    path.write_text(path.read_text().replace("(forward,x)", "(forward,z)"))
    return str(path)


def test_data_say_what_they_can_not() -> None:
    problem, _ = random_tight(random.Random(1), operators=6, training=True)
    kept = replace(problem, tensors=(*problem.tensors[:-1], replace(problem.tensors[-1], result=True)))
    assert isinstance(kept, Problem)
    with pytest.raises(ProblemError, match="data for an AbstractModel can't take this problem yet"):
        data_of(kept, ram_bytes=10)
