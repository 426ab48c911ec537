"""The row of a schedule that is late by proof: it breaks it, and no schedule in time does."""

import math
import random

import pytest

pytest.importorskip("pyomo")

from poetopt.formulations import formulation
from poetopt.formulations.language import Limits
from poetopt.formulations.retention.enumeration import retention_space
from poetopt.formulations.retention.scope_difference import no_good
from poetopt.plan.assemble import schedule_of
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import out_of_reach, plan_transfers
from poetopt.testing.exhaustive import decisions, valid
from tests.formulations.points import activity, by_item
from tests.problems import random_tight

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
        values = {schedule: retention.points.values(model, schedule) for _, schedule, _ in found}
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


@pytest.mark.parametrize("paging", [True, False])
def test_a_schedule_without_a_layout_is_left_out_alone(paging: bool) -> None:
    retention = formulation("retention")
    rng = random.Random(5)
    pairs = 0
    for _ in range(40):
        problem, budget = random_tight(rng, operators=5)
        model = retention.build(problem, ram_bytes=budget, scope="full", paging=paging)
        space = model.space
        if not 0 < sum(map(len, decisions(space))) <= MOST:
            continue
        starts = {schedule: retention.points.values(model, schedule) for schedule, _, _ in valid(space, budget)}
        values = {schedule: kept for schedule, kept in starts.items() if kept is not None}
        points = {schedule: by_item(kept) for schedule, kept in values.items()}
        for schedule, own in values.items():
            row = no_good(model, schedule, own, late=False)
            satisfied = {other for other, kept in points.items() if activity(row, kept) >= row.lower}
            assert satisfied == values.keys() - {schedule}
            pairs += len(satisfied)
    assert pairs > 10


def test_what_may_hide_is_a_row_between_both_kinds_of_device() -> None:
    """With nothing hidden, whatever the model takes is in time in the plainest order."""
    retention = formulation("retention")
    rng = random.Random(3)
    for _ in range(20):
        problem, budget = random_tight(rng, operators=5, dma=True)
        deadline_s = 1.3 * problem.baseline_time_s
        loose = retention.build(problem, ram_bytes=budget, makespan_s=deadline_s)
        tight = retention.build(problem, ram_bytes=budget, makespan_s=deadline_s, hidden_share=0.0)
        assert len(tight.deadline.within) == len(loose.deadline.within) + 1
        space = loose.space
        if sum(map(len, decisions(space))) > MOST:
            continue
        for schedule, plan, simulation in valid(space, budget):
            serial_s = simulation.compute_s + simulation.transfer_s
            if retention.points.values(tight, schedule) is not None and serial_s <= deadline_s:
                assert simulate(plan).makespan_s <= deadline_s * (1 + 1e-9)
