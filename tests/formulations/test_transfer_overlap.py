"""The rows of `transfer_overlap`: they spare every plan in time, and catch many schedules that no order saves."""

from __future__ import annotations

import random

import numpy as np
import pytest

from poetopt.formulations import formulation
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.instructions import Plan
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import plan_transfers
from tests.formulations.points import FakePoint, activity, by_item
from tests.plan.transfers_bruteforce import least_makespan
from tests.problems import random_plan, random_problem
from tests.seeds import seeds, some

RETENTION = formulation("retention")


def is_clean(problem: Problem, schedule: Schedule) -> bool:
    """Whether every page-in is in a stage that reads it, and nothing is wasted: the rows are about such schedules."""
    if schedule_of(normalize(plan_of(problem, schedule))) != schedule:
        return False
    reads = {(t, i) for t, operator in schedule.recomputes for i in problem.operators[operator].inputs}
    return all((t, i) in reads or i in problem.operators[t].inputs for t, i in schedule.page_ins)


def paging_schedules(rng: random.Random, problem: Problem, count: int) -> list[tuple[Schedule, Plan]]:
    found = {Schedule(): plan_of(problem, Schedule())}
    for _ in range(count):
        schedule = schedule_of(normalize(random_plan(rng, problem, length=rng.randint(15, 40))))
        if is_clean(problem, schedule):
            found[schedule] = plan_of(problem, schedule)
    return sorted(found.items(), key=lambda entry: repr(entry[0]))


@pytest.mark.parametrize("seed", seeds(150))
def test_no_plan_in_time_is_cut_off(seed: int) -> None:
    """Makespans are the planner's: of real plans within the budget, so each bounds what the rows may claim."""
    rng = random.Random(seed)
    problem = random_problem(rng, operators=rng.randint(4, 9), training=seed % 2 == 0, dma=True)
    schedules = paging_schedules(rng, problem, 25)
    peaks = {schedule: simulate(plan).peak_bytes for schedule, plan in schedules}
    ram_bytes = rng.choice(sorted(peaks.values())) + rng.choice((0, 1, 3, 8))
    within = [(schedule, plan) for schedule, plan in schedules if peaks[schedule] <= ram_bytes]
    times = {schedule: simulate(plan_transfers(plan, ram_bytes)).makespan_s for schedule, plan in within}
    limit = rng.choice(sorted(times.values()))
    if limit < problem.baseline_time_s:
        return
    model = RETENTION.build(problem, ram_bytes=ram_bytes, makespan_s=limit)
    points = {s: values for s, _ in within if (values := RETENTION.points.values(model, s)) is not None}
    late = [values for s, values in points.items() if times[s] > limit]
    in_time = [values for s, values in points.items() if times[s] <= limit]
    draw = np.random.default_rng(seed)
    tried = [FakePoint(values, integral=True) for values in (*late, *in_time)]
    everything = list(points.values())
    for _ in range(8 if everything else 0):
        weights = draw.dirichlet(np.full(len(everything), 0.4))
        tried.append(
            FakePoint(
                [
                    (everything[0][k][0], sum(w * v[k][1] for w, v in zip(weights, everything, strict=True)))
                    for k in range(len(everything[0]))
                ],
                integral=False,
            )
        )
    items = [by_item(values) for values in in_time]
    for point in tried:
        for row in RETENTION.separate(model, point):
            if row.kind == "transfer_overlap":
                assert all(activity(row, value) <= row.upper + 1e-6 for value in items)


def test_schedules_that_no_order_saves_are_caught() -> None:
    late = caught = 0
    chosen = some(range(340), 100)
    for seed in chosen:
        rng = random.Random(seed)
        problem = random_problem(rng, operators=rng.randint(4, 7), training=True, dma=True)
        for schedule, plan in paging_schedules(rng, problem, 8):
            if not schedule.page_ins or len(plan.instructions) > 30:
                continue
            ram_bytes = simulate(plan).peak_bytes + rng.choice((0, 2))
            least = least_makespan(plan, ram_bytes, limit=20_000)
            if least is None or least <= problem.baseline_time_s:
                continue
            limit = max(problem.baseline_time_s, least * rng.choice((0.99, 0.9, 0.8)))
            if limit >= least:
                continue
            model = RETENTION.build(problem, ram_bytes=ram_bytes, makespan_s=limit)
            values = RETENTION.points.values(model, schedule)
            if (
                values is None
                or RETENTION.points.schedule(model, FakePoint(values, integral=True)) != schedule  # a needless page-in
                or sum(problem.operators[j].time_s for _, j in schedule.recomputes) + (problem.baseline_time_s) > limit
            ):
                continue
            late += 1
            rows = RETENTION.separate(model, FakePoint(values, integral=True))
            caught += any(row.kind == "transfer_overlap" and activity(row, by_item(values)) > row.upper for row in rows)
    assert late > 0.15 * len(chosen)
    assert caught > 0.2 * late, (late, caught)
