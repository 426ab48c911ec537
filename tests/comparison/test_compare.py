"""Comparisons and fronts: rows for every method and budget, POET never dearer, no plan below a bound."""

from __future__ import annotations

import pytest

import poetopt as po
from poetopt.comparison.baselines import method, names
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.compare import Comparison, compare
from poetopt.comparison.pareto import Front
from poetopt.comparison.rows import COLUMNS, in_bytes, parse_budgets
from poetopt.graph.problem import Problem
from poetopt.plan.layout import arena_bytes
from poetopt.plan.simulate import simulate
from poetopt.util.units import Share
from tests.support.chains import chain
from tests.support.every_plan import least_overhead_j

KEYS = (
    "method", "ram_budget_bytes", "status", "reason", "energy_j", "overhead_j", "peak_bytes", "makespan_s",
    "recomputes", "page_ins", "page_outs", "solve_s",
)  # fmt: skip
SETTINGS = Settings(time_limit_s=5, threads=1)


@pytest.fixture(scope="module")
def found() -> Comparison:
    problem = chain(7, sizes=[3, 1, 2, 4, 1, 2, 3], paging=True, dma=True, page_s=0.1, page_j=0.4)
    return compare(problem, (1, 8, 12, 30), settings=SETTINGS)


def test_a_row_for_each_method_and_budget(found: Comparison) -> None:
    assert [(row.method, row.ram_budget_bytes) for row in found.rows] == [
        (name, ram) for ram in (1, 8, 12, 30) for name in names()
    ]
    assert set(KEYS) <= set(COLUMNS)
    for row in found.rows:
        if row.energy_j is None:
            assert row.status in ("infeasible", "failed")
            assert row.reason
            assert (row.method, row.ram_budget_bytes) not in found.plans
        else:
            plan = found.plans[row.method, row.ram_budget_bytes]
            again = simulate(plan, ram_bytes=row.ram_budget_bytes)
            assert again.energy_j == row.energy_j
            assert row.status in ("optimal", "within-gap", "feasible")
    assert {row.status for row in found.rows if row.ram_budget_bytes == 1} == {"infeasible"}


def test_poet_is_never_dearer(found: Comparison) -> None:
    rows = {(row.method, row.ram_budget_bytes): row for row in found.rows}
    for row in found.rows:
        best = rows["poet", row.ram_budget_bytes]
        if row.overhead_j is not None:
            assert best.overhead_j is not None
            assert best.overhead_j <= row.overhead_j
    fronts = [rows["poet", ram].overhead_j for ram in (8, 12, 30)]
    assert fronts == sorted(fronts, reverse=True, key=lambda value: value or 0.0)
    assert fronts[-1] == 0.0


@pytest.mark.parametrize(
    ("text", "budgets"),
    [("20%..100%/9", tuple(Share(k / 10) for k in range(2, 11))), ("1kB..3kB/3", (1000, 2000, 3000)),
     ("40%, 5MB", (Share(0.4), 5_000_000)), ("50%..60%/2,10", (Share(0.5), Share(0.6), 10))],
)  # fmt: skip
def test_budgets(text: str, budgets: tuple[int | Share, ...]) -> None:
    parsed = parse_budgets(text)
    assert len(parsed) == len(budgets)
    for one, other in zip(parsed, budgets, strict=True):
        if isinstance(one, Share) and isinstance(other, Share):
            assert one.fraction == pytest.approx(other.fraction)
        else:
            assert one == other


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


def test_bounds_and_plans_enclose_the_optimum() -> None:
    problem = chain(3, sizes=[2, 3, 1], paging=True, page_j=0.3)
    small = po.pareto(problem, points=5, time_limit=20, gap=0.0, threads=1)
    for point in small.points:
        best = least_overhead_j(problem, point.ram_budget_bytes)
        assert best is not None
        assert point.overhead_j >= best - 1e-9
    if not small.least_is_proven:
        assert least_overhead_j(problem, small.ram_bound_bytes - 1) is None


@pytest.fixture(scope="module")
def problem() -> Problem:
    return po.load("bert-tiny", batch=1).differentiate().cost("a72")


@pytest.mark.parametrize("name", ["dtr", "capuchin"])
def test_bit_identical_within_the_budget(problem: Problem, name: str) -> None:
    (budget,) = in_bytes((Share(0.9),), po.store_all_peak_bytes(problem))
    plan = method(name).schedule(problem, budget)
    assert po.simulate(plan, ram_bytes=budget).overhead_j > 0
    execution = po.execute(plan)
    assert execution.ok, execution.message
    assert execution.bit_identical
    assert execution.measured_peak_bytes is not None
    assert execution.measured_peak_bytes <= budget
