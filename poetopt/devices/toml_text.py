"""A device's table as the text of a TOML file, to start a file of one's own from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

FIRST = ("value", "unit", "kind", "source")
HEAD = """\
# The figures of {name}, to start a device of your own from: --device ./board.toml
# Where only some are others, a short file does, of base = "{name}" and lines such as figures.ram_bytes = "512 MiB"
"""


def toml_text(table: Mapping[str, Any]) -> str:
    """The table as TOML; `poetopt.devices.loading.device` reads the same device from it."""
    lines = [HEAD.format(name=table["name"])]
    lines += [f"{key} = {_value(table[key])}" for key in ("name", "description")]
    if "runtime" in table:
        lines.append(f"runtime = {_value(table['runtime'])}")
    if table.get("notes"):
        lines += ["notes = [", *(f"    {_value(note)}," for note in table["notes"]), "]"]
    lines += _section("dma", table["dma"])
    for name, figure in table["figures"].items():
        lines += _section(f"figures.{name}", figure)
    return "\n".join(lines)


def _section(name: str, table: Mapping[str, Any]) -> list[str]:
    return ["", f"[{name}]", *(f"{key} = {_value(table[key])}" for key in FIRST if key in table)]


def _value(value: object) -> str:
    # JSON's strings, numbers and booleans are TOML's.
    return json.dumps(value, ensure_ascii=False)
