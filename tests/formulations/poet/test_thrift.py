"""Refused schedules are left out one by one, and the search ends: no other point stands for the same schedule."""

from __future__ import annotations

import functools
import random

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.block import Block, Kind, Limits, PyomoBlock
from poetopt.formulations.goal import Trial
from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.graph.problem import Problem
from poetopt.plan.simulate import simulate
from poetopt.search.search import search
from poetopt.search.solution import Options, Solution, Status
from poetopt.testing.exhaustive import best, valid
from poetopt.testing.problems import tight
from tests.seeds import seeds
from tests.support.closed import closed

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
    space = base.space(problem, Limits(ram_bytes=ram_bytes), "full", problem.paging, True, Kind.TIMED)
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
