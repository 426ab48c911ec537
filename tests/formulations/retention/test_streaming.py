"""Runs that stream operands: optima against all schedules, plans against the simulator, and what is left out."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from poetopt.formulations import formulation
from poetopt.formulations.block import Limits
from poetopt.formulations.retention.enumeration import retention_space
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Row
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of, store_all_bytes
from poetopt.plan.simulate import simulate
from poetopt.search.cutting import session_of
from poetopt.search.diagnosis.certificate import rederive
from poetopt.search.search import search
from poetopt.search.solution import Options, Solution, Status
from poetopt.testing.exhaustive import FEW_DECISIONS, best, decisions, valid
from poetopt.testing.problems import small_problem
from poetopt.util.errors import PoetError
from tests.plan.test_streamed import network
from tests.seeds import seeds
from tests.support.closed import closed
from tests.support.every_plan import least_overhead_j
from tests.support.points import FakePoint, activity, by_item
from tests.support.stored import with_parameters
from tests.support.streamed import with_variants
from tests.support.three_steps import run_thrice

TOLERANCE = 1e-6


def tight_with_variants(rng: random.Random, *, forward: int, dma: bool = False) -> tuple[Problem, int]:
    """A step whose runs may stream, and a budget that ordinary training exceeds, mostly with some plain run alone."""
    while True:
        problem = small_problem(rng, forward=forward, dma=dma)
        if rng.random() < 0.8:
            problem = with_parameters(rng, problem)
        problem = with_variants(rng, problem, share=rng.choice((0.3, 0.6)))
        least, plain = problem.least_ram_bytes, store_all_bytes(problem)
        if least < plain:
            return problem, min(plain - 1, least + rng.choice((0, 1, 2, 3, rng.randint(0, plain - least))))


def optimal(problem: Problem, ram_bytes: int, **options: Any) -> Solution:
    asked = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1, time_limit_s=60)
    return search(problem, replace(asked, **options))


def space_of(problem: Problem, ram_bytes: int) -> RetentionSpace:
    return retention_space(problem, Limits(ram_bytes=ram_bytes), "full", True, True)


def few(space: RetentionSpace) -> bool:
    ways = math.prod(1 + len(own) for own in space.streams_of.values())
    return sum(map(len, decisions(space))) + math.log2(ways) <= FEW_DECISIONS


@pytest.mark.parametrize("seed", seeds(800))
def test_optima_are_those_of_all_schedules_of_the_space(seed: int) -> None:
    rng = random.Random(seed)
    problem, ram_bytes = tight_with_variants(rng, forward=rng.choice((1, 2, 2)), dma=rng.random() < 0.3)
    space = space_of(problem, ram_bytes)
    if not few(space):
        return
    known = best(formulation("retention"), valid(space, ram_bytes), ram_bytes)
    found = optimal(problem, ram_bytes)
    if known is None:
        assert found.plan is None
        return
    assert found.scope_bound_j == pytest.approx(known[0], abs=TOLERANCE)
    if found.simulation is not None and found.plan is not None and closed(found):
        assert found.simulation.overhead_j == pytest.approx(known[0], abs=TOLERANCE)
        run_thrice(found.plan, ram_bytes)


def test_tighter_models_without_a_schedule_prove_nothing() -> None:
    """The layout refuses all of 2.5 J, and a model of less RAM has nothing below 4.5 J, the plan that is known."""
    problem, ram_bytes = tight_with_variants(random.Random(60), forward=2)
    found, least = optimal(problem, ram_bytes), least_overhead_j(problem, ram_bytes)
    assert found.scope_bound_j is not None
    assert least is not None
    assert found.scope_bound_j <= least + TOLERANCE


def test_every_schedule_is_a_point_and_every_row_holds_of_it() -> None:
    """Cuts that separators find at points in between, too."""
    chosen, seen, rows = formulation("retention"), 0, 0
    for seed in range(50):
        rng = random.Random(seed)
        problem, ram_bytes = tight_with_variants(rng, forward=rng.choice((1, 2)))
        space = space_of(problem, ram_bytes)
        if not few(space) or not space.streams:
            continue
        model = chosen.build(problem, ram_bytes=ram_bytes, scope="full")
        points = []
        for schedule, plan, simulation in valid(space, ram_bytes):
            values = chosen.search.values(model, schedule)
            if values is None:
                continue
            stands_for = chosen.search.schedule(model, FakePoint(values, integral=True))
            assert stands_for.variants == schedule.variants
            assert stands_for.recomputes == schedule.recomputes
            assert simulate(plan_of(problem, stands_for)).overhead_j <= simulation.overhead_j + TOLERANCE
            points.append(values)
            assert plan.problem.name == problem.name
        if not points:
            continue
        seen += len(points)
        for _ in range(3):
            shares = rng.choices(points, k=3)
            mixed = [(part[0][0], np.mean([array for _, array in part], axis=0)) for part in zip(*shares, strict=True)]
            mixed = [(variable, array * rng.choice((1.0, 0.5, 0.9))) for variable, array in mixed]
            for row in chosen.separate(model, FakePoint(mixed, integral=False)):
                rows += 1
                for values in points:
                    left = activity(row, by_item(values))
                    assert row.lower - TOLERANCE <= left <= row.upper + TOLERANCE, (row.kind, seed)
    assert seen > 100
    assert rows > 100


def test_least_ram_is_that_of_streamed_runs() -> None:
    """Where no plain run fits a schedule is found, and proven; one byte less, and none is possible."""
    problem = network()
    found = optimal(problem, problem.least_ram_bytes)
    assert closed(found)
    assert found.simulation is not None
    assert found.simulation.streamed_runs == 3
    assert optimal(problem, problem.least_ram_bytes - 1).status is Status.INFEASIBLE


@pytest.mark.parametrize("name", ["poet", "retention"])
def test_plain_schedules_stay_valid_answers(name: str) -> None:
    """`poet` knows no variants: its operators run plain, as Algorithm 1's do."""
    rng, plain, streamed = random.Random(3), 0, 0
    for _ in range(8):
        problem, _ = tight_with_variants(rng, forward=2)
        ram_bytes = store_all_bytes(problem) - 1
        found = optimal(problem, ram_bytes, formulation=name)
        if found.simulation is not None:
            plain += not found.simulation.streamed_runs
            streamed += found.simulation.streamed_runs > 0
    assert plain > 0
    assert streamed == 0 or name == "retention"


