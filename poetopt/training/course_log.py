"""The course of a training as a CSV file, a row a step, as it goes.

| column | what it is |
|---|---|
| epoch, step | both from 1 |
| lr, loss | the step's rate, and its batch's loss before the update |
| seconds | since training began, over all its processes |
| validation_loss, accuracy, ... | in the last row of an epoch that is validated; a metric each |

A resumed training keeps the rows of the steps before the checkpoint that it goes on from.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from poetopt.util.errors import OutputError
from poetopt.util.files import check_writable, is_regular

STEP = ("epoch", "step", "lr", "loss", "seconds")


class CourseLog:
    """Writes rows behind those of `kept` steps that are there; a context manager. Raises OutputError."""

    def __init__(self, path: Path, metrics: Sequence[str], kept: int = 0) -> None:
        self._path = path
        self._columns = (*STEP, "validation_loss", "accuracy", *metrics)
        self._row: dict[str, object] = {}
        with self._writing():
            check_writable(path)
            rows = list(_rows_before(path, kept))
            self._file: IO[str] = path.open("w", encoding="utf-8", newline="", buffering=1)
            self._lines = csv.DictWriter(self._file, self._columns, restval="", extrasaction="ignore")
            self._lines.writeheader()
            self._lines.writerows(rows)

    def step(self, *figures: float) -> None:
        """A step's row, which stays open for what its epoch's validation says."""
        self._write()
        self._row = dict(zip(STEP, figures, strict=True))

    def validation(self, found: Mapping[str, Any]) -> None:
        """Add an epoch's validation to its last row."""
        if not self._row:  # of an epoch that was over before
            return
        self._row |= {"validation_loss": found["loss"], "accuracy": found["accuracy"], **found["metrics"]}
        self._write()

    def close(self) -> None:
        """Write what is left."""
        self._write()
        with self._writing():
            self._file.close()

    def _write(self) -> None:
        if self._row:
            with self._writing():
                self._lines.writerow({name: "" if value is None else value for name, value in self._row.items()})
            self._row = {}

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"can't write {self._path}: {error.strerror or os.strerror(error.errno or 0)}; make room, or give "
                "another path with --log"
            ) from error


def _rows_before(path: Path, kept: int) -> Iterator[dict[str, str]]:
    """The whole rows of the first `kept` steps in the file of a training that was ended."""
    if not kept or not is_regular(path):
        return
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            number = row.get("step") or ""
            if number.isdecimal() and 0 < int(number) <= kept and None not in (*row, *row.values()):
                yield row
