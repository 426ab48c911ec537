"""Pyomo's own nouns: Sets and tuple indices, docs, models that pickle, and what a block may not leave behind."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyomo.environ as pyo
import pytest

import poetopt as po
from poetopt.backends.solvers.matrix import compile_model
from poetopt.formulations.block import Block, PyomoBlock
from poetopt.graph.problem import Problem
from poetopt.util.errors import FormulationError
from tests.problems import random_tight

BOTH = [po.formulations.retention, po.formulations.poet]


@pytest.fixture
def case() -> tuple[Problem, int]:
    return random_tight(random.Random(1), operators=7, training=True)


def test_variables_are_indexed_by_names_and_stages(case: tuple[Problem, int]) -> None:
    """The entries are where the arrays of the space, which know no names, have them."""
    problem, ram_bytes = case
    model = po.formulations.retention.build(problem, ram_bytes=ram_bytes)
    space = model.space
    assert list(model.operators) == [operator.name for operator in problem.operators]
    assert list(model.tensors) == [tensor.name for tensor in problem.tensors]
    assert list(model.stages) == list(range(len(problem.operators)))
    for index, tensor, stage in zip(model.points, space.point_tensor, space.point_stage, strict=True):
        assert index == (problem.tensors[tensor].name, stage)
        assert model.residency.k[index].index() == index
    assert list(model.residency.k) == list(model.points)
    for x, index in enumerate(model.recompute.r):
        operator, stage = int(space.recompute_operator[x]), int(space.recompute_stage[x])
        assert index == (problem.operators[operator].name, stage)
    assert set(model.page_ins) <= set(model.points)
    assert {tensor for tensor, _ in model.page_ins} == set(model.page_outs)
    paper = po.formulations.poet.build(problem, ram_bytes=ram_bytes)
    assert paper.rematerialization.R[5, 2].index() == (5, 2)
    assert all(paper.rematerialization.R[t, t].value == 1 for t in paper.stages)
    assert set(paper.memory.U) == set(paper.computes) == {(t, j) for t, j in paper.space.computes}


def test_names_that_come_twice_are_told_apart(case: tuple[Problem, int]) -> None:
    problem, ram_bytes = case
    alike = replace(
        problem,
        tensors=tuple(replace(tensor, name="same") for tensor in problem.tensors),
        operators=tuple(replace(operator, name="same") for operator in problem.operators),
    )
    model = po.formulations.retention.build(alike, ram_bytes=ram_bytes)
    assert len(set(model.tensors)) == len(problem.tensors)
    assert list(model.tensors)[:2] == ["same", "same#1"]
    assert len(model.residency.k) == len(model.space.point_tensor)


@pytest.mark.parametrize("formulation", BOTH)
def test_every_component_says_what_it_is(case: tuple[Problem, int], formulation: Any) -> None:
    problem, ram_bytes = case
    model = formulation.with_block(po.formulations.static_power.static_power(1.0)).build(
        replace(problem, wake_j=1.0 if formulation is BOTH[0] else 0.0), ram_bytes=ram_bytes, makespan_s=1e6
    )
    wordless = [c.name for c in model.component_objects() if not c.doc and not c.name.endswith("_index")]
    assert not wordless


@pytest.mark.parametrize("formulation", BOTH)
def test_models_pickle_and_clone(case: tuple[Problem, int], formulation: Any) -> None:
    problem, ram_bytes = case
    model = formulation.build(problem, ram_bytes=ram_bytes)
    for other in (pickle.loads(pickle.dumps(model)), model.clone()):
        ours, theirs = compile_model(model), compile_model(other)
        assert (ours.rows != theirs.rows).nnz == 0
        assert (ours.costs == theirs.costs).all()
        assert other.formulation.name == model.formulation.name
        assert [v.name for v in ours.columns.variables] == [v.name for v in theirs.columns.variables]
    assert model.clone().space is model.space


def test_rows_have_the_papers_number(case: tuple[Problem, int]) -> None:
    problem, ram_bytes = case
    model = po.formulations.poet.build(problem, ram_bytes=ram_bytes, compute_s=1e6)
    assert {f"({number}" for number in ("1b", "1c", "1d", "1e", "1f", "1g", "1h")} <= _numbers(model)
    assert {"(1b", "(1c", "(1d", "(1g"} <= _numbers(po.formulations.retention.build(problem, ram_bytes=ram_bytes))


def _numbers(model: Any) -> set[str]:
    """The paper's numbers with which the words on constraints begin."""
    return {(rows.doc or "")[:3] for rows in model.component_objects(pyo.Constraint)}


def _objective(block: PyomoBlock) -> None:
    block.mine = pyo.Objective(expr=sum(block.model().recompute.r.values()))


def _sos(block: PyomoBlock) -> None:
    block.mine = pyo.SOSConstraint(var=block.model().recompute.r, sos=1)


def _choice(block: PyomoBlock) -> None:
    from pyomo.gdp import Disjunction

    r = list(block.model().recompute.r.values())
    block.mine = Disjunction(expr=[[sum(r) <= 1], [sum(r) >= 3]])


def _transformed(block: PyomoBlock) -> None:
    _choice(block)
    pyo.TransformationFactory("gdp.bigm").apply_to(block, bigM=100)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (_objective, r"choosy\.mine is of the kind Objective; a model has one: contribute"),
        (_sos, r".* the kind SOSConstraint; .* say it with binaries"),
        (_choice, r".* the kind Disjunction; .*gdp\.bigm"),
    ],
)
def test_what_no_backend_would_see_is_refused(
    case: tuple[Problem, int], build: Callable[[PyomoBlock], None], words: str
) -> None:
    problem, ram_bytes = case
    with pytest.raises(FormulationError, match=f"block 'choosy': {words}"):
        po.formulations.retention.with_block(Block("choosy", build)).build(problem, ram_bytes=ram_bytes)


def test_a_disjunction_that_is_rows_is_used(case: tuple[Problem, int]) -> None:
    problem, ram_bytes = case
    chosen = po.formulations.retention.with_block(Block("choosy", _transformed))
    model = chosen.build(problem, ram_bytes=ram_bytes)
    rows = [row for row in compile_model(model).constraints if row.name.startswith("choosy")]
    assert len(rows) >= 3


def test_show_has_the_papers_numbers_and_no_tex_for_spaces() -> None:
    from poetopt.report.mathematics import catalogue, page

    for name in ("retention", "poet"):
        (entry,) = catalogue(name)
        text = page(entry)
        assert "quad" not in text
        for number in ("(1b)", "(1c)", "(1g)"):
            assert number in text
    for spelled in ("flash-wear", "flash_wear", "storage-activation", "storage_activation", "energy-budget"):
        (entry,) = catalogue(spelled)
        assert spelled.replace("-", "_") in [block.name for block in entry.blocks]
