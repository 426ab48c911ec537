"""A device file with a `base`: what it says of its own, over another device's table, before either is checked.

    base = "a72"
    figures.ram_bytes = "4 GiB"

Figures that are inherited keep their kind and source. One that is changed takes what it doesn't say from the base (the
unit), or from here: it is an `estimate`, given in that file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from poetopt.util.errors import DeviceError

_AMOUNT = re.compile(r"\s*([0-9.eE+_-]+)\s*(\S+)\s*\Z")


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
            return {"value": float(match[1]), "unit": match[2]}
    except ValueError:
        pass
    raise DeviceError(f'{path}: figures.{name}: {entry!r} is no figure; write it as "4 GiB", or as a table')
