"""A folder with the two newest whole checkpoints, whenever a process or the power ends.

Each is an `.npz` file, written beside, flushed to the disk and renamed: where it is called `step-000000120.npz`, all
of it is there. It holds `meta` (JSON, as bytes) and an array `state/NAME` for each tensor that is carried from step to
step. The checksum of every array is compared, and all that it says held against one schema, before it counts; where the
newest is damaged, the one before it is taken. Newest is what was written last, by the number in its `serial`.
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

if TYPE_CHECKING:
    from pydantic import BaseModel

    from poetopt.graph import Array

FORMAT = 1
_CHECKED: dict[Path, tuple[tuple[int, ...], Mapping[str, Any]]] = {}
"""Files that were found whole, as they were then, and what they say."""
KEPT = 2
_NAME = re.compile(r"step-(\d{9,})\.npz")
_STATE = "state/"


@dataclass(frozen=True)
class Checkpoint:
    """One that can be read.

    path
        Its file.
    meta
        What `save` was given, and its `serial`.
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


def save(folder: Path, meta: Mapping[str, object], states: Mapping[str, Array]) -> Path:
    """Write a checkpoint, and remove all but it and the newest whole one before it; its path.

    meta
        What `_schema` has.
    states
        By name; each is asked for once.

    Raises OutputError where it can't be written: the others are then still there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritten(folder, error) from error
    whole = _sorted(folder)[0]
    said = {"format": FORMAT, "serial": 1 + max([found["serial"] for found in whole.values()], default=0), **meta}
    path = folder / f"step-{meta['taken']:09d}.npz"
    save_arrays(_Lazily(said, states), path)
    # as it would be read, but for the schema, which pydantic would take 12 MB to check
    _CHECKED[path] = _mark(path), {"hyperparameters": {}, **json.loads(json.dumps(said))}
    kept = [path, *(other for other in whole if other != path)][:KEPT]
    try:
        _flush(folder)
        for old in _files(folder) if len(kept) == KEPT else ():  # what is damaged may be all that there is
            if old not in kept:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritten(folder, error) from error
    return path


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a folder; None where it has none at all.

    Raises PlanError where every one is damaged.
    """
    whole, faults = _sorted(folder)
    for path, meta in whole.items():
        return Checkpoint(path, meta, tuple(faults))
    if faults:
        raise PlanError(
            f"{folder}: no checkpoint in it can be read ({'; '.join(faults)}); remove them, and begin "
            "anew without --resume"
        )
    return None


def of_epoch(folder: Path, epoch: int) -> Checkpoint | None:
    """The whole checkpoint of a folder that was made when so many epochs were over; None where there is none."""
    for path, meta in _sorted(folder)[0].items():
        position = meta.get("position")
        if position is not None and position["epoch"] == epoch and not position["batch"]:
            return Checkpoint(path, meta)
    return None


def _sorted(folder: Path) -> tuple[dict[Path, Mapping[str, Any]], list[str]]:
    """The whole checkpoints of a folder with what they say, the newest first; and what is wrong with the others."""
    found: dict[Path, Mapping[str, Any]] = {}
    faults: list[str] = []
    for path in _files(folder):
        try:
            mark = _mark(path)
            if _CHECKED.get(path, ((),))[0] != mark:
                _CHECKED[path] = mark, _whole(path)
            found[path] = _CHECKED[path][1]
        except ModelError as error:
            fault = str(error).removeprefix(f"{path} ").removeprefix("is ").partition(";")[0]
            faults.append(f"{path.name}: {fault}")
    return dict(sorted(found.items(), key=lambda item: -item[1]["serial"])), faults


def _mark(path: Path) -> tuple[int, ...]:
    """Gives what changes where a file is written to. Raises ModelError."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror or error}") from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Let no other training write checkpoints into the folder meanwhile. Raises OutputError where one does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise _unwritten(folder, error) from error
    try:
        if not lock_file(descriptor) and _locks(folder):
            raise OutputError(f"{folder}: another training writes its checkpoints there; give another folder")
        yield
    finally:
        os.close(descriptor)


def _locks(folder: Path) -> bool:
    """Says whether files can be locked there at all."""
    with suppress(OSError):
        descriptor = os.open(folder / f".lock-{os.getpid()}", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            return lock_file(descriptor)
        finally:
            os.close(descriptor)
            (folder / f".lock-{os.getpid()}").unlink()
    return False


def _whole(path: Path) -> Mapping[str, Any]:
    """Gives what a checkpoint says, once each of its arrays has its checksum. Raises ModelError."""
    with opened(path) as archive:
        if "meta" not in archive:
            raise ModelError(f"{path} is no checkpoint of poetopt")
        raw = archive["meta"].tobytes()
        for name in _states(archive):
            for _ in archive.parts(f"{_STATE}{name}"):
                pass
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no checkpoint of poetopt: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ModelError(f"{path} is of another version of poetopt")
    return _valid(path, meta)


def _valid(path: Path, meta: object) -> Mapping[str, Any]:
    """Gives what a checkpoint says, as the schema has it. Raises ModelError."""
    from pydantic import ValidationError

    try:
        said = _schema().model_validate(meta)
    except ValidationError as error:
        raise ModelError(f"{path} says what no training does: {told(error)}") from error
    known: Mapping[str, Any] = said.model_dump(exclude_unset=True)
    return {"serial": 0, "hyperparameters": {}, **known}


@cache
def _schema() -> type[BaseModel]:
    """All that a checkpoint may say; what older ones didn't know is optional."""
    from pydantic import ConfigDict, Field, create_model

    listed: Any = list
    strict = ConfigDict(strict=True, extra="ignore")
    count, real = whole_number(), Annotated[float, Field(allow_inf_nan=False)]

    def of(name: str, **fields: Any) -> Any:
        """A model of these fields; those given as types must be there."""
        make: Any = create_model
        return make(name, __config__=strict, **{k: v if isinstance(v, tuple) else (v, ...) for k, v in fields.items()})

    figures: Any = dict[str, real | None]  # type: ignore[valid-type]
    validation: Any = of("Validation", epoch=count, loss=real, accuracy=(real | None, None), metrics=(figures, {}))
    position = of(
        "Position", epoch=count, batch=count, step=count, total=real, losses=listed[real],
        validations=listed[validation], seconds=number(), first=(real | None, None),
    )  # fmt: skip
    course = of(
        "Course", order=(str, ""), lr_schedule=(str, ""), seed=(Annotated[int, Field(ge=0)], 0),
        batch=(count, 0), rows=(count | None, None), data=(str | None, None),
        epochs=(count, 0), validation=(str | None, None), augment=(str, ""),
    )  # fmt: skip
    made: type[BaseModel] = of(
        "Said", format=count, serial=(count, 0), taken=count, poetopt=(str, ""), optimizer=(str, ""),
        network=(str | None, None), structure=(str | None, None), content=(str | None, None),
        rule=(str | None, None),
        hyperparameters=(dict[str, real], {}),  # type: ignore[valid-type]
        course=(course | None, None), position=(position | None, None),
    )  # fmt: skip
    return made


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
    """Wait until the folder's entries are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritten(folder: Path, error: OSError) -> OutputError:
    return OutputError(
        f"can't write checkpoints to {folder}: {error.strerror or error}; name another folder, or make room"
    )
