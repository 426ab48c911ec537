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


def overlaid(table: dict[str, Any], base: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the table of the file `path` on top of its base.

    Parameters
    ----------
    table
        Table of the file itself.
    base
        Complete table of the device or file that it is based on.

    Raises
    ------
    DeviceError
        For a figure that is neither a table nor `"4 GiB"` nor a number.
    """
    name = str(base.get("name"))
    figures = table.get("figures", {})
    if not isinstance(figures, dict):
        raise DeviceError(f"{path}: figures: must be tables, as in [figures.ram_bytes]")
    default_source = {"kind": "estimate", "source": f"given in {path.name}, which is based on {name}"}
    inherited = base.get("figures", {})
    changed = {
        figure: {**default_source, **_unit_of(inherited.get(figure)), **_figure_table(figure, entry, path)}
        for figure, entry in figures.items()
    }
    result = {**base, **table, "figures": {**inherited, **changed}}
    if "dma" in table:
        dma = table["dma"] if isinstance(table["dma"], dict) else {"value": table["dma"]}
        result["dma"] = {**default_source, **dma}
    names = [*changed, *(["dma"] if "dma" in table else [])]
    exceptions = f", but for {', '.join(names)}" if names else ""
    result["name"] = table.get("name", path.stem)
    result["description"] = table.get("description", f"as {name}{exceptions}")
    result["notes"] = [f"based on {name}: its figures{exceptions}", *base.get("notes", []), *table.get("notes", [])]
    result["aliases"] = table.get("aliases", [])
    del result["base"]
    return result


def _unit_of(figure: object) -> dict[str, Any]:
    return {"unit": figure["unit"]} if isinstance(figure, dict) and "unit" in figure else {}


def _figure_table(name: str, entry: object, path: Path) -> dict[str, Any]:
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
    raise DeviceError(f'{path}: figures.{name}: {entry!r} is no figure. Write it as "4 GiB", or as a table')


FIRST = ("value", "unit", "kind", "source")
CATALOGUE = Path(__file__).parent / "catalogue"
"""Folder with one TOML file per device; a file that is added is a device."""


def names() -> tuple[str, ...]:
    """Return the names of the catalogue's devices, sorted."""
    return tuple(sorted(path.stem for path in CATALOGUE.glob("*.toml")))


@cache
def aliases() -> Mapping[str, str]:
    """Return other names of the catalogue's devices: alias -> name."""
    by_alias = {}
    for name in names():
        for alias in _read_toml(CATALOGUE / f"{name}.toml").get("aliases", ()):
            by_alias[alias] = name
    return by_alias


def canonical(name: str) -> str | None:
    """Return the catalogue's name for `name` or an alias, in any case; None if there is none."""
    normalized = re.sub(r"[\s_]+", "-", name.strip().lower())
    return normalized if normalized in names() else aliases().get(normalized)


def device(name_or_path: str | os.PathLike[str]) -> Device:
    """Return the device with that name or alias in the catalogue, or the one that a TOML file describes.

    Parameters
    ----------
    name_or_path
        With a suffix (`.toml`) or a directory separator a path; otherwise a name, in any case.

    Raises
    ------
    DeviceError
        For an unknown name (the message has the closest ones), a file that can't be read, and an incomplete or invalid
        description (the message has each fault with its place in the file).
    """
    path = _find_file(name_or_path)
    table = _load_with_base(path)

    from pydantic import ValidationError

    from poetopt.devices.schema import DeviceTable

    try:
        return DeviceTable.model_validate(table).device()
    except ValidationError as error:
        faults = [f"{_at(fault['loc'])}{fault['msg'].removeprefix('Value error, ')}" for fault in error.errors()]
        raise DeviceError(
            f"{path}: not a usable device: {'; '.join(faults)}. Every figure needs value, unit, kind and source. "
            'base = "a72" inherits all that is missing from that device'
        ) from error


def is_path(name_or_path: str | os.PathLike[str]) -> bool:
    """Return whether `device` takes it for the path of a file."""
    text = os.fspath(name_or_path)
    return isinstance(name_or_path, Path) or os.sep in text or bool(Path(text).suffix)


def _find_file(name_or_path: str | os.PathLike[str]) -> Path:
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
        hint = f"Did you mean {' or '.join(close)}?"
    elif kin := _of_its_kind(text):
        hint = f"The catalogue has {', '.join(kin)} of its kind."
    else:
        hint = f"The catalogue has {', '.join(known)}."
    raise DeviceError(
        f"unknown device {text!r}. {hint} `poetopt devices` lists all. Give a TOML file of your own by its path "
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


def _load_with_base(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the table of the file `path` on top of its base. `above` has the files whose base it is."""
    table = _read_toml(path, named_by_file=bool(above))
    if "base" not in table:
        return table
    base = table["base"]
    if not isinstance(base, str) or not base.strip():
        raise DeviceError(f'{path}: base: must be a device\'s name or a file, as in base = "a72"')
    chain = (*above, path)
    try:
        base_path = _find_file(base)
        base_path = base_path if base_path.parent == CATALOGUE else path.parent / base_path
        if base_path.resolve() in [file.resolve() for file in chain]:
            cycle = " -> ".join(str(file) for file in (*chain, base_path))
            raise DeviceError(f"the chain of bases is a circle ({cycle}). Name a device of the catalogue")
        inherited = _load_with_base(base_path, chain)
    except DeviceError as error:
        raise error if "base: " in str(error) else DeviceError(f"{path}: base: {error}") from error
    return overlaid(table, inherited, path)


def _read_toml(path: Path, *, named_by_file: bool = False) -> dict[str, Any]:
    if path.suffix in (".onnx", ".json"):
        raise DeviceError(
            f"{path}: a model, not a device. The order is MODEL --device DEVICE, as in net.onnx --device a72"
        )
    try:
        text = read_text(path, TABLE_BYTES, named_by_file=named_by_file)
    except (OSError, UnicodeDecodeError) as error:
        reason = _describe_read_error(path, error)
        raise DeviceError(
            f"{path}: {reason}. Give the path of a TOML file, or a name that `poetopt devices` lists"
        ) from error
    try:
        return parse_toml(text)
    except ValueError as error:
        raise DeviceError(f"{path}: not valid TOML: {error}. Start from base = 'a72'") from error


def _describe_read_error(path: Path, error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "the device file can't be read: it is not UTF-8 text"
    if not isinstance(error, FileNotFoundError):
        return f"the device file can't be read: {error.strerror}"
    present = [str(file) for file in sorted(path.parent.glob("*.toml"))[:100]]
    close = difflib.get_close_matches(str(path), present, n=2, cutoff=0.5)
    return "no such file" + (f" (did you mean {' or '.join(close)}?)" if close else "")


def _at(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""
