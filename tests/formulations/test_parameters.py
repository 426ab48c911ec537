"""Figures as data: mutable Params in place of numbers, and an AbstractModel that is given a problem's data."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest

import poetopt as po
from poetopt.backends.solvers.matrix import compile_model
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


@pytest.mark.parametrize("kind", ADDED)
def test_what_is_added_is_refused_before_the_data_and_kept_after(kind: str) -> None:
    problem, ram_bytes = random_tight(random.Random(1), operators=6, training=True)
    abstract = po.formulations.retention.from_data()
    with pytest.raises(FormulationError, match=f"'mine' .{kind}.*create_instance"):
        abstract.mine = ADDED[kind]()
    model = abstract.create_instance(data_of(problem, ram_bytes=ram_bytes))
    assert model.component("mine") is None
    before = compile_model(model).rows.shape[0]
    if kind == "Objective":
        model.overhead_j.deactivate()
    model.mine = ADDED[kind]()
    assert model.mine.ctype.__name__ == kind
    compiled = compile_model(model)
    assert compiled.rows.shape[0] - before == (kind == "Constraint")
    if kind == "Objective":
        assert np.count_nonzero(compiled.costs) == 1


@pytest.mark.parametrize("formulation", BOTH)
def test_data_make_the_same_model(formulation: Any) -> None:
    for seed in range(5):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6)
        model = formulation.from_data().create_instance(data_of(problem, ram_bytes=ram_bytes, deadline_s=1e6))
        assert same(model, formulation.build(problem, ram_bytes=ram_bytes, makespan_s=1e6))
