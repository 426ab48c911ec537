"""The course of a training as a CSV file, a row a step, as it goes; or in a folder, as event files of TensorBoard.

| column | what it is |
|---|---|
| epoch, step | both from 1 |
| lr, loss | the step's rate, and its batch's loss before the update |
| seconds | since training began, over all its processes |
| validation_loss, accuracy, ... | in the last row of an epoch that is validated; a metric each |

A resumed training keeps the rows of the steps before the checkpoint that it goes on from. Event files have a scalar
for each column but the first two and `seconds`; TensorBoard passes over what a resumed training takes again.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from poetopt.util.errors import BackendUnavailableError, OutputError
from poetopt.util.files import check_folder, check_writable, is_regular

STEP = ("epoch", "step", "lr", "loss", "seconds")


def in_events(path: Path) -> bool:
    """Tell whether `--log` asks for event files: by a folder, or a name without an ending."""
    return path.is_dir() or not path.suffix


def check_log(path: Path) -> None:
    """Raise OutputError where the log can't be written, BackendUnavailableError where nothing writes event files."""
    if not in_events(path):
        check_writable(path)
        return
    check_folder(path)
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(
            "event files are written by tensorboardX, which is not installed; install it with: pip install "
            "'poetopt[tensorboard]', or give --log FILE.csv"
        ) from error


def open_log(path: Path, metrics: Sequence[str], kept: int) -> CourseLog | EventLog:
    """The log of a training that goes on behind `kept` steps. Raises as `check_log`."""
    check_log(path)
    return EventLog(path, kept) if in_events(path) else CourseLog(path, metrics, kept)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        raise OutputError(f"can't write {path}: it is no log of a training ({error}); give another path") from error
    except OSError as error:
        raise OutputError(
            f"can't write {path}: {error.strerror or os.strerror(error.errno or 0)}; make room, or give another path "
            "with --log"
        ) from error


class CourseLog:
    """Writes rows behind those of `kept` steps that are there; a context manager. Raises OutputError."""

    def __init__(self, path: Path, metrics: Sequence[str], kept: int = 0) -> None:
        self._path = path
        self._columns = (*STEP, "validation_loss", "accuracy", *metrics)
        self._row: dict[str, object] = {}
        with _writing(path):
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
        with _writing(self._path):
            self._file.close()

    def _write(self) -> None:
        if self._row:
            with _writing(self._path):
                self._lines.writerow({name: "" if value is None else value for name, value in self._row.items()})
            self._row = {}


class EventLog:
    """Writes an event file into a folder, whose events of more than `kept` steps don't count. Raises OutputError."""

    def __init__(self, folder: Path, kept: int = 0) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._folder, self._event, self._step, self._flushed_s = folder, Event, kept, 0.0
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = EventsWriter(os.path.join(folder, "events"), f".{kept}")
            if kept:
                log = SessionLog(status=SessionLog.START)
                self._file.write_event(Event(wall_time=time.time(), step=kept + 1, session_log=log))

    def step(self, *figures: float) -> None:
        """A step's rate and loss."""
        told = dict(zip(STEP, figures, strict=True))
        self._step = int(told["step"])
        self._write({"lr": told["lr"], "loss": told["loss"]})

    def validation(self, found: Mapping[str, Any]) -> None:
        """An epoch's validation, at its last step."""
        self._write({"validation_loss": found["loss"], "accuracy": found["accuracy"], **found["metrics"]})

    def close(self) -> None:
        """Write what is left."""
        with _writing(self._folder):
            self._file.close()

    def _write(self, figures: Mapping[str, float | None]) -> None:
        from tensorboardX.summary import scalar

        now = time.time()
        with _writing(self._folder):
            for name, value in figures.items():
                if value is not None:
                    self._file.write_event(self._event(wall_time=now, step=self._step, summary=scalar(name, value)))
            # an event is in its file after so long, where steps go on
            if now - self._flushed_s >= 1.0:
                self._file.flush()
                self._flushed_s = now


def _rows_before(path: Path, kept: int) -> Iterator[dict[str, str]]:
    """The whole rows of the first `kept` steps in the file of a training that was ended."""
    if not kept or not is_regular(path):
        return
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            number = row.get("step") or ""
            if number.isdecimal() and 0 < int(number) <= kept and None not in (*row, *row.values()):
                yield row
