"""Checkpoints: a folder that keeps the two newest complete ones, even if the process or the power fails.

Each checkpoint is an `.npz` file. It is written under a temporary name, flushed to the disk and renamed, so that a file
named `step-000000120.npz` is complete. It holds `meta` (JSON, as bytes) and an array `state/NAME` for each tensor that
one step hands to the next. A checkpoint counts if the checksum of every array and the schema of `meta` hold; if the
newest one is damaged, the one before it is used. The newest is the one with the largest `serial`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from poetopt.backends.onnxruntime.archive import Archive, opened
from poetopt.backends.onnxruntime.execution import save_arrays
from poetopt.plan.tables import number, told, whole_number
from poetopt.util.errors import ModelError, OutputError, PlanError
from poetopt.util.files import lock_file
from poetopt.util.text import without_remedy

if TYPE_CHECKING:
    from pydantic import BaseModel

    from poetopt.graph import Array

FORMAT = 1
_CHECKED: dict[Path, tuple[tuple[int, ...], Mapping[str, Any]]] = {}
"""Files that were verified: their stat at that time, and their `meta`."""
KEPT = 2
"""Checkpoints that stay in a folder."""
_NAME = re.compile(r"step-(\d{9,})\.npz")
_STATE = "state/"


@dataclass(frozen=True)
class Checkpoint:
    """Readable checkpoint.

    Attributes
    ----------
    path
        Its file.
    meta
        The metadata that `save` got, and the `serial`.
    passed_over
        Newer checkpoints that are damaged, with the fault.
    """

    path: Path
    meta: Mapping[str, Any]
    passed_over: tuple[str, ...] = ()

    def shapes(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return shape and type of each state, by name."""
        with opened(self.path) as archive:
            return {name: archive.header(f"{_STATE}{name}")[:2] for name in _states(archive)}

    def states(self) -> Iterator[tuple[str, Array]]:
        """Yield each state with its name, one at a time."""
        with opened(self.path) as archive:
            for name in _states(archive):
                yield name, archive[f"{_STATE}{name}"]


class _LazyArrays(Mapping[str, "Array"]):
    """Arrays that are fetched as they are written, so that only one of them is in memory."""

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


def save(folder: Path, meta: Mapping[str, object], states: Mapping[str, Array]) -> Path:
    """Write a checkpoint; remove all others but the newest complete one before it.

    Parameters
    ----------
    meta
        Metadata with the fields of `_schema`.
    states
        Arrays by name; each is fetched once.

    Returns
    -------
    Path
        File of the checkpoint.

    Raises
    ------
    OutputError
        If the checkpoint can't be written; the others are then untouched.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _write_error(folder, error) from error
    complete = _scan(folder)[0]
    content = {
        "format": FORMAT,
        "serial": 1 + max([entry["serial"] for entry in complete.values()], default=0),
        **meta,
    }
    path = folder / f"step-{meta['taken']:09d}.npz"
    save_arrays(_LazyArrays(content, states), path)
    # The result of reading it again, without the schema check: pydantic would take 12 MB for that.
    _CHECKED[path] = _fingerprint(path), {"hyperparameters": {}, **json.loads(json.dumps(content))}
    remaining = [path, *(other for other in complete if other != path)][:KEPT]
    try:
        _flush(folder)
        for old in _files(folder) if len(remaining) == KEPT else ():  # damaged files may be all that there is
            if old not in remaining:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise _write_error(folder, error) from error
    return path


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint of a folder, or None if the folder has no checkpoint.

    Raises PlanError if all of them are damaged.
    """
    complete, faults = _scan(folder)
    for path, meta in complete.items():
        return Checkpoint(path, meta, tuple(faults))
    if faults:
        raise PlanError(
            f"{folder}: none of its checkpoints can be read ({'; '.join(faults)}). Remove them and start again without "
            "--resume."
        )
    return None


def of_epoch(folder: Path, epoch: int) -> Checkpoint | None:
    """Return the complete checkpoint that was written at the end of an epoch, or None."""
    for path, meta in _scan(folder)[0].items():
        position = meta.get("position")
        if position is not None and position["epoch"] == epoch and not position["batch"]:
            return Checkpoint(path, meta)
    return None


def _scan(folder: Path) -> tuple[dict[Path, Mapping[str, Any]], list[str]]:
    """Return the metadata of complete checkpoints by path, newest first, and the faults of the others."""
    complete: dict[Path, Mapping[str, Any]] = {}
    faults: list[str] = []
    for path in _files(folder):
        try:
            fingerprint = _fingerprint(path)
            if _CHECKED.get(path, ((),))[0] != fingerprint:
                _CHECKED[path] = fingerprint, _read_verified(path)
            complete[path] = _CHECKED[path][1]
        except ModelError as error:
            fault = without_remedy(str(error).removeprefix(f"{path} ").removeprefix("is "))
            faults.append(f"{path.name}: {fault}")
    return dict(sorted(complete.items(), key=lambda item: -item[1]["serial"])), faults


