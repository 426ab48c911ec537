"""A plan in another order than the given one: saved, loaded again, executed, verified and shown."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.orders.precedence import Precedence, reordered
from poetopt.plan import codec
from poetopt.problem import Problem
from tests.autodiff.build import graph
from tests.orders.test_order import shuffled

EXECUTED = ("lenet", "mlp")


def in_another_order(problem: Problem) -> Problem:
    """The same step in a valid order that is not the given one."""
    for seed in range(100):
        order = shuffled(problem, random.Random(seed))
        if order != sorted(order):
            return reordered(problem, order)
    raise AssertionError("the problem has one order only")


def tied() -> Problem:
    """A table of embeddings that is the last layer's matrix too: its gradient is added to in place."""
    words = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    ids = np.array((3, 9, 3, 0), np.int64)
    nodes = "e = Gather(w, ids)\nh = Tanh(e)\ny = Gemm<transB=1>(h, w)"
    return cost(differentiate(graph(nodes, {}, {"w": words, "ids": ids}, ["y"])), device("a72"))


def test_what_is_added_to_in_place_comes_first_in_every_order() -> None:
    problem = tied()
    assert problem.graph is not None
    (adding,) = (operator for operator in problem.graph.operators if operator.over)
    names = [operator.name for operator in problem.operators]
    written = names.index(problem.graph.producers[adding.over].name)
    assert written in Precedence.of(problem).before[names.index(adding.name)]
    # no tensor that a schedule sees says so
    assert written not in Precedence.of(replace(problem, graph=None)).before[names.index(adding.name)]


@pytest.mark.parametrize("name", EXECUTED)
def test_the_gradients_are_bit_for_bit_those_of_the_given_order(name: str, tmp_path: Path) -> None:
    problem = po.load(name).differentiate().cost("a72")
    assert problem.graph is not None
    report = po.solve(in_another_order(problem))
    path = tmp_path / "plan.json"
    report.save(path)
    loaded = po.load_plan(path)
    again = loaded.plan.problem
    assert again.graph is not None
    assert [o.name for o in again.operators] == [o.name for o in report.problem.operators]
    assert [o.name for o in again.operators] != [o.name for o in problem.operators]
    assert [o.name for o in again.graph.operators] != [o.name for o in problem.graph.operators]
    data = codec.encode_compact(loaded.plan)
    assert codec.decode_compact(again, data).instructions == loaded.plan.instructions
    mine, theirs = po.execute(loaded), po.execute(po.solve(problem))
    assert mine.ok
    assert mine.bit_identical
    for key, value in theirs.results.items():
        np.testing.assert_array_equal(mine.results[key], value)


def test_an_order_that_can_not_be_is_refused(tmp_path: Path) -> None:
    """The operators of a plan file are not taken on trust: the model must allow their order."""
    problem = po.load("mlp").differentiate().cost("a72")
    path = tmp_path / "plan.json"
    po.solve(problem).save(path)
    text = path.read_text()
    first, second = problem.operators[0].name, problem.operators[1].name
    swapped = text.replace(f'"{first}"', '"?"').replace(f'"{second}"', f'"{first}"').replace('"?"', f'"{second}"')
    path.write_text(swapped)
    with pytest.raises(po.PoetError, match="has changed since the plan was made"):
        po.load_plan(path)
