"""Fronts: monotone, bounded from below, and from the smallest budget on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import poetopt as po
from poetopt.comparison.pareto import Front
from poetopt.plan.layout import arena_bytes
from poetopt.plan.simulate import simulate
from poetopt.report.comparison import front_lines
from poetopt.report.plots import save_front
from poetopt.util.errors import InfeasibleError, OptionError
from tests.bruteforce import plan_optimum
from tests.compare.chains import chain


@pytest.fixture(scope="module")
def front() -> Front:
    problem = chain(12, sizes=[3, 1, 2, 4, 1, 2, 3, 5, 1, 2, 2, 3], paging=True, page_j=0.4, page_s=0.4)
    return po.pareto(problem, points=7, time_limit=30, gap=0.01, threads=1)


def test_points_are_plans_with_bounds(front: Front) -> None:
    assert 3 <= len(front.points) <= 7
    budgets = [point.ram_budget_bytes for point in front.points]
    assert budgets == sorted(set(budgets))
    overheads = [point.overhead_j for point in front.points]
    assert overheads == sorted(overheads, reverse=True)
    for point in front.points:
        found = simulate(point.plan, ram_bytes=point.ram_budget_bytes)
        assert found.overhead_j == point.overhead_j
        assert arena_bytes(point.plan) <= point.ram_budget_bytes
        assert 0 <= point.overhead_bound_j <= point.overhead_j
        assert point.overhead_gap <= 0.1
    assert front.points[-1].overhead_j == 0.0


def test_the_smallest_budget(front: Front) -> None:
    assert front.points[0].ram_budget_bytes == front.least_ram_bytes >= front.ram_bound_bytes
    if front.least_is_proven:
        assert front.least_ram_bytes == front.problem.least_ram_bytes


def test_bounds_and_plans_enclose_the_optimum() -> None:
    problem = chain(3, sizes=[2, 3, 1], paging=True, page_j=0.3)
    small = po.pareto(problem, points=5, time_limit=20, gap=0.0, threads=1)
    for point in small.points:
        best = plan_optimum(problem, point.ram_budget_bytes)
        assert best is not None
        assert point.overhead_j >= best.overhead_j - 1e-9
    if not small.least_is_proven:
        assert plan_optimum(problem, small.ram_bound_bytes - 1) is None


def test_text_json_and_picture(front: Front, tmp_path: Path) -> None:
    assert "smallest feasible RAM" in front_lines(front)[0]
    document = json.loads(json.dumps(front.to_dict(), allow_nan=False))
    assert document["least_ram_bytes"] == front.least_ram_bytes
    assert {"ram_budget_bytes", "overhead_j", "overhead_bound_j", "overhead_gap", "scope"} <= set(document["points"][0])
    pytest.importorskip("matplotlib")
    for name in ("front.png", "front.svg"):
        save_front(front, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_a_deadline_that_nothing_keeps() -> None:
    with pytest.raises(InfeasibleError, match="no schedule keeps the deadline"):
        po.pareto(chain(3), deadline="0.5x", time_limit=5)
    with pytest.raises(OptionError, match="--points 1"):
        po.pareto(chain(3), points=1)
