"""What holds for every method: plans that keep their budget, and never less energy than the optimum."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

import poetopt as po
from poetopt.comparison.baselines import METHODS, Baseline, method, names
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all_bytes
from poetopt.plan.layout import arena_bytes, check_layout
from poetopt.plan.simulate import simulate
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError
from tests.support.every_plan import least_overhead_j
from tests.support.problems import random_tight

SETTINGS = Settings(time_limit_s=20, gap=0.0, threads=1, scope="full")


def overhead_of(name: str, problem: Problem, ram_bytes: int) -> float | None:
    """The overhead of a method's plan after every check, or None where it has none."""
    try:
        plan = method(name).schedule(problem, ram_bytes, SETTINGS)
    except (NoScheduleError, InfeasibleError):
        return None
    check_layout(plan, ram_bytes - problem.reserve_bytes)
    assert arena_bytes(plan) + problem.reserve_bytes <= ram_bytes
    assert plan.problem is problem
    found = simulate(plan, ram_bytes=ram_bytes)
    if not METHODS[name].features.paging:
        assert found.page_ins == found.page_outs == 0
    return found.overhead_j


@cache
def cases(exact: bool) -> list[tuple[Problem, int]]:
    """Tight steps: few of one size for methods that prove their optimum, more of several sizes for the others."""
    rng = random.Random(23 if exact else 17)
    if exact:
        return [random_tight(rng, operators=6, training=True) for _ in range(4)]
    return [
        random_tight(rng, operators=rng.choice((5, 6, 7)), training=rng.random() < 0.8, dma=rng.random() < 0.5)
        for _ in range(18)
    ]


@cache
def least(exact: bool, place: int, paging: bool) -> float:
    """The overhead of the best of all plans of a case."""
    best = least_overhead_j(*cases(exact)[place], paging=paging)
    return math.inf if best is None else best


@pytest.mark.parametrize("name", names())
def test_no_plan_is_cheaper_than_the_optimum(name: str) -> None:
    features, plans = METHODS[name].features, 0
    for place, (problem, ram) in enumerate(cases(features.proof)):
        overhead = overhead_of(name, problem, ram)
        if overhead is not None:
            assert overhead >= least(features.proof, place, features.paging) - 1e-9
            plans += 1
    assert (plans == 0) is (name == "checkpoint-all")


def test_methods_of_other_packages() -> None:
    """As objects, beside names."""
    theirs = replace(METHODS["dtr"], name="theirs", module="poetopt.comparison.baselines.dtr")
    problem, _ = random_tight(random.Random(3))
    room = store_all_bytes(problem)
    several: tuple[str | Sequence[str | Baseline], ...] = (["dtr", theirs], (theirs, "dtr"))
    for asked in several:
        rows = {row.method: row.energy_j for row in po.compare(problem, ram=[room], methods=asked).rows}
        assert rows["theirs"] == rows["dtr"]
    assert [row.method for row in po.compare(problem, ram=[room], methods=theirs).rows] == ["theirs"]
    with pytest.raises(OptionError, match="must be a text or a Baseline"):
        po.compare(problem, ram=[room], methods=[None])  # type: ignore[list-item]