def test_rows_are_derived_again_and_wrong_ones_are_not() -> None:
    """What certificates rest on: each cut that a separator finds, and none that leaves out a way to run."""
    chosen, seen = formulation("retention"), {"chain cut": 0, "room": 0}
    for seed in range(120):
        rng = random.Random(seed)
        problem, ram_bytes = tight_with_variants(rng, forward=2)
        model = chosen.build(problem, ram_bytes=ram_bytes, scope="full")
        if not model.space.streams:
            continue
        for row in relaxed_rows(model):
            if row.kind not in seen:
                continue
            rederive(model, row)
            y = {id(v) for v in model.streaming.y.values()}
            lost = [n for n, v in enumerate(row.variables) if id(v) in y]
            if not lost:
                continue
            seen[row.kind] += 1
            if row.kind == "chain cut":
                wrong = replace(row, coefficients=[0.5 if n in lost else c for n, c in enumerate(row.coefficients)])
            elif row.upper == 0:
                wrong = replace(row, coefficients=[0.0 if n in lost else c for n, c in enumerate(row.coefficients)])
            else:
                others = [v for v in model.streaming.y.values() if id(v) not in map(id, row.variables)]
                wrong = replace(
                    row,
                    variables=[*row.variables, *others],
                    coefficients=[*row.coefficients, *[1.0] * len(others)],
                    upper=row.upper if others else 0.0,
                )
            with pytest.raises(PoetError):
                rederive(model, wrong)
    assert min(seen.values()) >= 5


def relaxed_rows(model: Any) -> list[Row]:
    """The cuts of a few rounds on a model's relaxation."""
    session = session_of(model, Options(ram_bytes=0, threads=1), scale=1.0)
    found: list[Row] = []
    for _ in range(6):
        point = session.relax(10.0).point
        if point is None:
            return found
        rows = formulation("retention").separate(model, point)
        found += rows
        session.add(rows)
    return found
