"""Compiled arrays, against Pyomo's own compiler of the standard form without our shorter way."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

from poetopt.backends.solvers.matrix import compile_model
from poetopt.formulations import formulation
from tests.support.problems import random_tight


def same(model: Any) -> None:
    found, form = compile_model(model), LinearStandardFormCompiler().write(model, mixed_form=True)
    assert [id(v) for v in found.columns.variables] == [id(v) for v in form.columns]
    assert np.array_equal(found.costs, form.c.toarray().reshape(-1))
    assert found.constant == form.c_offset[0]
    place = {id(constraint): x for x, constraint in enumerate(found.constraints)}
    whole = form.A.tocsr()
    filled = np.flatnonzero(np.diff(whole.indptr)).tolist()  # Pyomo keeps rows of nothing but zeros
    theirs = [form.rows[x] for x in filled]
    rows = [place[id(row.constraint)] for row in theirs]  # one with two sides stands twice in Pyomo's
    assert set(rows) == set(place.values())
    assert (found.rows[rows] != whole[filled]).nnz == 0
    low, high = found.row_lower[rows], found.row_upper[rows]
    assert np.array_equal(np.where([row.bound_type < 0 for row in theirs], low, high), np.asarray(form.rhs)[filled])


@pytest.mark.parametrize("name", ["retention", "poet"])
@pytest.mark.parametrize("seed", range(8))
def test_formulations(name: str, seed: int) -> None:
    rng = random.Random(9100 + seed)
    problem, ram_bytes = random_tight(rng, operators=rng.randint(3, 7))
    same(formulation(name).build(problem, ram_bytes=ram_bytes, makespan_s=problem.baseline_time_s * 1.5))


def odd() -> Any:
    """What a block of somebody else may write: repeated and fixed variables, zeros, parameters, constants, ranges."""
    model = pyo.ConcreteModel()
    model.x = pyo.Var(pyo.RangeSet(0, 4), domain=pyo.Binary)
    model.y = pyo.Var(bounds=(-2, 3.5))
    model.n = pyo.Var(domain=pyo.NonNegativeIntegers)
    model.twice = pyo.Param(initialize=2.0, mutable=True)
    x = list(model.x.values())
    x[3].fix(1)
    rows = [
        (None, LinearExpression(linear_coefs=[1, 1, 2.5], linear_vars=[x[0], x[1], x[0]]), 4),
        (1, LinearExpression(linear_coefs=[1, 0, 1], linear_vars=[x[0], x[1], x[2]]), None),
        (0, LinearExpression(linear_coefs=[1, 1, 1], linear_vars=[x[0], x[3], x[2]]), 2),
        (0, LinearExpression(linear_coefs=[model.twice, 1], linear_vars=[x[4], model.y]), 2),
        (None, LinearExpression(constant=3, linear_coefs=[1, np.float64(2)], linear_vars=[x[1], model.n]), 9),
        (None, x[0] + 2 * (model.y - x[2]), 1),
        (None, model.n, 7),
    ]
    model.rows = pyo.Constraint(pyo.RangeSet(0, len(rows) - 1), rule=lambda _, k: rows[k])
    model.cost = pyo.Objective(expr=5 + x[0] + model.y - 3 * model.n)
    return model


def test_odd_expressions() -> None:
    model = odd()
    same(model)
    found = compile_model(model)
    whole = {v.name for v, w in zip(found.columns.variables, found.integer, strict=True) if w}
    assert whole - {"x[3]"} == {"x[0]", "x[1]", "x[2]", "x[4]", "n"}  # Pyomo 6.9 keeps what is fixed
    bounds = {v.name: (low, high) for v, low, high in zip(
        found.columns.variables, found.lower, found.upper, strict=True)}  # fmt: skip
    assert bounds["y"] == (-2, 3.5)
    assert bounds["n"] == (0, np.inf)
