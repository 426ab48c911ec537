"""What is wrong with a plan file, in words: the first of pydantic's complaints, with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

Place = tuple[int | str, ...]

_OBJECTS = ("model_type", "model_attributes_type", "dict_type")
_KINDS = {
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "float_type": "a number of at least 0",
    "finite_number": "a number of at least 0",
}
"""What a value must be, by the complaint; all others are about whole numbers, or say it themselves."""


def told(error: ValidationError) -> str:
    """The first thing that is wrong, and where it stands."""
    first = error.errors(include_url=False, include_input=False)[0]
    place, what = first["loc"], first["type"]
    if what in _OBJECTS:
        return f"{_where(place)} is not an object; the file is damaged"
    if what == "missing":
        return f'{_where(place[:-1])} has no "{place[-1]}"; the file is damaged'
    if what == "extra_forbidden":
        return f'{_where(place[:-1])}: "{place[-1]}" is nothing that this version knows; a newer poetopt may read it'
    listed = isinstance(place[-1], int)  # a value in a list: the list is told
    if listed:
        place = place[:-1]
    kind = f"a list of {_kind(first).removeprefix('a ')}s" if listed else _kind(first)
    kind = kind.replace("number of at least 0s", "numbers of at least 0")
    return f'{_where(place[:-1])}: "{place[-1]}" must be {kind}; the file is damaged'


def _kind(error: ErrorDetails) -> str:
    what, bounds = error["type"], error.get("ctx", {})
    if what in _KINDS:
        return _KINDS[what]
    if what == "enum":
        return f"one of {bounds['expected']}"
    if isinstance(bounds.get("ge", bounds.get("le")), float):
        return _KINDS["float_type"]
    return "a whole number of at least 0"


def _where(place: Place) -> str:
    """The object at `place`: the file, one of its parts, or a row of a table."""
    if not place:
        return "the plan file"
    if len(place) == 1:
        return f'"{place[0]}"'
    return f"{place[0]}[{place[1]}]" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place[2:])
