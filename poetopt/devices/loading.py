"""Devices by name, by alias or by file."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from poetopt.devices.model import Device
from poetopt.util.errors import DeviceError
from poetopt.util.files import TABLE_BYTES, parse_toml, read_text
from poetopt.util.numbers import read_number
from poetopt.util.text import near

_AMOUNT = re.compile(r"\s*([0-9.eE+-]+)\s*(\S+)\s*\Z")


def overlaid(own: dict[str, Any], base: dict[str, Any], path: Path) -> dict[str, Any]:
    """The whole table of the file `path`, which says `own` over the whole table `base`.

    Raises DeviceError for a figure that is neither a table nor `"4 GiB"` nor a number.
    """
    name = str(base.get("name"))
    figures = own.get("figures", {})
    if not isinstance(figures, dict):
        raise DeviceError(f"{path}: figures: must be tables, as in [figures.ram_bytes]")
    said = {"kind": "estimate", "source": f"given in {path.name}, which is based on {name}"}
    inherited = base.get("figures", {})
    changed = {
        figure: {**said, **_unit_of(inherited.get(figure)), **_table(figure, entry, path)}
        for figure, entry in figures.items()
    }
    found = {**base, **own, "figures": {**inherited, **changed}}
    if "dma" in own:
        dma = own["dma"] if isinstance(own["dma"], dict) else {"value": own["dma"]}
        found["dma"] = {**said, **dma}
    names = [*changed, *(["dma"] if "dma" in own else [])]
    but = f", but for {', '.join(names)}" if names else ""
    found["name"] = own.get("name", path.stem)
    found["description"] = own.get("description", f"as {name}{but}")
    found["notes"] = [f"based on {name}: its figures{but}", *base.get("notes", []), *own.get("notes", [])]
    found["aliases"] = own.get("aliases", [])
    del found["base"]
    return found


def _unit_of(figure: object) -> dict[str, Any]:
    return {"unit": figure["unit"]} if isinstance(figure, dict) and "unit" in figure else {}


def _table(name: str, entry: object, path: Path) -> dict[str, Any]:
    if isinstance(entry, dict):
        return entry
    if isinstance(entry, int | float) and not isinstance(entry, bool):
        return {"value": entry}
    match = _AMOUNT.match(entry) if isinstance(entry, str) else None
    try:
        if match is not None:
            return {"value": read_number(match[1]), "unit": match[2]}
    except ValueError:
        pass
    raise DeviceError(f'{path}: figures.{name}: {entry!r} is no figure; write it as "4 GiB", or as a table')


FIRST = ("value", "unit", "kind", "source")
CATALOGUE = Path(__file__).parent / "catalogue"
"""One TOML file a device; a file put there is a device."""


def names() -> tuple[str, ...]:
    """Names of the catalogue's devices, sorted."""
    return tuple(sorted(path.stem for path in CATALOGUE.glob("*.toml")))


@cache
def aliases() -> Mapping[str, str]:
    """Other names of the catalogue's devices, as their files list them: alias -> name."""
    found = {}
    for name in names():
        for alias in _toml(CATALOGUE / f"{name}.toml").get("aliases", ()):
            found[alias] = name
    return found


def canonical(name: str) -> str | None:
    """The name in the catalogue that `name` or an alias stands for, in any case; None where there is none."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    return plain if plain in names() else aliases().get(plain)


def device(name_or_path: str | os.PathLike[str]) -> Device:
    """The device of that name or alias in the catalogue, or the one that a TOML file of yours describes.

    What has a suffix (`.toml`) or holds a directory separator is a path; anything else is a name, in any case.

    Raises `DeviceError` for an unknown name (with the closest ones), a file that can't be read, and a
    description that is incomplete or nonsense (each fault with its place in the file).
    """
    path = _place_of(name_or_path)
    table = _whole(path)

    from pydantic import ValidationError

    from poetopt.devices.schema import DeviceTable

    try:
        return DeviceTable.model_validate(table).device()
    except ValidationError as error:
        faults = [f"{_place(fault['loc'])}{fault['msg'].removeprefix('Value error, ')}" for fault in error.errors()]
        raise DeviceError(
            f"{path}: not a usable device: {'; '.join(faults)}. Every figure needs value, unit, kind and source; "
            'base = "a72" takes what is missing from there'
        ) from error


def is_path(name_or_path: str | os.PathLike[str]) -> bool:
    """Says whether `device` takes it for a file's path."""
    text = os.fspath(name_or_path)
    return isinstance(name_or_path, Path) or os.sep in text or bool(Path(text).suffix)


