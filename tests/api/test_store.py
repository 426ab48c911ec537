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
from poetopt.util.errors import OptionError, OutputError
from tests.api.support import FILE, write_sweep


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


def test_a_row_once_only(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    with opened(tmp_path / "r.sqlite", points) as store:
        put(store, points[0], {"status": "optimal"})
        with pytest.raises(sqlite3.IntegrityError):
            put(store, points[0], {"status": "optimal"})


def test_a_grown_sweep_goes_on_and_another_is_refused(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with opened(path, points) as store:
        put(store, points[0], {"status": "optimal"})
    grown = read_sweep(write_sweep(tmp_path, FILE.replace('"40%", ', '"20%", "40%", ')))
    with opened(path, grown) as store:
        ((key, row),) = rows_of(store, grown).items()
        assert key == points[0].key
        assert row["point"] != 0
    other = read_sweep(write_sweep(tmp_path, FILE.replace("20s", "30s")))
    with pytest.raises(OptionError, match=r"the results of another sweep, or of another version.*: 1 of its rows"):
        opened(path, other).__enter__()


def test_another_version(points: Sequence[SweepPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.sqlite"
    with opened(path, points) as store:
        put(store, points[0], {"status": "optimal"})
    monkeypatch.setattr("poetopt.api.sweeps.__version__", "0.0.1")
    with pytest.raises(OptionError, match="another version"):
        opened(path, points).__enter__()


def test_files_of_something_else(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no database at all, but long enough to be looked at\n" * 40)
    with pytest.raises(OptionError, match="not the results of a sweep"):
        opened(text, points).__enter__()
    assert text.read_text().startswith("no database")
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE rows (x)")
    with pytest.raises((OptionError, OutputError), match="give another"):
        opened(other, points).__enter__()
    with pytest.raises(OutputError):
        opened(tmp_path / "no" / "folder.sqlite", points).__enter__()
    (tmp_path / "empty").touch()
    with opened(tmp_path / "empty", points) as store:
        assert rows_of(store, points) == {}


def test_one_writer(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with opened(path, points) as store:
        with pytest.raises(OptionError, match="another sweep is writing it"):
            opened(path, points).__enter__()
        put(store, points[0], {"status": "optimal"})
        # Whoever only reads may do so meanwhile.
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM rows").fetchone() == (1,)


def test_a_file_without_a_row_is_gone_after_an_error(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    """But for one that was there before, or has a row."""

    def stopped(path: Path, row: bool) -> None:
        with opened(path, points) as store:
            if row:
                put(store, points[0], {"status": "optimal"})
            raise KeyboardInterrupt

    there, new, full = (tmp_path / f"{name}.sqlite" for name in ("there", "new", "full"))
    with opened(there, points):
        pass
    for path in (there, new, full):
        with pytest.raises(KeyboardInterrupt):
            stopped(path, path == full)
    assert (there.exists(), new.exists()) == (True, False)
    with opened(full, points) as store:
        assert [*rows_of(store, points)] == [points[0].key]


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


def test_without_room_no_file_is_left(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OutputError, match="make room"), opened(tmp_path / "r.sqlite", points):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "r.sqlite").exists()
