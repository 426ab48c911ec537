"""Comparisons: rows for every method and budget, POET never dearer, no plan below a bound."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import poetopt as po
from poetopt.comparison.baselines import names, poet
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.compare import Comparison, compare
from poetopt.comparison.rows import COLUMNS, in_bytes, parse_budgets, row_of_solution
from poetopt.formulations.scope import proven_words
from poetopt.graph.problem import Problem
from poetopt.plan.simulate import simulate
from poetopt.report.comparison import coinciding, comparison_lines
from poetopt.report.plots import save_comparison
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Solution, Status
from poetopt.util.errors import OptionError
from poetopt.util.units import Share
from tests.compare.chains import chain
from tests.problems import random_tight

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


def test_random_problems_with_every_method() -> None:
    rng = random.Random(31)
    for _ in range(4):
        problem, ram = random_tight(rng, operators=8, training=True)
        result = compare(problem, (ram,), settings=replace(SETTINGS, scope="full", gap=0.0))
        overheads = {row.method: row.overhead_j for row in result.rows}
        for name, overhead in overheads.items():
            best = overheads["poet"]
            assert overhead is None or (best is not None and best <= overhead), name


def test_no_plan_beats_the_bound_on_all_schedules() -> None:
    """Recomputing in the forward pass, say, is sometimes best, and none of the scope `forward`."""
    rng = random.Random(77)
    for _ in range(12):
        problem, ram = random_tight(rng, operators=9, training=rng.random() < 0.7)
        for scope in ("forward", "full"):
            settings = replace(SETTINGS, scope=scope, gap=0.0)
            rows = compare(problem, (ram,), methods=["dtr", "capuchin", "poet"], settings=settings).rows
            bound_j = max(row.overhead_bound_j or 0.0 for row in rows)
            assert all(row.overhead_j is None or row.overhead_j >= bound_j - 1e-9 for row in rows)


@pytest.mark.parametrize("ram", [1, 30])
def test_a_deadline_under_one_pass_is_impossible_for_every_method(ram: int) -> None:
    problem = chain(5)
    settings = replace(SETTINGS, deadline_s=0.5 * problem.baseline_time_s)
    rows = compare(problem, (ram,), settings=settings).rows
    assert [row.method for row in rows] == list(names())
    assert {row.status for row in rows} == {"infeasible"}
    (reason,) = {row.reason for row in rows}
    assert "shorter than one pass" in reason


@pytest.mark.parametrize(("scope", "status"), [("depth<=4", "failed"), ("forward", "failed"), ("full", "infeasible")])
def test_a_proof_within_a_scope_is_not_called_infeasible(scope: str, status: str) -> None:
    options = Options(ram_bytes=4, paging=False)
    empty = Solution(status=Status.INFEASIBLE, scope=scope, options=options, reason="no schedule exists")
    row = row_of_solution("checkmate", 4, empty)
    assert (row.status, row.scope) == (status, scope)
    assert (f"no schedule with {proven_words(scope)}, by proof" in row.reason) == (status == "failed")


@pytest.mark.parametrize("scope", ["auto", "depth:2", "forward"])
def test_paging_alone_has_one_scope(scope: str) -> None:
    """Nothing runs again, so that a proof in any scope is of all plans."""
    for seed in range(3):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6)
        (row,) = compare(problem, (ram_bytes,), ["poet-paging-only"], replace(SETTINGS, scope=scope)).rows
        assert (row.status, row.scope) == ("optimal", "full")
    problem = chain(5)
    (row,) = compare(problem, (problem.least_ram_bytes,), ["poet-paging-only"], replace(SETTINGS, scope=scope)).rows
    # a sum refuses it, which no scope limits
    assert (row.status, row.scope) == ("infeasible", None)


def test_poet_may_take_what_the_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit grows by the rest of each method with a proof at the same budget, asked for and done before it."""
    asked: dict[tuple[bool, bool], float] = {}

    def watched(problem: Problem, options: Options, **more: Any) -> Solution:
        asked[options.paging, options.remat] = options.time_limit_s
        return solve(problem, options, **more)

    monkeypatch.setattr(poet, "search", watched)
    problem = chain(5, paging=True)
    compare(problem, (7,), methods=["poet", "dtr"], settings=SETTINGS)
    assert asked == {(True, True): SETTINGS.time_limit_s}
    result = compare(problem, (7,), methods=["poet", "poet-paging-only", "poet-remat-only"], settings=SETTINGS)
    # The scheduler of remat-only is Checkmate's, which is not watched.
    assert asked[True, False] == SETTINGS.time_limit_s
    took = {row.method: row.solve_s for row in result.rows}
    left = 2 * SETTINGS.time_limit_s - took["poet-paging-only"] - took["poet-remat-only"]
    assert asked[True, True] == pytest.approx(SETTINGS.time_limit_s + left)


