"""docs/ops.md lists the registry's ops and no others, and no row's error is above the tolerance."""

from __future__ import annotations

from pathlib import Path

from poetopt.autodiff.registry import registered
from poetopt.ops.losses.vjp import ATTACHED
from tests.autodiff.errors import TOLERANCE

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"


def cells(columns: int) -> list[list[str]]:
    """The rows of the table with so many columns, without its head."""
    rows = [line.strip("|").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows if len(row) == columns][1:]


def test_the_table_is_that_of_the_registry() -> None:
    listed = {row[0]: (row[1], row[2]) for row in cells(7)}
    wanted = {
        op: (", ".join(map(str, rules)), ", ".join({r.__module__.split(".")[2]: "" for r in rules.values()}))
        for (domain, op), rules in registered().items()
        if not domain and op not in ATTACHED
    }
    assert listed == wanted, "run docs/ops_table.py"
    assert [row[0] for row in cells(2)] == [op for domain, op in registered() if domain]


def test_no_error_is_above_the_tolerance() -> None:
    for row in cells(7):
        assert all(float(error) <= TOLERANCE for error in row[5:] if error), row[0]
        assert float(row[4]) >= 0
