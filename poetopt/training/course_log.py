"""Log of a training: a CSV file with one row a step, or a folder of TensorBoard event files.

| column | content |
|---|---|
| epoch, step | both from 1 |
| lr, loss | the learning rate of the step, and the loss of its batch before the update |
| seconds | since training began, over all its processes |
| validation_loss, accuracy, ... | in the last row of a validated epoch; one column for each metric |

A resumed training keeps the rows up to its checkpoint. Event files have a scalar for each column but `epoch`, `step`
and `seconds`; TensorBoard ignores events of steps that a resumed training repeats.
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
    """Return whether the path of `--log` asks for event files: a folder, or a name without a suffix."""
    return path.is_dir() or not path.suffix


def check_log(path: Path) -> None:
    """Raise OutputError if the log can't be written, BackendUnavailableError if event files have no writer."""
    if not in_events(path):
        check_writable(path)
        return
    check_folder(path)
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(
            "event files need tensorboardX, which is not installed. Install it with: pip install "
            "'poetopt[tensorboard]', or give --log FILE.csv."
        ) from error


def open_log(path: Path, metrics: Sequence[str], kept_steps: int) -> CourseLog | EventLog:
    """Open the log of a training that has `kept_steps` steps behind it. Raises like `check_log`."""
    check_log(path)
    return EventLog(path, kept_steps) if in_events(path) else CourseLog(path, metrics, kept_steps)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        raise OutputError(f"can't write {path}: it is not a training log ({error}). Give another path.") from error
    except OSError as error:
        raise OutputError(
            f"can't write {path}: {error.strerror or os.strerror(error.errno or 0)}. Free some space, or give another "
            "path with --log."
        ) from error


class CourseLog:
    """CSV log; keeps the rows of the first `kept_steps` steps that the file has. Raises OutputError."""

    def __init__(self, path: Path, metrics: Sequence[str], kept_steps: int = 0) -> None:
        self._path = path
        self._columns = (*STEP, "validation_loss", "accuracy", *metrics)
        self._row: dict[str, object] = {}
        with _writing(path):
            rows = list(_rows_before(path, kept_steps))
            self._file: IO[str] = path.open("w", encoding="utf-8", newline="", buffering=1)
            self._lines = csv.DictWriter(self._file, self._columns, restval="", extrasaction="ignore")
            self._lines.writeheader()
            self._lines.writerows(rows)

    def step(self, *figures: float) -> None:
        """Add the row of a step; it stays open until the validation of its epoch."""
        self._write()
        self._row = dict(zip(STEP, figures, strict=True))

    def validation(self, evaluation: Mapping[str, Any]) -> None:
        """Add the validation of an epoch to its last row."""
        if not self._row:  # the epoch ended in an earlier process
            return
        self._row |= {
            "validation_loss": evaluation["loss"],
            "accuracy": evaluation["accuracy"],
            **evaluation["metrics"],
        }
        self._write()

    def close(self) -> None:
        """Write the open row and close the file."""
        self._write()
        with _writing(self._path):
            self._file.close()

    def _write(self) -> None:
        if self._row:
            with _writing(self._path):
                self._lines.writerow({name: "" if value is None else value for name, value in self._row.items()})
            self._row = {}


class EventLog:
    """Event file in a folder; TensorBoard drops older events of more than `kept_steps` steps. Raises OutputError."""

    def __init__(self, folder: Path, kept_steps: int = 0) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._folder, self._event, self._step, self._flushed_s = folder, Event, kept_steps, 0.0
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = EventsWriter(os.path.join(folder, "events"), f".{kept_steps}")
            if kept_steps:
                log = SessionLog(status=SessionLog.START)
                self._file.write_event(Event(wall_time=time.time(), step=kept_steps + 1, session_log=log))

    def step(self, *figures: float) -> None:
        """Write learning rate and loss of a step."""
        by_column = dict(zip(STEP, figures, strict=True))
        self._step = int(by_column["step"])
        self._write({"lr": by_column["lr"], "loss": by_column["loss"]})

    def validation(self, evaluation: Mapping[str, Any]) -> None:
        """Write the validation of an epoch, at its last step."""
        self._write(
            {"validation_loss": evaluation["loss"], "accuracy": evaluation["accuracy"], **evaluation["metrics"]}
        )

    def close(self) -> None:
        """Close the file."""
        with _writing(self._folder):
            self._file.close()

    def _write(self, figures: Mapping[str, float | None]) -> None:
        from tensorboardX.summary import scalar

        now = time.time()
        with _writing(self._folder):
            for name, value in figures.items():
                if value is not None:
                    self._file.write_event(self._event(wall_time=now, step=self._step, summary=scalar(name, value)))
            # While steps go on, events reach the file within a second.
            if now - self._flushed_s >= 1.0:
                self._file.flush()
                self._flushed_s = now


def _rows_before(path: Path, kept_steps: int) -> Iterator[dict[str, str]]:
    """Yield the complete rows of the first `kept_steps` steps in an existing log."""
    if not kept_steps or not is_regular(path):
        return
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            number = row.get("step") or ""
            if number.isdecimal() and 0 < int(number) <= kept_steps and None not in (*row, *row.values()):
                yield row
