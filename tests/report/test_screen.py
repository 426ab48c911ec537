"""What a screen shows: figures that add up, few notes, what differs, and what would be cheap."""

from __future__ import annotations

import re
from typing import Any

import pytest

import poetopt as po
from poetopt.report import summary
from poetopt.report.comparison import comparison_lines
from poetopt.report.layout import table
from poetopt.util.notes import few, show_all
from poetopt.util.units import show_joules, show_seconds


def lines(document: dict[str, Any]) -> dict[str, str]:
    return dict(summary.rows(document, ()))


@pytest.fixture(scope="module")
def report() -> po.Report:
    step = po.load("mlp", batch=8).differentiate(optimizer="sgd")
    return po.solve(step.cost("m4", runtime="c", parameters="paged"), total_ram="120kB", time_limit=10)


def test_transfers_are_all_that_moves_and_what_is_written(report: po.Report) -> None:
    document = report.to_dict()
    simulation = report.solution.simulation
    assert simulation is not None
    assert simulation.bytes_streamed > 0
    assert document["storage_bytes"] == 32e9
    moved = {**document, "bytes_paged": 1_000_000, "bytes_streamed": 2_000_000, "bytes_written": 320_000}
    text = lines({**moved, "transfer_s": 0.5, "hidden_s": 0.1})["transfers"]
    assert text == (
        "3.00 MB (320 kB written, 0.001 % of the storage); 2.00 MB of it in chunks, in their operators' time; 1.00 MB "
        "in 500 ms, 100 ms of it while the CPU computes"
    )
    text = lines({**moved, "bytes_streamed": 0, "storage_bytes": None, "transfer_s": 0.5, "hidden_s": 7.2e-16})[
        "transfers"
    ]
    assert text == "1.00 MB (320 kB written) in 500 ms, while the CPU waits"
    assert "written, under 0.001 % of" in lines({**moved, "storage_bytes": 10**15})["transfers"]
    assert "transfers" not in lines({**document, "bytes_paged": 0, "bytes_streamed": 0})


def test_no_figure_is_a_tiny_part_of_the_smallest_unit() -> None:
    assert show_seconds(7.2e-16) == "under 0.001 ns"
    assert show_joules(0.0) == "0 J"
    assert show_seconds(7.2e-12) == "0.0072 ns"


def test_an_absurd_plan_says_what_would_be_cheap(report: po.Report) -> None:
    document = {**report.to_dict(), "parameters": "resident", "batch": 32, "scope": "full"}
    absurd = {
        **document,
        "baseline_energy_j": 1.0,
        "overhead_j": 66.05,
        "ram_budget_bytes": 10,
        "store_all_peak_bytes": 70,
    }
    assert lines(absurd)["cheaper"] == (
        "66.0 times the energy of ordinary training is spent beside it: about a batch of 4, or --micro-batch 8, fits "
        "without that; `poetopt fit` shows what each batch costs"
    )
    small = lines({**absurd, "batch": 1})["cheaper"]
    assert small.endswith("is spent beside it; `poetopt fit` shows what each batch costs")
    assert "cheaper" not in lines({**absurd, "overhead_j": 0.9})


def test_more_notes_than_three_are_counted() -> None:
    rows = [("loss", "l"), *(("note", f"n{k}") for k in range(5)), ("written", "w")]
    assert few(rows[:4]) == rows[:4]
    assert few(rows) == [*rows[:3], ("note", "3 more with --verbose, and in --json"), rows[-1]]
    show_all(wanted=True)
    try:
        assert few(rows) == rows
        assert table("title", rows).count("note") == 5
    finally:
        show_all(wanted=False)
    assert table("title", rows).count("note") == 3


def test_a_comparison_shows_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    found = po.compare("mlp", device="a72", ram="40%,80%", methods="capuchin,capuchin-paging-first,revolve,dtr")
    text = comparison_lines(found)
    assert sum("all methods: infeasible, the budget of" in line for line in text) == 1
    assert any(re.fullmatch(r"  capuchin-paging-first +\S+ \S*s  as capuchin", line) for line in text)
    assert any(line.startswith("  revolve, dtr: infeasible, ") for line in text)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = comparison_lines(found)
    assert all(len(line) <= 80 for line in narrow if re.match(r"  \w\S+ +\d", line))
    assert "  capuchin-paging-first  as capuchin" in narrow
    assert "  no room here, in --json: took, of baseline, recomputes" in narrow
