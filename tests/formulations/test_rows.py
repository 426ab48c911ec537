"""No row that a separator brings may cut off a valid schedule."""

from __future__ import annotations

import random
from importlib import import_module

import numpy as np
import pyomo.environ as pyo
import pytest

from poetopt.formulations import formulation
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from tests.formulations.points import FakePoint, activity, by_item
from tests.problems import random_plan, random_problem
from tests.seeds import seeds

RETENTION = formulation("retention")


@pytest.mark.parametrize("seed", seeds(60))
def test_rows_hold_at_every_valid_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are separated at random fractional points, and checked at real schedules of the same budget.

    Of every third problem with the windows of a large space.
    """
    if seed % 3 == 0:
        monkeypatch.setattr(import_module("poetopt.formulations.retention.chain_cuts"), "LARGE", 0)
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
    points = [values for schedule, _ in valid if (values := RETENTION.points.values(model, schedule)) is not None]
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


@pytest.mark.parametrize("seed", seeds(40))
def test_a_schedule_satisfies_its_own_model(seed: int) -> None:
    """A schedule's start values are feasible for every row that stands in the model at its own peak."""
    rng = random.Random(1000 + seed)
    values = None
    while values is None:  # a random plan may recompute what nothing reads any more, which is no decision
        problem = random_problem(rng, operators=rng.randint(3, 8))
        schedule = schedule_of(random_plan(rng, problem))
        peak = simulate(plan_of(problem, schedule)).peak_bytes
        model = RETENTION.build(problem, ram_bytes=peak)
        values = RETENTION.points.values(model, schedule)
    for variable, array in values:
        for item, value in zip(variable.values(), array, strict=True):
            item.set_value(float(value))
    for name in ("continuity", "dependence"):
        for constraint in getattr(model.residency, name).values():
            assert pyo.value(constraint.body) <= constraint.ub + 1e-9, constraint.name
