"""Figures of results as JSON: each figure is declared once, by its name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import ClassVar


def plain(value: object) -> object:
    """Return a value as plain JSON types; numbers that are not finite become None."""
    if isinstance(value, Figures):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, StrEnum):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def figures(found: object, names: Iterable[str]) -> dict[str, object]:
    """Return the attributes `names` of `found` as plain JSON types; all are None if `found` is None."""
    return {name: None if found is None else plain(getattr(found, name)) for name in names}


class Figures:
    """Base of dataclasses with a JSON object: the fields except `omitted`, and the properties in `derived`."""

    __slots__ = ()
    omitted: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the object that the command line writes with `--json`; numbers that are not finite become None."""
        assert is_dataclass(self)
        names = (field.name for field in fields(self) if field.name not in self.omitted)
        return figures(self, (*names, *self.derived))
