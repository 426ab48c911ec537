"""Devices by name or by file."""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path

from poetopt.devices.model import Device
from poetopt.errors import DeviceError

CATALOGUE = Path(__file__).parent / "catalogue"
"""One TOML file a device; a file put there is a device."""


def names() -> tuple[str, ...]:
    """Names of the catalogue's devices, sorted."""
    return tuple(sorted(path.stem for path in CATALOGUE.glob("*.toml")))


def device(name_or_path: str | os.PathLike[str]) -> Device:
    """The device of that name in the catalogue, or the one that a TOML file of yours describes.

    What ends in `.toml` or holds a directory separator is a path; anything else is a name, in any case.

    Raises `DeviceError` for an unknown name (with the closest ones), a file that can't be read, and a
    description that is incomplete or nonsense (each fault with its place in the file).
    """
    text = os.fspath(name_or_path)
    if is_path(name_or_path):
        return _read(Path(text))
    known = names()
    if text.lower() in known:
        return _read(CATALOGUE / f"{text.lower()}.toml")
    close = difflib.get_close_matches(text.lower(), known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise DeviceError(
        f"unknown device {text!r}: {hint}The catalogue has {', '.join(known)}; "
        "a TOML file of your own is given by its path (`./my-board.toml`)"
    )


def is_path(name_or_path: str | os.PathLike[str]) -> bool:
    """Whether `device` takes it for a file's path."""
    text = os.fspath(name_or_path)
    return text.endswith(".toml") or os.sep in text or isinstance(name_or_path, Path)


def _read(path: Path) -> Device:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DeviceError(
            f"{path}: the device file can't be read: {reason}. "
            f"Give the path of a TOML file, or a name of the catalogue ({', '.join(names())})"
        ) from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeviceError(f"{path}: not valid TOML: {error}. Compare with a file of the catalogue") from error

    from pydantic import ValidationError

    from poetopt.devices.schema import DeviceTable

    try:
        return DeviceTable.model_validate(table).device()
    except ValidationError as error:
        faults = [f"{_place(fault['loc'])}{_reason(fault['msg'])}" for fault in error.errors()]
        raise DeviceError(
            f"{path}: not a usable device: {'; '.join(faults)}. Every figure needs value, unit, kind and source"
        ) from error


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""


def _reason(message: str) -> str:
    return message.removeprefix("Value error, ")
