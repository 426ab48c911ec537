"""No row that a separator brings may cut off a valid schedule, and each is what its definition says."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poetopt.formulations import formulation
from poetopt.formulations.language import Limits
from poetopt.formulations.retention.enumeration import retention_space
from poetopt.formulations.retention.rounding import Rounded, roundings
from poetopt.formulations.retention.scope_difference import no_good
from poetopt.formulations.rows import Row
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import out_of_reach, plan_transfers
from poetopt.search.diagnosis.certificate import rederive
from poetopt.testing.exhaustive import decisions, valid
from poetopt.util.errors import PoetError
from tests.seeds import seeds
from tests.support.points import FakePoint, activity, by_item
from tests.support.problems import random_plan, random_problem, random_tight
from tests.support.solvers import cut_rows

RETENTION = formulation("retention")


@pytest.mark.parametrize("seed", seeds(60))
def test_rows_hold_at_every_valid_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are separated at random fractional points, and checked at real schedules of the same budget.

    Of every third problem with the windows of a large space.
    """
    if seed % 3 == 0:
        monkeypatch.setattr(import_module("poetopt.formulations.retention.chain_cuts"), "MANY_POINTS", 0)
    rng = random.Random(seed)
    problem = random_problem(rng, operators=rng.randint(4, 8), training=seed % 2 == 0)
    schedules = {Schedule()}
    schedules.update(schedule_of(random_plan(rng, problem)) for _ in range(8))
    valid = []
    for schedule in sorted(schedules, key=repr):
        plan = plan_of(problem, schedule)
        valid.append((schedule, simulate(plan).peak_bytes))
    ram_bytes = max(peak for _, peak in valid)
    model = RETENTION.build(problem, ram_bytes=ram_bytes)
    points = [values for schedule, _ in valid if (values := RETENTION.search.values(model, schedule)) is not None]
    assert points
    items = [by_item(values) for values in points]
    draw = np.random.default_rng(seed)
    for _ in range(10):
        weights = draw.dirichlet(np.full(len(points), 0.4))
        mixed = [
            (
                points[0][k][0],
                sum(w * values[k][1] for w, values in zip(weights, points, strict=True)) * draw.uniform(0.3, 1.2),
            )
            for k in range(len(points[0]))
        ]
        for row in RETENTION.separate(model, FakePoint(mixed, integral=False)):
            for value in items:
                assert row.lower - 1e-9 <= activity(row, value) <= row.upper + 1e-9, row.kind


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


def _rounded() -> tuple[object, Row]:
    """A model and a rounded row that its relaxation violated."""
    for seed in range(200):
        problem, ram_bytes = random_tight(random.Random(seed), operators=7)
        model, rows = cut_rows(problem, ram_bytes)
        for row in rows:
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


MOST = 9
"""Decisions of a problem, at most: all their subsets are tried."""


@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_in_time_breaks_the_row_of_a_late_one(seed: int) -> None:
    retention = formulation("retention")
    rng = random.Random(seed)
    rows = late = 0
    for _ in range(60):
        problem, budget = random_tight(rng, operators=5, dma=True)
        space = retention_space(problem, Limits(ram_bytes=budget, makespan_s=math.inf), "full", True, True)
        recomputes, page_ins = decisions(space)
        if not page_ins or len(recomputes) + len(page_ins) > MOST:
            continue
        found = []
        for schedule, plan, _ in valid(space, budget):
            ordered = plan_transfers(plan, budget)
            if schedule_of(ordered) == schedule:  # the others waste something
                found.append((simulate(ordered).makespan_s, schedule, plan))
        times = sorted({makespan for makespan, _, _ in found})
        if len(times) < 2:
            continue
        deadline_s = times[len(times) // 4] * (1 + 1e-9)
        model = retention.build(problem, ram_bytes=budget, makespan_s=deadline_s)
        values = {schedule: retention.search.values(model, schedule) for _, schedule, _ in found}
        points = {schedule: by_item(kept) for schedule, kept in values.items() if kept is not None}
        for makespan, schedule, plan in found:
            own = values[schedule]
            if own is None or makespan <= deadline_s or schedule.writes_again(problem):
                continue
            late += 1
            if not out_of_reach(plan, budget, deadline_s):
                continue
            rows += 1
            row = no_good(model, schedule, own, late=True)
            assert activity(row, points[schedule]) < row.lower
            for other, in_time, _ in found:
                kept = points.get(in_time)
                assert other > deadline_s or kept is None or activity(row, kept) >= row.lower
        if rows > 40:
            break
    assert 0 < rows <= late
