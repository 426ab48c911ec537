"""What holds for every method: plans that keep their budget, and never less energy than the optimum."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

import poetopt as po
from poetopt.comparison.baselines import METHODS, Baseline, method, names
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all_bytes
from poetopt.plan.layout import arena_bytes, check_layout
from poetopt.plan.simulate import simulate
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError
from tests.support.bruteforce import plan_optimum
from tests.support.problems import random_tight

HEURISTICS = tuple(name for name in names() if not METHODS[name].features.proof)
EXACT = tuple(name for name in names() if METHODS[name].features.proof)
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


@pytest.mark.parametrize("name", HEURISTICS)
def test_heuristics_never_beat_the_optimum(name: str) -> None:
    rng = random.Random(17)
    plans = 0
    for _ in range(18):
        problem, ram = random_tight(
            rng, operators=rng.choice((5, 6, 7)), training=rng.random() < 0.8, dma=rng.random() < 0.5
        )
        overhead = overhead_of(name, problem, ram)
        if overhead is not None:
            best = plan_optimum(problem, ram, paging=METHODS[name].features.paging)
            assert best is not None
            assert overhead >= best.overhead_j - 1e-9
            plans += 1
    assert (plans == 0) is (name == "checkpoint-all")


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_never_beat_the_optimum(name: str) -> None:
    rng = random.Random(23)
    plans = 0
    for _ in range(4):
        problem, ram = random_tight(rng, operators=6, training=True)
        overhead = overhead_of(name, problem, ram)
        if overhead is not None:
            best = plan_optimum(problem, ram, paging="poet" in name and "remat" not in name)
            assert best is not None
            assert overhead >= best.overhead_j - 1e-9
            plans += 1
    assert plans


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
    with pytest.raises(OptionError, match="not a NoneType"):
        po.compare(problem, ram=[room], methods=[None])  # type: ignore[list-item]
