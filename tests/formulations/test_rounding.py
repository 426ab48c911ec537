"""Rounded memory rows: valid at every integral point of their row, and at the heart of the bound where they apply."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poetopt.backends.solvers.solver import backend
from poetopt.formulations import formulation
from poetopt.formulations.retention.rounding import Rounded, roundings
from poetopt.formulations.rows import Row
from poetopt.search.cutting import cut
from poetopt.search.diagnosis.certificate import rederive
from poetopt.search.run import Budget
from poetopt.util.errors import InfeasibleError, PoetError
from tests.problems import random_tight


@given(
    a=st.lists(st.integers(-12, 12), min_size=1, max_size=7),
    room=st.integers(-10, 40),
    divisors=st.lists(st.integers(1, 15), min_size=1, max_size=4),
    data=st.data(),
)
def test_roundings_hold_wherever_the_row_does(
    a: list[int], room: int, divisors: list[int], data: st.DataObject
) -> None:
    missing = np.array([data.draw(st.booleans()) for _ in a])
    coefficients, right, valid = roundings(np.array(a), room, missing, np.array(divisors))
    for x in itertools.product((0, 1), repeat=len(a)):
        if np.dot(a, x) > room:
            continue
        y = np.where(missing, 1 - np.array(x), x)
        assert np.all(coefficients[valid] @ y <= right[valid] + 1e-9)


def test_room_for_a_part_of_a_tensor_is_room_for_none() -> None:
    coefficients, right, valid = roundings(np.array([10, 10, 10, 10, 3]), 25, np.zeros(5, dtype=bool), np.array([10]))
    assert valid.all()
    assert coefficients[0].tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert right.tolist() == [2.0]


def test_a_stage_that_nothing_can_make_fit_is_infeasible_and_no_defect() -> None:
    retention = formulation("retention")
    for seed in range(50):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6)
        most = int(retention.build(problem, ram_bytes=ram_bytes).space.working_set_bytes.max())
        model = retention.build(problem, ram_bytes=most - 1)
        if all(row.body.is_potentially_variable() for row in model.memory.stage.values()):
            continue
        with pytest.raises(InfeasibleError):
            backend("highs").open(model, threads=0, scale=1.0)
        return
    raise AssertionError("no stage without a choice")


def _rounded() -> tuple[object, Row]:
    """A model and a rounded row that its relaxation violated."""
    retention = formulation("retention")
    for seed in range(200):
        problem, ram_bytes = random_tight(random.Random(seed), operators=7)
        model = retention.build(problem, ram_bytes=ram_bytes)
        session = backend("highs").open(model, threads=0, scale=1.0)
        cut(retention, model, session, until=Budget.by_clock(math.inf), overhead_j=None, on_bound=lambda _: False)
        for row in session.added:
            if isinstance(row.key, Rounded):
                return model, row
    raise AssertionError("no relaxation violated a rounding")


def test_only_what_row_and_divisor_prove_is_derived_again() -> None:
    model, row = _rounded()
    rederive(model, row)
    with pytest.raises(PoetError, match="claims more"):
        rederive(model, replace(row, upper=row.upper - 0.01))
    with pytest.raises(PoetError, match="claims more"):
        rederive(model, replace(row, coefficients=[c + 0.01 for c in row.coefficients]))
    with pytest.raises(PoetError, match="can't be derived"):
        rederive(model, replace(row, lower=0.0))
