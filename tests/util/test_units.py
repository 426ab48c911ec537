"""Sizes, times and shares as people write them, and text that can't do anything to a terminal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poetopt.util.errors import OptionError
from poetopt.util.text import shown, unshown
from poetopt.util.units import (
    parse_deadline,
    parse_ram,
    parse_time,
    show_bytes,
    show_joules,
    show_limit,
    show_seconds,
    show_share,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("3MB", 3_000_000), ("300KB", 300_000), ("300kB", 300_000), ("300KiB", 307_200), ("300 KiB", 307_200),
        ("2MiB", 2 * 1024**2), ("1.5GiB", 3 * 2**29), ("1e6", 1_000_000), ("17", 17),
        ("17B", 17), (17, 17), (17.9, 17), ("9007199254740993", 9007199254740993), ("16 Mbit", 2_000_000), ("0", 0),
    ],
)  # fmt: skip
def test_sizes(text: str | float, nbytes: int) -> None:
    assert parse_ram(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", "MB", "-1", "nan", "inf", "1e999", "3 parsec", "300kb", "3m", "40%%", "3 s", "2 radian", "1_0", "١", "1e-400"],
)
def test_no_sizes(text: str) -> None:
    with pytest.raises(OptionError, match=r"--ram .*(MB|kB|GB)"):
        parse_ram(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("3h", 10_800), ("10min", 600), ("2 minutes", 120), ("5us", 5e-6), ("1d", 86_400), (0.5, 0.5)],
)
def test_times(text: str | float, seconds: float) -> None:
    assert parse_deadline(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "0", "0x", "-1s", "nan", "1m", "3 MB", "40%"])
def test_no_times(text: str) -> None:
    with pytest.raises(OptionError, match="--deadline"):
        parse_deadline(text)
    with pytest.raises(OptionError, match="--time-limit"):
        parse_time(text, option="--time-limit")


@pytest.mark.parametrize(
    ("shown", "text"),
    [(show_bytes(0), "0 B"), (show_bytes(999), "999 B"), (show_bytes(1000), "1.00 kB"),
     (show_bytes(999_999), "1.00 MB"), (show_bytes(47_585_280), "47.6 MB"), (show_bytes(47_585_280, 4), "47.59 MB"),
     (show_joules(0.0117), "11.7 mJ"),
     (show_joules(0), "0 J"), (show_joules(3e-10), "0.3 nJ"), (show_seconds(0.00025), "250 µs"),
     (show_seconds(125), "2 min 5 s"), (show_seconds(12_000), "3 h 20 min"), (show_share(0.4), "40 %"),
     (show_share(2e-8), "2e-06 %"), (show_share(25), "2,500 %")],
)  # fmt: skip
def test_figures_for_people(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (show_limit(0.04338164, "s"), "0.0433817 s"), (show_limit(0.04338166, "s"), "0.0433817 s"),
        (show_limit(0.1 + 0.7, "s"), "0.8 s"), (show_limit(0.0433817, "s"), "0.0433817 s"),
        (show_limit(1.0000001, "J"), "1.00001 J"), (show_limit(1.9999999, "J", up=False), "1.99999 J"),
        (show_limit(5935.5, "B"), "5,936 bytes"),
    ],
)  # fmt: skip
def test_figures_to_ask_for_are_rounded_to_the_side_where_they_stay_true(shown: str, text: str) -> None:
    assert shown == text


@given(st.integers(0, 10**15))
def test_shown_sizes_read_back(count: int) -> None:
    read = parse_ram(show_bytes(count).replace(",", ""))
    assert isinstance(read, int)
    assert math.isclose(read, count, rel_tol=0.006)


@given(st.text())
def test_what_is_shown_is_harmless_and_what_is_harmless_stays(text: str) -> None:
    assert not any(unshown(character) for character in shown(text))
    assert shown(shown(text)) == shown(text)
    harmless = "".join(character for character in text if not unshown(character))
    assert shown(harmless) == harmless
