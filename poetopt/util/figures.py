"""Figures of an answer as JSON has them: each is declared once, by its name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import ClassVar


def plain(value: object) -> object:
    """A value as JSON has it; a number that it has no word for is null."""
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
    """The attributes of those names as JSON has them; all are null where nothing was found."""
    return {name: None if found is None else plain(getattr(found, name)) for name in names}


class Figures:
    """A dataclass that has a JSON object: its fields but for `omitted`, and the properties named in `derived`."""

    __slots__ = ()
    omitted: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, object]:
        """The object that the command line writes with `--json`: plain values; what JSON has no word for is null."""
        assert is_dataclass(self)
        names = (field.name for field in fields(self) if field.name not in self.omitted)
        return figures(self, (*names, *self.derived))