def test_text_and_json(found: Comparison) -> None:
    text = "\n".join(comparison_lines(found))
    for name in names():
        assert name in text
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert set(KEYS) <= set(document["rows"][0])
    assert document["store_all_peak_bytes"] == found.store_all_peak_bytes


def test_methods_that_coincide_are_named(found: Comparison, tmp_path: Path) -> None:
    rows = tuple(replace(row, method="twin") for row in found.rows if row.method == "capuchin")
    doubled = replace(found, methods=("capuchin", "revolve", "twin", "dtr"), rows=(*found.rows, *rows))
    same = coinciding(doubled)
    assert same["twin"] == "capuchin"
    assert "capuchin" not in same
    assert any("capuchin = twin" in line for line in comparison_lines(doubled))
    dearer = tuple(replace(row, overhead_j=row.overhead_j and 1.001 * row.overhead_j) for row in rows)
    assert "twin" not in coinciding(replace(doubled, rows=(*found.rows, *dearer)))
    pytest.importorskip("matplotlib")
    save_comparison(doubled, tmp_path / "a.svg")
    assert "= twin" in (tmp_path / "a.svg").read_text()


def test_pictures(found: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.png", "a.svg"):
        save_comparison(found, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    drawing = (tmp_path / "a.svg").read_text()
    assert "<svg" in drawing
    save_comparison(found, tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_text() == drawing
    assert all(name in drawing for name in names())
    with pytest.raises(OptionError, match="a picture ends in"):
        save_comparison(found, tmp_path / "a.txt")


def test_interface() -> None:
    problem = chain(5)
    result = po.compare(problem, ram="60%,100%", methods="revolve, poet", deadline="2x", time_limit=5)
    assert result.methods == ("revolve", "poet")
    assert len(result.rows) == 4
    assert all(row.makespan_s is None or row.makespan_s <= 2 * problem.baseline_time_s for row in result.rows)
    assert po.compare(problem, ram=[7, "100%"], methods=["dtr"]).budgets == (7,)
    assert po.compare(problem, ram="1B", methods="dtr,all").methods == names()
    with pytest.raises(OptionError, match="no method is called 'revolver'"):
        po.compare(problem, methods="revolver")


@pytest.mark.parametrize(
    ("text", "budgets"),
    [
        ("20%..100%/9", tuple(Share(k / 10) for k in range(2, 11))),
        ("1kB..3kB/3", (1000, 2000, 3000)),
        ("40%, 5MB", (Share(0.4), 5_000_000)),
        ("50%..60%/2,10", (Share(0.5), Share(0.6), 10)),
    ],
)
def test_budgets(text: str, budgets: tuple[int | Share, ...]) -> None:
    parsed = parse_budgets(text)
    assert len(parsed) == len(budgets)
    for one, other in zip(parsed, budgets, strict=True):
        if isinstance(one, Share) and isinstance(other, Share):
            assert one.fraction == pytest.approx(other.fraction)
        else:
            assert one == other


def test_whole_percentages_are_whole_bytes() -> None:
    assert in_bytes(parse_budgets("20%..100%/9"), 1000) == tuple(range(200, 1001, 100))


@pytest.mark.parametrize("text", ["20%..100%", "20%..100%/1", "20%..3MB/4", "20%/9", "a..b/3", "20%..100%/x", ""])
def test_budgets_that_make_no_sense(text: str) -> None:
    with pytest.raises(OptionError, match="--ram"):
        parse_budgets(text)


@pytest.mark.parametrize("text", ["", " ", ",", "40%,", ",40%", "40%,,3MB"])
def test_empty_budgets_are_called_empty(text: str) -> None:
    with pytest.raises(OptionError, match=f"--ram '{text}': a budget in it is empty"):
        parse_budgets(text)
