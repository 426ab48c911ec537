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
from tests.bruteforce import plan_optimum
from tests.compare.chains import chain
from tests.problems import random_tight

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


@pytest.mark.parametrize("name", HEURISTICS)
@pytest.mark.parametrize("paging", [True, False])
def test_on_a_chain(name: str, paging: bool) -> None:
    problem = chain(9, sizes=[4, 3, 2, 5, 1, 2, 4, 1, 3], input_bytes=1, paging=paging, dma=paging, page_s=0.1)
    found = [overhead_of(name, problem, ram) for ram in (30, 24, 18, 14, 10, 7)]
    assert found[0] is not None


@pytest.mark.parametrize("name", HEURISTICS)
def test_store_all_where_it_is_an_answer(name: str) -> None:
    problem = chain(4, paging=True)
    assert overhead_of(name, problem, 50) == 0 or name == "chen-sqrtn"


def test_deadlines() -> None:
    problem = chain(6)
    loose = Settings(deadline_s=problem.baseline_time_s * 2)
    tight = Settings(deadline_s=problem.baseline_time_s)
    plan = method("revolve").schedule(problem, 6, loose)
    simulate(plan, ram_bytes=6, deadline_s=loose.deadline_s)
    with pytest.raises(NoScheduleError, match="more than the deadline"):
        method("revolve").schedule(problem, 6, tight)


def test_unknown_method() -> None:
    with pytest.raises(OptionError, match="did you mean capuchin"):
        method("capuchino")


def test_every_method_says_what_it_is() -> None:
    for found in METHODS.values():
        module = __import__(f"poetopt.comparison.baselines.{found.module}", fromlist=["x"])
        assert found.about
        assert found.source
        assert len((module.__doc__ or "").split()) > 30
        assert callable(getattr(module, found.function))
        assert (found.solve is not None) == found.features.proof


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