def _fingerprint(path: Path) -> tuple[int, ...]:
    """Return a fingerprint of the file that changes with each write. Raises ModelError."""
    try:
        stat = os.stat(path)
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror or error}") from error
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep any other training from writing checkpoints into the folder. Raises OutputError if one does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise _write_error(folder, error) from error
    try:
        if not lock_file(descriptor) and _supports_locks(folder):
            raise OutputError(f"{folder}: another training writes its checkpoints there. Give another folder.")
        yield
    finally:
        os.close(descriptor)


def _supports_locks(folder: Path) -> bool:
    """Return whether the file system of the folder supports locks."""
    with suppress(OSError):
        descriptor = os.open(folder / f".lock-{os.getpid()}", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            return lock_file(descriptor)
        finally:
            os.close(descriptor)
            (folder / f".lock-{os.getpid()}").unlink()
    return False


def _read_verified(path: Path) -> Mapping[str, Any]:
    """Return the metadata of a checkpoint after verifying the checksums of its arrays. Raises ModelError."""
    with opened(path) as archive:
        if "meta" not in archive:
            raise ModelError(f"{path} is not a checkpoint of poetopt")
        raw = archive["meta"].tobytes()
        for name in _states(archive):
            for _ in archive.parts(f"{_STATE}{name}"):
                pass
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not a checkpoint of poetopt: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ModelError(f"{path} was written by another version of poetopt")
    return _validate_meta(path, meta)


def _validate_meta(path: Path, meta: object) -> Mapping[str, Any]:
    """Return the metadata of a checkpoint, checked by the schema. Raises ModelError."""
    from pydantic import ValidationError

    try:
        validated = _schema().model_validate(meta)
    except ValidationError as error:
        raise ModelError(f"{path} has invalid metadata: {told(error)}") from error
    fields: Mapping[str, Any] = validated.model_dump(exclude_unset=True)
    return {"serial": 0, "hyperparameters": {}, **fields}


@cache
def _schema() -> type[BaseModel]:
    """Return the schema of a checkpoint's metadata; fields that older versions lack are optional."""
    from pydantic import ConfigDict, Field, create_model

    listed: Any = list
    strict = ConfigDict(strict=True, extra="ignore")
    count, real = whole_number(), Annotated[float, Field(allow_inf_nan=False)]

    def model_of(name: str, **fields: Any) -> Any:
        """Return a model with these fields; a field that is a bare type is required."""
        make: Any = create_model
        return make(name, __config__=strict, **{k: v if isinstance(v, tuple) else (v, ...) for k, v in fields.items()})

    figures: Any = dict[str, real | None]  # type: ignore[valid-type]
    validation: Any = model_of(
        "Validation", epoch=count, loss=real, accuracy=(real | None, None), metrics=(figures, {})
    )
    position = model_of(
        "Position", epoch=count, batch=count, step=count, total=real, losses=listed[real],
        validations=listed[validation], seconds=number(), first=(real | None, None),
    )  # fmt: skip
    course = model_of(
        "Course", order=(str, ""), lr_schedule=(str, ""), seed=(Annotated[int, Field(ge=0)], 0),
        batch=(count, 0), rows=(count | None, None), data=(str | None, None),
        epochs=(count, 0), validation=(str | None, None), augment=(str, ""),
    )  # fmt: skip
    schema: type[BaseModel] = model_of(
        "Said", format=count, serial=(count, 0), taken=count, poetopt=(str, ""), optimizer=(str, ""),
        network=(str | None, None), structure=(str | None, None), content=(str | None, None),
        rule=(str | None, None),
        hyperparameters=(dict[str, real], {}),  # type: ignore[valid-type]
        course=(course | None, None), position=(position | None, None),
    )  # fmt: skip
    return schema


def _states(archive: Archive) -> list[str]:
    return [name.removeprefix(_STATE) for name in archive if name.startswith(_STATE)]


def _files(folder: Path) -> list[Path]:
    """Return the checkpoint files of a folder, newest first."""
    try:
        numbered = [(int(m[1]), name) for name in os.listdir(folder) if (m := _NAME.fullmatch(name))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ModelError(f"can't read the folder {folder}: {error.strerror or error}. Give another folder.") from error
    return [folder / name for _, name in sorted(numbered, reverse=True)]


def _flush(folder: Path) -> None:
    """Wait until the entries of the folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(folder: Path, error: OSError) -> OutputError:
    return OutputError(
        f"can't write checkpoints to {folder}: {error.strerror or error}. Give another folder or free some space."
    )
