"""Refused schedules are left out one by one, and the search ends: no other point stands for the same schedule."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.block import Block, Limits, PyomoBlock
from poetopt.formulations.goal import Trial
from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.search import search
from poetopt.search.solution import Options, Solution, Status
from poetopt.testing.exhaustive import best, valid
from poetopt.testing.problems import tight
from poetopt.util.errors import PlanError
from tests.bruteforce import stage_optimum
from tests.closed import closed
from tests.formulations.points import activity, by_item
from tests.seeds import seeds
from tests.stored import tight_with_parameters

KINDS = ("page_outs", "recomputes", "page_ins")


def _no_rows(block: PyomoBlock) -> None:
    """Nothing: what the rule refuses has to be left out plan by plan."""


def _many(trial: Trial, *, kind: str, most: int) -> str | None:
    found = len(getattr(trial, kind))
    return f"{found} {kind}" if found > most else None


def few(kind: str, most: int) -> Block:
    return Block("few", _no_rows, refuses=functools.partial(_many, kind=kind, most=most))


def case(seed: int) -> tuple[Problem, int, Block]:
    rng = random.Random(seed)
    problem, ram_bytes = tight(rng, forward=2)
    return problem, ram_bytes, few(KINDS[seed % 3], rng.choice((0, 0, 1)))


def solved(problem: Problem, ram_bytes: int, name: str, *blocks: Block) -> Solution:
    chosen = formulation(name).with_block(*blocks) if blocks else formulation(name)
    asked = Options(ram_bytes=ram_bytes, formulation=chosen, scope="full", gap=0.0, threads=1, time_limit_s=60)
    return search(problem, asked)


@pytest.mark.parametrize("name", ["poet", "retention"])
@pytest.mark.parametrize("seed", seeds(60)[:6])
def test_a_rule_without_rows_is_kept_to_the_optimum(seed: int, name: str) -> None:
    problem, ram_bytes, block = case(seed)
    base = formulation(name)
    space = base.space(problem, Limits(ram_bytes=ram_bytes), "full", problem.paging, True, False, True)
    assert isinstance(space, RetentionSpace | PoetSpace)
    together = base.with_block(block)
    known = best(together, valid(space, ram_bytes), ram_bytes)
    found = solved(problem, ram_bytes, name, block)
    if known is None:
        assert found.plan is None
        assert "by proof" in found.reason or found.status is Status.INFEASIBLE
        return
    assert closed(found)
    assert found.plan is not None
    assert together.trial(found.plan, simulate(found.plan)).overhead_j == pytest.approx(known[0])


@pytest.mark.parametrize(("seed", "status"), [(39, Status.UNKNOWN), (101, Status.FEASIBLE), (407, Status.FEASIBLE)])
def test_poet_ends_where_no_best_schedule_has_a_layout(seed: int, status: Status) -> None:
    problem, ram_bytes = tight_with_parameters(random.Random(seed), forward=2)
    found, known = solved(problem, ram_bytes, "poet"), stage_optimum(problem, ram_bytes)
    assert found.status is status
    assert known is not None
    assert found.scope_bound_j == pytest.approx(known.overhead_j)
    assert (found.plan is None) is ("no memory layout within it" in found.reason)


@pytest.mark.parametrize("times", [False, True])
def test_a_schedule_that_breaks_a_row_does_without_one_decision(times: bool) -> None:
    kept = broken = 0
    for seed in range(6):
        problem, ram_bytes = tight(random.Random(seed), forward=2)
        chosen = formulation("retention").with_block(few("page_outs", 9)) if times else formulation("retention")
        model = chosen.build(problem, ram_bytes=ram_bytes)
        assert chosen.thrift is not None
        rows = chosen.thrift(model)
        for schedule, _, _ in valid(model.space, ram_bytes):
            values = chosen.points.values(model, schedule)
            if values is None:
                continue
            at = by_item(values)
            if all(activity(row, at) >= row.lower for row in rows):
                kept += 1
                continue
            broken += 1
            assert does_without_one(problem, schedule, ram_bytes), schedule
    assert kept > 50
    assert (broken > 50) is not times  # with stages of transfers, only schedules that waste nothing are tried


def does_without_one(problem: Problem, schedule: Schedule, ram_bytes: int) -> bool:
    """Whether its plan still fits if one recompute or page-in is left out."""
    fewer = [replace(schedule, recomputes=schedule.recomputes - {one}) for one in schedule.recomputes]
    fewer += [replace(schedule, page_ins=schedule.page_ins - {one}) for one in schedule.page_ins]
    for other in fewer:
        try:
            simulate(plan_of(problem, other), ram_bytes=ram_bytes)
        except PlanError:
            continue
        return True
    return False
