"""Each decision and each experiment has its date and status or commit, and stands in its list."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from docs import records

DECISIONS = records.decisions()
EXPERIMENTS = records.experiments()


def test_numbers_are_unique_and_of_an_area() -> None:
    numbers = [each.name[:4] for each in DECISIONS]
    assert len(set(numbers)) == len(numbers)
    for each in DECISIONS:
        assert records.DECISION.fullmatch(each.name), each.name
        assert each.name[:2] in records.AREAS, each.name


def test_decisions_have_date_and_status() -> None:
    names = {each.name for each in DECISIONS}
    for each in DECISIONS:
        assert set(each.fields) == {"Date", "Status"}, each.name
        datetime.date.fromisoformat(each.fields["Date"])
        status = records.STATUS.fullmatch(each.fields["Status"])
        assert status, f"{each.name}: {each.fields['Status']}"
        if status[1]:
            assert status[2] in names - {each.name}, f"{each.name} is superseded by a file that isn't there"
            assert status[2].startswith(status[1]), each.name


def test_decisions_have_context_and_decision() -> None:
    for each in DECISIONS:
        text = (records.HERE / "decisions" / each.name).read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE)[:2] == ["Context", "Decision"], each.name


def test_experiments_have_date_and_commit() -> None:
    for each in EXPERIMENTS:
        found = records.EXPERIMENT.fullmatch(each.name)
        assert found, each.name
        assert each.fields["Date"] == found[1], each.name
        datetime.date.fromisoformat(found[1])
        assert re.fullmatch(r"[0-9a-f]{7,40}", each.fields["Commit"]), each.name


def test_dead_ends_have_a_date() -> None:
    text = (records.HERE / "experiments" / "dead-ends.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[0] == "| tried | on | what came out | date |"
    for row in rows[1:]:
        cells = row.strip("|").split(" | ")
        assert len(cells) == 4, row
        datetime.date.fromisoformat(cells[3].strip())


def test_lists_are_complete() -> None:
    for page, text in records.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name} is out of date: python docs/records.py"


def test_a_file_that_is_missing_in_a_list_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "0101-one.md").write_text("# One\n\n- Date: 2026-11-21\n- Status: accepted\n\n## Context\n")
    (found,) = records.decisions(tmp_path)
    assert found.title == "One"
    assert "[0101](0101-one.md) | One | 2026-11-21 | accepted" in records.list_of_decisions([found])
    (tmp_path / "0102-two.md").write_text("no title\n")
    with pytest.raises(ValueError, match=r"0102-two\.md"):
        records.decisions(tmp_path)
