"""The clock that leaves out waiting for a processor."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poetopt.backends.onnxruntime.measure import BUSY, Stopwatch, told


def counted(path: Path, waited_ns: int) -> str:
    """A file as Linux writes it: nanoseconds with a processor, nanoseconds waiting for one, turns."""
    path.write_text(f"123456789 {waited_ns} 42\n")
    return str(path)


def test_waiting_is_left_out(tmp_path: Path) -> None:
    place = tmp_path / "schedstat"
    with Stopwatch(counted(place, 5_000_000_000)) as clock:
        assert clock.waited() == 5.0
        # meanwhile the thread waits far longer than the act takes: none of its time was its own
        result, taken_s = clock.call(lambda: counted(place, 95_000_000_000))
        assert result == str(place)
        assert taken_s == 0.0
        assert clock.share == 1.0
        assert clock.time(lambda: None) > 0
        assert clock.share < 1.0
    assert clock.waited() == 0.0


@pytest.mark.parametrize("text", ["", "7\n", "one two three\n"])
def test_a_count_that_can_t_be_read_is_none(tmp_path: Path, text: str) -> None:
    place = tmp_path / "schedstat"
    place.write_text(text)
    for path in (place, tmp_path / "nowhere"):
        with Stopwatch(str(path)) as clock:
            assert clock.waited() == 0.0
            assert clock.counts == (path == place)
            assert clock.time(lambda: math.factorial(2000)) > 0
            assert clock.share == 0.0


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(-10, 1e4)), max_size=6))
def test_seconds_and_waiting_are_what_passed(spans: list[tuple[float, float]]) -> None:
    with Stopwatch("") as clock:
        taken = [clock.timed(wall_s, waited_s) for wall_s, waited_s in spans]
    wall_s = sum(wall for wall, _ in spans)
    assert all(0 <= own_s <= wall for own_s, (wall, _) in zip(taken, spans, strict=True))
    assert sum(taken) + clock.share * wall_s == pytest.approx(wall_s, abs=1e-9)


def test_only_much_waiting_is_told() -> None:
    assert told(0.0) == told(BUSY - 1e-9) == ""
    assert "12%" in told(0.12)
    assert "again" not in told(0.12)
    assert "again" in told(0.62)
