"""Text from files can't do anything to a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poetopt.cli.console import complain, say
from poetopt.util.text import LONGEST_LINE, LONGEST_WORD, shortened, shown, unshown


@given(st.text())
def test_what_is_shown_is_harmless_and_what_is_harmless_stays(text: str) -> None:
    assert not any(unshown(character) for character in shown(text))
    assert shown(shown(text)) == shown(text)
    harmless = "".join(character for character in text if not unshown(character))
    assert shown(harmless) == harmless


def test_the_command_line_prints_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    say("a \x1b[31mred\x1b[0m\tone\n\u202eback\x9b")
    complain("The \x07bell\nrings")
    told = capsys.readouterr()
    assert told.out == "a \\x1b[31mred\\x1b[0m\tone\n\\u202eback\\x9b\n"
    assert told.err == "poetopt: The \\x07bell\nrings\n"


@given(st.text(max_size=40), st.sampled_from(["", " ", "\n"]), st.integers(0, 3 * LONGEST_LINE))
def test_long_words_and_lines_keep_both_ends(text: str, gap: str, count: int) -> None:
    long = f"first {text}" + (f"{gap}abcde" * count)[: 3 * LONGEST_LINE] + " last"
    short = shortened(long)
    assert all(len(line) <= LONGEST_LINE for line in short.split("\n"))
    assert all(len(word) <= LONGEST_WORD for word in short.split())
    assert short.startswith("first ")
    assert short.endswith(" last")
    if len(long) <= LONGEST_WORD:
        assert short == long
    assert shortened(short) == short


def test_an_error_line_is_not_as_long_as_a_name_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    complain(f"reads '{'n' * 10_000}.weight', which no node provides")
    told = capsys.readouterr().err
    assert len(told) < 2 * LONGEST_WORD
    assert told.startswith("poetopt: reads 'nnn")
    assert "more...]nnn" in told
    assert told.endswith("n.weight', which no node provides\n")
