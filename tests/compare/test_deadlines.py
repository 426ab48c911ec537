"""Fronts against the deadline: monotone, bounded from below, from the shortest deadline on."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

import poetopt as po
from poetopt.comparison.pareto import DeadlineFront
from poetopt.formulations.scope import kind_words
from poetopt.plan.simulate import simulate
from poetopt.report.comparison import deadline_lines, told_apart
from poetopt.report.plots import save_front
from poetopt.util.errors import InfeasibleError, OptionError
from tests.bruteforce import plan_optimum
from tests.compare.chains import chain
from tests.problems import random_tight

RAM = 16


@pytest.fixture(scope="module")
def front() -> DeadlineFront:
    """Paging is dear in time, recomputing in energy; there is no DMA, so both count in full."""
    problem = chain(8, sizes=[3, 1, 2, 4, 1, 2, 3, 5], paging=True, dma=False, page_j=0.1, page_s=1.6)
    return po.pareto(problem, against="deadline", ram=RAM, points=6, time_limit=90, gap=0.01, threads=1)


def test_points_are_plans_with_bounds(front: DeadlineFront) -> None:
    assert 3 <= len(front.points) <= 6
    deadlines = [point.deadline_s or 0.0 for point in front.points]
    assert deadlines == sorted(set(deadlines))
    overheads = [point.overhead_j for point in front.points]
    assert overheads == sorted(overheads, reverse=True)
    assert overheads[0] > overheads[-1]
    for point in front.points:
        assert point.ram_budget_bytes == RAM
        found = simulate(point.plan, ram_bytes=RAM, deadline_s=point.deadline_s)
        assert found.overhead_j == point.overhead_j
        assert 0 <= point.overhead_bound_j <= point.overhead_j
        assert point.overhead_gap <= 0.1


def test_at_most_so_many_points_and_both_ends() -> None:
    """The last one is where more time saves nothing."""
    problem = chain(8, sizes=[3, 1, 2, 4, 1, 2, 3, 5], paging=True, dma=False, page_j=0.1, page_s=1.6)
    few = po.pareto(problem, against="deadline", ram=RAM, points=3, time_limit=45, gap=0.05, threads=1)
    assert 2 <= len(few.points) <= 3
    assert few.points[0].deadline_s == few.least_deadline_s
    free = po.solve(problem, ram=RAM, gap=0.05, threads=1).to_dict()
    assert few.points[-1].overhead_j == pytest.approx(free["overhead_j"], rel=0.05)


def test_as_many_digits_as_tell_points_apart(front: DeadlineFront) -> None:
    assert told_apart([1.0, 2.0], "{:.{}g}".format, 3) == ["1", "2"]
    assert told_apart([1.0, 1.0001], "{:.{}g}".format, 3) == ["1", "1.0001"]
    deadlines = [10.0 + k / 4000 for k in range(len(front.points))]
    points = tuple(replace(point, deadline_s=time) for point, time in zip(front.points, deadlines, strict=True))
    table = [line.split() for line in deadline_lines(replace(front, points=points))[3 : 3 + len(points)]]
    assert len({row[0] for row in table}) == len({row[2] for row in table}) == len(points)
    assert {row[1] for row in table} == {"s"}


def test_the_ends(front: DeadlineFront) -> None:
    assert front.points[0].deadline_s == front.least_deadline_s >= front.deadline_bound_s
    assert front.deadline_bound_s >= front.problem.baseline_time_s
    free = po.solve(front.problem, ram=RAM, gap=0.01, threads=1)
    assert front.points[-1].overhead_j == pytest.approx(free.to_dict()["overhead_j"], rel=0.02)


@pytest.mark.parametrize("dma", [True, False])
def test_bounds_and_plans_enclose_the_optimum(dma: bool) -> None:
    problem = chain(3, sizes=[2, 3, 1], paging=True, dma=dma, page_j=0.3, page_s=0.3)
    ram = problem.least_ram_bytes
    small = po.pareto(problem, against="deadline", ram=ram, points=5, time_limit=2, gap=0.0, threads=1)
    best = plan_optimum(problem, ram)
    assert best is not None
    for point in small.points:
        assert point.overhead_j >= best.overhead_j - 1e-9
    assert small.points[-1].overhead_bound_j <= best.overhead_j + 1e-9


@pytest.mark.parametrize("seed", [4, 11])
def test_the_front_has_at_each_deadline_what_a_solve_of_it_finds(seed: int) -> None:
    """Between its points, too: each step is found. And no plan is worse than that of a shorter deadline."""
    problem, ram = random_tight(random.Random(seed), operators=6)
    front = po.pareto(problem, against="deadline", ram=ram, points=12, time_limit=30, gap=0.0, threads=1)
    steps = [(point.deadline_s or 0.0, point.overhead_j) for point in front.points]
    assert [overhead_j for _, overhead_j in steps] == sorted((o for _, o in steps), reverse=True)
    first_s, last_s = steps[0][0], steps[-1][0]
    for deadline_s in (first_s + k * (last_s + 1 - first_s) / 7 for k in range(8)):
        alone = po.solve(problem, ram=ram, deadline=deadline_s, gap=0.0, threads=1).to_dict()["overhead_j"]
        known = [overhead_j for limit_s, overhead_j in steps if limit_s <= deadline_s * (1 + 1e-9)]
        assert known[-1] == pytest.approx(alone), deadline_s


def test_where_everything_fits() -> None:
    problem = chain(3)
    front = po.pareto(problem, against="deadline", ram="100%", time_limit=5)
    (point,) = front.points
    assert point.overhead_j == 0
    assert front.least_is_proven
    assert front.least_deadline_s == pytest.approx(problem.baseline_time_s)


def test_text_json_and_picture(front: DeadlineFront, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = deadline_lines(front)
    assert "shortest feasible deadline" in text[1]
    assert len(text) == len(front.points) + 5
    kinds = {point.scope for point in front.points}
    assert kinds
    assert all(f"{scope}: {kind_words(scope)}" in text[-1] for scope in kinds)
    document = json.loads(json.dumps(front.to_dict(), allow_nan=False))
    assert document["least_deadline_s"] == front.least_deadline_s
    assert {"deadline_s", "overhead_j", "overhead_bound_j", "overhead_gap", "scope"} <= set(document["points"][0])
    pytest.importorskip("matplotlib")
    for name in ("front.png", "front.svg"):
        save_front(front, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_what_does_not_go_together() -> None:
    problem = chain(3)
    with pytest.raises(OptionError, match="say at which budget"):
        po.pareto(problem, against="deadline")
    with pytest.raises(OptionError, match="--deadline: a front against the deadline has all"):
        po.pareto(problem, against="deadline", ram="50%", deadline="2x")
    with pytest.raises(OptionError, match="--ram: a front against RAM"):
        po.pareto(problem, ram="50%")
    with pytest.raises(InfeasibleError, match="needs"):
        po.pareto(problem, against="deadline", ram="1B")
