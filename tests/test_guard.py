"""What the solver's guard calls a fault; the cells themselves are solved by `make guard`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.guard import CELLS, Cell, wrong

CELL = Cell("net", "a72", 0.5, "depth:8", "a plan", overhead_j=2.0, bound_j=1.999, gap=1e-3)


def test_twelve_cells_that_differ() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS) == 12
    for cell in CELLS:
        assert cell.bound_j <= cell.overhead_j
        assert cell.overhead_j - cell.bound_j <= cell.gap * cell.overhead_j or cell.scope == "auto"


@pytest.mark.parametrize(
    ("overhead_j", "bound_j", "gap", "told"),
    [
        (2.0, 1.999, 5e-4, ""),
        (2.001, 2.0, 5e-4, ""),
        (None, None, None, "no plan"),
        (2.0, None, None, "all is open"),
        (2.0, 1.9, 0.05, "5.000% is open"),
        (2.1, 2.0, 5e-4, "2 J is known"),
        (1.9, 1.9, 0.0, "below 1.999 J"),
        (2.001, 2.0005, 5e-4, "above the 2 J of a known plan"),
    ],
)
def test_what_is_wrong(overhead_j: float | None, bound_j: float | None, gap: float | None, told: str) -> None:
    found = wrong(CELL, overhead_j, bound_j, gap)
    assert told in found
    assert bool(found) == bool(told)


def test_a_plan_from_outside_of_the_scope_may_be_less_than_all_of_it() -> None:
    assert wrong(CELL, 1.9, 1.9, 0.0, outdone=True) == ""
    assert wrong(replace(CELL, gap=1e-4), 1.9, 1.8, 0.05, outdone=True)
