"""Results files: of one sweep and one version, written by one process at a time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from poetopt.api.sweeps.points import SweepPoint, evaluate, read_sweep
from poetopt.api.sweeps.store import COLUMNS, opened
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
            store.start(points[index])
            store.put(points[index], row)
    with opened(path, points) as store:
        assert store.done() == {2, 5}
        found = store.rows()
    assert [row["point"] for row in found] == [2, 5]
    assert tuple(found[0]) == COLUMNS
    for got in found:
        place = got["point"]
        assert isinstance(place, int)
        for key, value in rows[place].items():
            assert got[key] == value, key


def test_a_row_once_only(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    with opened(tmp_path / "r.sqlite", points) as store:
        store.put(points[0], {"status": "optimal"})
        with pytest.raises(sqlite3.IntegrityError):
            store.put(points[0], {"status": "optimal"})


def test_a_grown_sweep_goes_on_and_another_is_refused(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with opened(path, points) as store:
        store.put(points[0], {"status": "optimal"})
    grown = read_sweep(write_sweep(tmp_path, FILE.replace('"40%", ', '"20%", "40%", ')))
    with opened(path, grown) as store:
        (place,) = store.done()
        assert grown[place].key == points[0].key
        assert place != 0
    other = read_sweep(write_sweep(tmp_path, FILE.replace("20s", "30s")))
    with pytest.raises(OptionError, match=r"the results of another sweep: 1 of its rows.*poet, chain on a72 at 40%"):
        opened(path, other).__enter__()


def test_another_version(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with opened(path, points):
        pass
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE about SET value = '0.0.1' WHERE name = 'version'")
    with pytest.raises(OptionError, match=r"written by poetopt 0\.0\.1"):
        opened(path, points).__enter__()


@pytest.mark.parametrize("name", ["format", "version"])
def test_a_file_that_lost_its_origin(points: Sequence[SweepPoint], tmp_path: Path, name: str) -> None:
    path = tmp_path / "r.sqlite"
    with opened(path, points):
        pass
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM about WHERE name = ?", (name,))
    with pytest.raises(OptionError, match="doesn't say which format and version"):
        opened(path, points).__enter__()


def test_files_of_something_else(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no database at all, but long enough to be looked at\n" * 40)
    with pytest.raises(OptionError, match="not the results of a sweep"):
        opened(text, points).__enter__()
    assert text.read_text().startswith("no database")
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(OptionError, match="a database, but not"):
        opened(other, points).__enter__()
    with pytest.raises(OutputError):
        opened(tmp_path / "no" / "folder.sqlite", points).__enter__()
    (tmp_path / "empty").touch()
    with opened(tmp_path / "empty", points) as store:
        assert store.done() == set()


def test_one_writer(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with opened(path, points) as store:
        with pytest.raises(OptionError, match="another sweep is writing it"):
            opened(path, points).__enter__()
        store.put(points[0], {"status": "optimal"})
        # Whoever only reads may do so meanwhile.
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM rows").fetchone() == (1,)


def test_a_file_without_a_row_is_gone_after_an_error(points: Sequence[SweepPoint], tmp_path: Path) -> None:
    """But for one that was there before, or has a row."""

    def stopped(path: Path, row: bool) -> None:
        with opened(path, points) as store:
            store.start(points[0])
            if row:
                store.put(points[0], {"status": "optimal"})
            raise KeyboardInterrupt

    there, new, full = (tmp_path / f"{name}.sqlite" for name in ("there", "new", "full"))
    with opened(there, points):
        pass
    for path in (there, new, full):
        with pytest.raises(KeyboardInterrupt):
            stopped(path, path == full)
    assert (there.exists(), new.exists()) == (True, False)
    with opened(full, points) as store:
        assert store.done() == {0}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("energy_j", float("inf")), ("makespan_s", "soon"), ("recomputes", 2.5), ("status", b"optimal"), ("reason", 7),
        ("energy_j", -1.0), ("page_ins", -1), ("status", "\x1b[2J"), ("model", "other"), ("reason", "a" * 1_000_000),
    ],
)  # fmt: skip
def test_a_cell_of_another_kind(points: Sequence[SweepPoint], tmp_path: Path, column: str, value: object) -> None:
    """SQLite keeps anything in any column, and JSON has no infinity."""
    path = tmp_path / "r.sqlite"
    with opened(path, points) as store:
        store.put(points[3], evaluate(points[3]))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?)", (f"{column} TEXT", f"{column} BLOB"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE rows SET {column} = ?", (value,))
    with opened(path, points) as store, pytest.raises(OptionError, match=rf"damaged: the row of .* for {column}; "):
        store.rows()


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
        assert [row["point"] for row in store.rows()] == list(range(len(found)))


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
