"""Results files: of one sweep and one version, written by one process at a time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from poetopt.api.sweeps import COLUMNS, SweepPoint, evaluate, opened, put, read_sweep, rows_of
from poetopt.util.errors import OptionError
from tests.support.api import write_sweep


@pytest.fixture
def points(tmp_path: Path) -> Sequence[SweepPoint]:
    return read_sweep(write_sweep(tmp_path))


def test_rows_come_back_in_order(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    rows = {index: evaluate(points[index]) for index in (5, 2)}
    for index, row in rows.items():
        with opened(path, points) as store:
            put(store, points[index], row)
    with opened(path, points) as store:
        found = [*rows_of(store, points).values()]
    assert [row["point"] for row in found] == [2, 5]
    assert tuple(found[0]) == COLUMNS
    for got in found:
        for key, value in rows[got["point"]].items():
            if key in COLUMNS:
                assert got[key] == value, key


def test_one_writer(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with opened(path, points) as store:
        with pytest.raises(OptionError, match="another sweep is writing it"):
            opened(path, points).__enter__()
        put(store, points[0], {"status": "optimal"})
        # Whoever only reads may do so meanwhile.
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM rows").fetchone() == (1,)


def test_two_processes_on_one_file(tmp_path: Path) -> None:
    """One of them writes all rows, each once; the other is told so, or finds them there."""
    sweep = tmp_path / "two.toml"
    sweep.write_text('models = ["mlp"]\ndevices = ["a72", "m4"]\nram = ["100%", "120%"]\n', encoding="utf-8")
    program = [sys.executable, "-m", "poetopt", "sweep", str(sweep), "-o", str(tmp_path / "r.sqlite"), "--workers", "1"]
    both = [subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [(process.communicate()[1], process.returncode) for process in both]
    assert sorted(code for _, code in ended)[0] == 0
    assert all(code == 0 or "another sweep is writing it" in said for said, code in ended), ended
    found = read_sweep(sweep)
    with opened(tmp_path / "r.sqlite", found) as store:
        assert [row["point"] for row in rows_of(store, found).values()] == list(range(len(found)))
