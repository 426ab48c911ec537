"""Figures as data: mutable Params in place of numbers, and an AbstractModel that is given a problem's data."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest

import poetopt as po
from poetopt.backends.solvers.matrix import compile_model
from poetopt.formulations.decisions import page_ins
from poetopt.formulations.language import data_of
from poetopt.util.errors import FormulationError
from tests.search.test_solved import settled
from tests.support.problems import random_tight

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
        before = pyo.value(model.transfer_time_s)
        for by in (1.0, -1.0):
            for name in model.tensors:
                model.page_out_s[name] = pyo.value(model.page_out_s[name]) + by
            later = pyo.value(model.transfer_time_s)
            assert by < 0 or later - before >= simulation.page_outs - 1e-6  # each a second longer
        assert max(map(pyo.value, model.bytes_used.values())) <= budget


@pytest.mark.parametrize("formulation", BOTH)
@pytest.mark.parametrize("seed", range(3))
def test_a_changed_capacity_needs_no_new_build(formulation: Any, seed: int) -> None:
    rng = random.Random(100 + seed)
    problem, ram_bytes = random_tight(rng, operators=6, training=True)
    most = problem.nbytes(range(len(problem.tensors)))
    model = formulation.build(replace(problem, storage_bytes=most), ram_bytes=ram_bytes, mutable=True)
    for stored in (most, 0, most // 4, most // 2):
        model.storage_bytes = stored
        expected = optimum(formulation.build(replace(problem, storage_bytes=stored), ram_bytes=ram_bytes))
        assert optimum(model) == (None if expected is None else pytest.approx(expected, abs=1e-6))
        assert expected is None or po.plan_of(model).problem.storage_bytes == stored


def same(one: Any, other: Any) -> bool:
    ours, theirs = compile_model(one), compile_model(other)
    return (
        [v.name for v in ours.columns.variables] == [v.name for v in theirs.columns.variables]
        and (ours.rows != theirs.rows).nnz == 0
        and ours.costs.tolist() == theirs.costs.tolist()
        and ours.row_upper.tolist() == theirs.row_upper.tolist()
    )


ADDED: dict[str, Callable[[], Any]] = {
    "Constraint": lambda: pyo.Constraint(rule=lambda model: model.recompute.r[first(model)] == 0),
    "Objective": lambda: pyo.Objective(rule=lambda model: model.recompute.r[first(model)]),
    "Param": lambda: pyo.Param(initialize=1),
    "Block": lambda: pyo.Block(rule=lambda block: block.add_component("x", pyo.Var())),
}


def first(model: Any) -> Any:
    return next(iter(model.recompute.r))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", ADDED)
def test_what_is_added_is_kept_before_the_data_and_after(kind: str, before: bool) -> None:
    problem, ram_bytes = random_tight(random.Random(1), operators=6, training=True)
    data = data_of(problem, ram_bytes=ram_bytes)
    plain = compile_model(po.formulations.retention.from_data().create_instance(data))
    model = po.formulations.retention.from_data()
    if not before:
        model = model.create_instance(data)
    if kind == "Objective":
        model.overhead_j.deactivate()
    model.mine = ADDED[kind]()
    if before:
        model = model.create_instance(data)
    assert model.mine.ctype.__name__ == kind
    compiled = compile_model(model)
    assert compiled.rows.shape[0] - plain.rows.shape[0] == (kind == "Constraint")
    if kind == "Objective":
        assert np.count_nonzero(compiled.costs) == 1


STEP = """
set operators := f1 f2 loss b2 b1 ;
set tensors := x a1 a2 g2 g1 ;
set reads := (f1,x) (f2,a1) (loss,a2) (b2,a1) (b2,g2) (b1,x) (b1,g1) ;
set writes := (f1,a1) (f2,a2) (loss,g2) (b2,g1) ;
param: compute_j compute_s := f1 1 1  f2 1 1  loss 0.1 1  b2 2 1  b1 2 1 ;
param: tensor_bytes page_in_j page_out_j := x 4 9 9  a1 8 0.3 0.4  a2 8 9 9  g2 8 9 9  g1 8 9 9 ;
param workspace_bytes := loss 8 ;
param ram_bytes := 28 ;
"""
"""A data file of a step of five operators, whose a1 doesn't fit beside a2 and g2."""


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("formulation", BOTH)
def test_a_data_file_is_solved_with_pyomos_own_solver(formulation: Any, mutable: bool, tmp_path: Path) -> None:
    """What a user adds to the AbstractModel counts: without page-ins a1 is made again."""
    (tmp_path / "step.dat").write_text(STEP, encoding="utf-8")
    found = []
    for most in (1, 0):
        model = formulation.from_data(mutable=mutable)
        model.most = pyo.Param(initialize=most)
        model.few = pyo.Constraint(rule=lambda m: sum(back.variable for back in page_ins(m)) <= m.most)
        instance = model.create_instance(str(tmp_path / "step.dat"))
        solver = pyo.SolverFactory("appsi_highs")
        solver.solve(instance)
        while po.add_late_rows(instance):
            solver.solve(instance)
        found.append(pyo.value(instance.overhead_j))
        assert po.simulate(po.plan_of(instance), ram_bytes=28).overhead_j == pytest.approx(found[-1])
        assert not mutable or pyo.value(instance.energy_j) == pytest.approx(6.1 + found[-1])
    assert found == pytest.approx([0.7, 1.0])


def test_data_that_lack_something_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "step.dat").write_text(STEP.replace("b1 2 1", "b1 2 ."), encoding="utf-8")
    model = po.formulations.poet.from_data()
    with pytest.raises(FormulationError, match="the data lack compute_s of 'b1'"):
        model.create_instance(str(tmp_path / "step.dat"))
    with pytest.raises(FormulationError, match=r"the data can't be loaded: .*; `data_of`"):
        model.create_instance(str(tmp_path / "none.dat"))
    model.wrong = pyo.Constraint(rule=lambda m: m.decisions.R[99, 99] == 1)
    (tmp_path / "step.dat").write_text(STEP, encoding="utf-8")
    with pytest.raises(KeyError, match="99"):
        model.create_instance(str(tmp_path / "step.dat"))


@pytest.mark.parametrize("formulation", BOTH)
def test_data_make_the_same_model(formulation: Any) -> None:
    for seed in range(5):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6)
        model = formulation.from_data().create_instance(data_of(problem, ram_bytes=ram_bytes, deadline_s=1e6))
        assert same(model, formulation.build(problem, ram_bytes=ram_bytes, makespan_s=1e6))