def _place_of(name_or_path: str | os.PathLike[str]) -> Path:
    text = os.fspath(name_or_path)
    if is_path(name_or_path):
        return Path(text)
    name = canonical(text)
    if name is not None:
        return CATALOGUE / f"{name}.toml"
    known = names()
    beside = [f"./{text}.toml"] if Path(f"{text}.toml").exists() else []
    meant = [one for one in near(text, (*known, *aliases()), most=3) if _is_spelled_like(text, one)]
    close = [*beside, *dict.fromkeys(aliases().get(name, name) for name in meant)]
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    elif kin := _of_its_kind(text):
        hint = f"it isn't in the catalogue, which has {', '.join(kin)} of its kind;"
    else:
        hint = f"The catalogue has {', '.join(known)};"
    raise DeviceError(
        f"unknown device {text!r}: {hint} `poetopt devices` lists all; a TOML file of your own is given by its path "
        "(`./my-board.toml`)"
    )


def _words(name: str) -> set[str]:
    """Return the words of a device's name, without numbers: `pi` and `zero` of `Pi Zero 2`."""
    return set(re.findall(r"[a-z]+", name.lower()))


def _is_spelled_like(text: str, name: str) -> bool:
    """Return whether each word of `text` is one of the name's, or begins one, or is a slip of the pen."""
    its = _words(name)
    return all(
        any(one.startswith(word) for one in its) or difflib.get_close_matches(word, its, cutoff=0.75)
        for word in _words(text)
    )


def _of_its_kind(text: str) -> list[str]:
    """Return the devices that share a word with `text`, by name or alias."""
    wanted = {word for word in _words(text) if len(word) > 1}
    found = (aliases().get(name, name) for name in (*names(), *aliases()) if wanted & _words(name))
    return sorted(set(found))


def _whole(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The table in the file `path`, over that of its base. `above` are the files whose base it is."""
    table = _toml(path, named_by_file=bool(above))
    if "base" not in table:
        return table
    base = table["base"]
    if not isinstance(base, str) or not base.strip():
        raise DeviceError(f'{path}: base: must be a device\'s name or a file, as in base = "a72"')
    chain = (*above, path)
    try:
        place = _place_of(base)
        place = place if place.parent == CATALOGUE else path.parent / place
        if place.resolve() in [file.resolve() for file in chain]:
            ring = " -> ".join(str(file) for file in (*chain, place))
            raise DeviceError(f"it leads back to where it began ({ring}); name a device of the catalogue")
        inherited = _whole(place, chain)
    except DeviceError as error:
        raise error if "base: " in str(error) else DeviceError(f"{path}: base: {error}") from error
    return overlaid(table, inherited, path)


def _toml(path: Path, *, named_by_file: bool = False) -> dict[str, Any]:
    if path.suffix in (".onnx", ".json"):
        raise DeviceError(
            f"{path}: a model, no device; the order is MODEL --device DEVICE, as in net.onnx --device a72"
        )
    try:
        text = read_text(path, TABLE_BYTES, named_by_file=named_by_file)
    except (OSError, UnicodeDecodeError) as error:
        reason = _unreadable(path, error)
        raise DeviceError(
            f"{path}: {reason}. Give the path of a TOML file, or a name that `poetopt devices` lists"
        ) from error
    try:
        return parse_toml(text)
    except ValueError as error:
        raise DeviceError(f"{path}: not valid TOML: {error}. Start from base = 'a72'") from error


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "the device file can't be read: it is not UTF-8 text"
    if not isinstance(error, FileNotFoundError):
        return f"the device file can't be read: {error.strerror}"
    present = [str(file) for file in sorted(path.parent.glob("*.toml"))[:100]]
    close = difflib.get_close_matches(str(path), present, n=2, cutoff=0.5)
    return "no such file" + (f" (did you mean {' or '.join(close)}?)" if close else "")


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""
