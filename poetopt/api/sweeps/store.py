"""The results of a sweep: one SQLite file, a transaction a row, so that a kill at any moment loses no finished row.

Table `rows` has a row a point. Columns of POINT and RESULT are the same however often and wherever the sweep is
run, as long as no time limit ended a solve (`limited`); those of RUN are not. Table `starts` has a row each time that a
point was given to a worker, and `about` says which version wrote the file.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from poetopt.api.sweeps.points import ERROR, SweepPoint, Value
from poetopt.comparison.rows import FAILED
from poetopt.search.solution import Status
from poetopt.util.errors import OptionError, OutputError
from poetopt.util.files import check_writable, lock_file
from poetopt.util.version import __version__

POINT = ("point", "model", "device", "method", "ram", "deadline")
RESULT = (
    "status", "scope", "ram_budget_bytes", "deadline_s", "energy_j", "overhead_j", "overhead_bound_j", "overhead_gap",
    "scope_bound_j", "scope_gap", "peak_bytes", "makespan_s", "recomputes", "page_ins", "page_outs", "bytes_paged",
    "operators", "tensors", "store_all_peak_bytes", "baseline_energy_j", "baseline_time_s",
)  # fmt: skip
RUN = ("reason", "limited", "solve_s", "total_s", "finished")
COLUMNS = (*POINT, *RESULT, *RUN)
_WHOLE = ("recomputes", "page_ins", "page_outs", "operators", "tensors", "limited", "bytes_paged")
LONGEST = 100_000
"""Characters of a text in a row."""
FORMAT = 2
APPLICATION_ID = 0x706F6574
"""`poet`: SQLite files carry the number of the program that they are of."""


class Store:
    """An open results file. Make one with `opened`."""

    def __init__(self, connection: sqlite3.Connection, points: Sequence[SweepPoint], shown: str) -> None:
        self._connection, self._shown = connection, shown
        self._points = {point.key: point for point in points}

    def done(self) -> set[int]:
        """The places of the points that have a row."""
        return {self._points[key].index for (key,) in self._connection.execute("SELECT key FROM rows")}

    def start(self, point: SweepPoint) -> None:
        """Note that the point is given to a worker."""
        with self._connection:
            self._connection.execute("INSERT INTO starts VALUES (?, ?)", (point.key, _now()))

    def put(self, point: SweepPoint, row: dict[str, Value]) -> None:
        """Keep a row. Raises OutputError where there is no room."""
        cells = {"key": point.key, **point.said, "finished": _now(), **row}
        names = [name for name in ("key", *COLUMNS) if name in cells]
        marks = ", ".join("?" * len(names))
        with self._connection:
            self._connection.execute(
                f"INSERT INTO rows ({', '.join(names)}) VALUES ({marks})", [cells[name] for name in names]
            )

    def rows(self) -> list[dict[str, Value]]:
        """All rows, in the order of the sweep's points. Raises OptionError for a cell of another kind."""
        names = [name for name in COLUMNS if name != "point"]
        rows = []
        for key, *cells in self._connection.execute(f"SELECT key, {', '.join(names)} FROM rows"):
            point = self._points[key]
            row = {"point": point.index, **dict(zip(names, cells, strict=True))}
            for name in names:
                if not _fits(name, row[name]) or row[name] != point.said.get(name, row[name]):
                    raise OptionError(
                        f"{self._shown}: damaged: the row of {point} has {str(row[name])[:40]!r} for {name}; give "
                        "another path with -o"
                    )
            rows.append(row)
        return sorted(rows, key=lambda row: row["point"])


@contextmanager
def opened(path: str | os.PathLike[str], points: Sequence[SweepPoint]) -> Iterator[Store]:
    """The results file of a sweep, made where there is none, and kept from any other sweep meanwhile.

    A file that was made here is gone again where the block raises before there is a row.

    Raises OptionError for a file of something else, of another sweep or another version, or one that is in use, and
    OutputError for one that can't be written.
    """
    shown = os.fspath(path)
    made = not Path(path).exists()
    if made:
        check_writable(path)
    try:
        descriptor = os.open(shown, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OutputError(f"can't write {shown}: {error.strerror}; give another path with -o") from error
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)  # and with it the lock, as with the process, however that ends
        if not lock_file(descriptor):
            raise OptionError(f"{shown}: another sweep is writing it; wait for its end, or give another -o")
        connection = stack.enter_context(closing(sqlite3.connect(shown, timeout=30.0)))
        blank = made
        try:
            _prepare(connection, shown, {point.key for point in points})
            try:
                yield Store(connection, points, shown)
                blank = False
            finally:
                blank = blank and not connection.execute("SELECT count(*) FROM rows").fetchone()[0]
        except sqlite3.OperationalError as error:
            raise OutputError(f"can't write {shown}: {error}; make room and rights there") from error
        except sqlite3.DatabaseError as error:
            raise OptionError(f"{shown}: not the results of a sweep ({error}); give another path with -o") from error
        finally:
            if blank:
                with suppress(OSError):
                    os.unlink(shown)


def _prepare(connection: sqlite3.Connection, shown: str, keys: set[str]) -> None:
    """Everything in one transaction where the file is new: a kill leaves a file with all of it, or an empty one."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        columns = ", ".join(f"{name} {_kind(name)}" for name in COLUMNS if name != "point")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"CREATE TABLE rows (key TEXT PRIMARY KEY, {columns})")
            connection.execute("CREATE TABLE starts (key TEXT, at TEXT)")
            connection.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            about = [("format", str(FORMAT)), ("version", __version__)]
            connection.executemany("INSERT INTO about VALUES (?, ?)", about)
        return
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise OptionError(f"{shown}: a database, but not the results of a sweep; give another path with -o")
    about_it = dict(connection.execute("SELECT name, value FROM about"))
    if not {"format", "version"} <= about_it.keys():
        raise OptionError(
            f"{shown}: damaged: its table 'about' doesn't say which format and version wrote it; give another path "
            "with -o"
        )
    if about_it != about_it | {"format": str(FORMAT), "version": __version__}:
        raise OptionError(
            f"{shown}: written by poetopt {about_it['version']} (format {about_it['format']}), this is {__version__} "
            f"(format {FORMAT}): their rows can't be mixed; finish it with that version, or give another -o"
        )
    found = connection.execute("SELECT key, method, model, device, ram FROM rows").fetchall()
    if foreign := [cells for key, *cells in found if key not in keys]:
        name, model, device, ram = foreign[0]
        raise OptionError(
            f"{shown}: the results of another sweep: {len(foreign)} of its rows are no points of this one (such as "
            f"{name}, {model} on {device} at {ram}; a changed model, device file or setting counts too); give another "
            "-o, or the sweep that it is of"
        )


def _kind(name: str) -> str:
    """The type of a column."""
    if name.endswith(("_s", "_j", "_gap")):
        return "REAL"
    return "INTEGER" if name.endswith("_bytes") or name in _WHOLE else "TEXT"


def _fits(name: str, value: object) -> bool:
    """Tell whether a cell holds what its column is for: SQLite itself takes anything anywhere."""
    if name == "status":
        return value in (*Status, FAILED, ERROR)
    if value is None:
        return True
    match _kind(name):
        case "REAL":
            return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
        case "INTEGER":
            return isinstance(value, int) and value >= 0
    return isinstance(value, str) and len(value) <= LONGEST


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
