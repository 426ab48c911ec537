"""Text in lines: as wide as the terminal, broken between words, figures with their units."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.report.layout import WIDTH, columns, fitted, table, terminal_width

words = st.lists(st.from_regex(r"[a-z]{1,12}|[0-9]{1,3} (kB|MiB|ms|%|J|min|W|bytes)", fullmatch=True), max_size=60)


@settings(deadline=None)
@given(words, st.integers(min_value=50, max_value=140))
def test_lines_fit_and_figures_keep_their_units(text: list[str], width: int) -> None:
    told = table("title", [("label", " ".join(text))], width)
    assert all(len(line) <= width for line in told.splitlines())
    assert " ".join(told.split()) == " ".join(["title", "label", *" ".join(text).split()])
    assert not re.search(r"\d$", told, re.MULTILINE)


@pytest.mark.parametrize("width", [80, 140])
def test_what_is_printed_is_as_wide_as_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert terminal_width() == width
    rows = [("note", "word " * 100), ("long", "x" * 200)]
    lines = table("title " * 40, rows).splitlines()
    assert max(len(line) for line in lines if "xx" not in line) <= width
    assert any(len(line) > width - 6 for line in lines)
    assert sum("xx" in line for line in lines) == 1, "a word is never broken"
    monkeypatch.setenv("COLUMNS", "10")
    assert terminal_width() == 40
    monkeypatch.delenv("COLUMNS")
    assert terminal_width() == WIDTH  # nothing here is a terminal


def test_a_time_of_two_units_stays_together() -> None:
    for time in ("2 min 5 s", "3 h 20 min"):
        told = table("t", [("a", f"{'x' * 32} {time}")], 40)
        assert told.splitlines()[-1].strip() == time


def test_the_last_column_goes_on_under_its_own_start() -> None:
    lines = columns([("name", "about"), ("a", "word " * 20), ("longer", "b")], 50)
    assert lines[0] == "name    about"
    assert lines[1].startswith("a       word")
    assert lines[2].startswith("        word")
    assert all(len(line) <= 50 for line in lines)
    narrow = columns([("x" * 40, "word " * 20)], 50)
    assert narrow[1].startswith("    word")


def test_other_lines_are_fitted() -> None:
    assert fitted("short\n  " + "ab " * 30, 40).splitlines()[0] == "short"
    lines = fitted("  " + "ab " * 30, 40).splitlines()
    assert lines[0].startswith("  ab")
    assert lines[1].startswith("    ab")
    assert all(len(line) <= 40 for line in lines)
