"""A folder with the two newest checkpoints: whole files, whenever a process or the power ends.

Each is an `.npz` file, written beside, flushed to the disk and renamed: where it is called `step-000000120.npz`, all
of it is there. It holds `meta` (JSON, as bytes) and an array `state/NAME` for each tensor that is carried from step to
step. The checksum of every array is compared before any of them counts; where the newest is damaged by the storage, the
one before it is taken.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.ort.archive import Archive, opened
from poetopt.backends.ort.execution import save_arrays
from poetopt.errors import ModelError, OutputError, PlanError
from poetopt.files import lock_file

if TYPE_CHECKING:
    from poetopt.graph import Array

FORMAT = 1
KEPT = 2
_NAME = re.compile(r"step-(\d{9,})\.npz")
_STATE = "state/"


@dataclass(frozen=True)
class Checkpoint:
    """One that can be read.

    path
        Its file.
    meta
        What `save` was given.
    passed_over
        Newer ones that are damaged, and how.
    """

    path: Path
    meta: Mapping[str, Any]
    passed_over: tuple[str, ...] = ()

    def shapes(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and type of each state, by name."""
        with opened(self.path) as archive:
            return {name: archive.header(f"{_STATE}{name}")[:2] for name in _states(archive)}

    def states(self) -> Iterator[tuple[str, Array]]:
        """Each state by its name, one after the other."""
        with opened(self.path) as archive:
            for name in _states(archive):
                yield name, archive[f"{_STATE}{name}"]


class _Lazily(Mapping[str, "Array"]):
    """Arrays that are fetched when they are written, so that no two of them need be in memory."""

    def __init__(self, meta: Mapping[str, object], states: Mapping[str, Array]) -> None:
        self._meta = np.frombuffer(json.dumps(meta, allow_nan=False).encode(), np.uint8)
        self._states = states

    def __getitem__(self, name: str) -> Array:
        return self._meta if name == "meta" else self._states[name.removeprefix(_STATE)]

    def __iter__(self) -> Iterator[str]:
        yield "meta"
        yield from (f"{_STATE}{name}" for name in self._states)

    def __len__(self) -> int:
        return 1 + len(self._states)


def save(folder: Path, step: int, meta: Mapping[str, object], states: Mapping[str, Array]) -> Path:
    """Write a checkpoint, and remove all but the newest two; its path.

    meta
        What JSON can say.
    states
        By name; each is asked for once.

    Raises OutputError where it can't be written: the others are then still there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritten(folder, error) from error
    path = folder / f"step-{step:09d}.npz"
    save_arrays(_Lazily({"format": FORMAT, **meta}, states), path)
    try:
        _flush(folder)
        for old in _files(folder)[KEPT:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritten(folder, error) from error
    return path


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a folder; None where it has none at all.

    Raises PlanError where every one is damaged.
    """
    faults: list[str] = []
    for path in _files(folder):
        try:
            return Checkpoint(path, _whole(path), tuple(faults))
        except ModelError as error:
            fault = str(error).removeprefix(f"{path} ").removeprefix("is ").partition(";")[0]
            faults.append(f"{path.name}: {fault}")
    if faults:
        raise PlanError(
            f"{folder}: no checkpoint in it can be read ({'; '.join(faults)}); remove them, and begin "
            "anew without --resume"
        )
    return None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Let no other training write checkpoints into the folder meanwhile. Raises OutputError where one does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise _unwritten(folder, error) from error
    try:
        if not lock_file(descriptor) and _locks(folder):
            raise OutputError(f"{folder}: another training writes its checkpoints there; give another folder")
        yield
    finally:
        os.close(descriptor)


def _locks(folder: Path) -> bool:
    """Whether files can be locked there at all."""
    with suppress(OSError):
        descriptor = os.open(folder / f".lock-{os.getpid()}", os.O_CREAT | os.O_RDWR, 0o666)
        try:
            return lock_file(descriptor)
        finally:
            os.close(descriptor)
            (folder / f".lock-{os.getpid()}").unlink()
    return False


def _whole(path: Path) -> Mapping[str, Any]:
    """What a checkpoint says, once each of its arrays has its checksum. Raises ModelError."""
    with opened(path) as archive:
        if "meta" not in archive:
            raise ModelError(f"{path} is no checkpoint of poetopt")
        raw = archive["meta"].tobytes()
        for name in _states(archive):
            for _ in archive.parts(f"{_STATE}{name}"):
                pass
    try:
        meta = json.loads(raw)
    except ValueError as error:
        raise ModelError(f"{path} is no checkpoint of poetopt: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ModelError(f"{path} is of another version of poetopt")
    return meta


def _states(archive: Archive) -> list[str]:
    return [name.removeprefix(_STATE) for name in archive if name.startswith(_STATE)]


def _files(folder: Path) -> list[Path]:
    """The newest first."""
    try:
        found = [(int(m[1]), name) for name in os.listdir(folder) if (m := _NAME.fullmatch(name))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ModelError(f"can't read the folder {folder}: {error.strerror or error}; name another") from error
    return [folder / name for _, name in sorted(found, reverse=True)]


def _flush(folder: Path) -> None:
    """Wait until the folder's entries are on the disk, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritten(folder: Path, error: OSError) -> OutputError:
    return OutputError(
        f"can't write checkpoints to {folder}: {error.strerror or error}; name another folder, or make room"
    )
