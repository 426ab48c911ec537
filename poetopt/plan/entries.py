"""Reading JSON that someone else may have written: each field is checked, and each complaint says where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from poetopt.errors import PlanError

T = TypeVar("T")

LARGEST = 2**53
"""No whole number may exceed it: JSON readers agree up to there, and sums stay within 64 bits."""
LARGEST_NUMBER = 1e300
"""No other number may exceed it: sums of seconds and joules stay finite."""


def parsed(text: str) -> object:
    """The JSON value in `text`, whose numbers are all finite. Raises PlanError."""

    def refuse(constant: str) -> NoReturn:
        raise PlanError(f"it holds {constant}, which is no number; the file is damaged")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"it is not a whole plan file: {error.msg} at line {error.lineno}, column {error.colno}; "
            "`poetopt solve MODEL --device DEVICE -o PLAN` writes one"
        ) from error
    except ValueError as error:
        raise PlanError("it holds a number of thousands of digits; the file is damaged") from error
    except RecursionError as error:
        raise PlanError("it is not a plan file: it is nested too deeply") from error


class Entry:
    """An object, read key by key. What is missing or of the wrong kind is a PlanError."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, dict):
            raise PlanError(f"{where} is not an object; the file is damaged")
        self.data: dict[str, object] = data
        self.where = where

    def refuse(self, key: str, kind: str) -> NoReturn:
        raise PlanError(f'{self.where}: "{key}" must be {kind}; the file is damaged')

    def value(self, key: str) -> object:
        if key not in self.data:
            raise PlanError(f'{self.where} has no "{key}"; the file is damaged')
        return self.data[key]

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        return None if self.value(key) is None else read(key)

    def text(self, key: str) -> str:
        value = self.value(key)
        return value if isinstance(value, str) else self.refuse(key, "a text")

    def flag(self, key: str) -> bool:
        value = self.value(key)
        return value if isinstance(value, bool) else self.refuse(key, "true or false")

    def whole(self, key: str) -> int:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
            self.refuse(key, "a whole number of at least 0")
        return value

    def number(self, key: str) -> float:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST_NUMBER:
            self.refuse(key, "a number of at least 0")
        return float(value)

    def rows(self, key: str) -> list[object]:
        value = self.value(key)
        return value if isinstance(value, list) else self.refuse(key, "a list")

    def wholes(self, key: str) -> Iterator[int]:
        for value in self.rows(key):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
                self.refuse(key, "a list of whole numbers of at least 0")
            yield value

    def texts(self, key: str) -> Iterator[str]:
        for value in self.rows(key):
            yield value if isinstance(value, str) else self.refuse(key, "a list of texts")

    def indices(self, key: str, limit: int) -> tuple[int, ...]:
        found = tuple(self.wholes(key))
        if any(i >= limit for i in found) or list(found) != sorted(set(found)):
            self.refuse(key, f"ascending places in a table of {limit}")
        return found

    def mapping(self, key: str) -> dict[str, object]:
        return self.entry(key).data

    def entry(self, key: str) -> Entry:
        return Entry(self.value(key), f'"{key}"')

    def entries(self, key: str) -> Iterator[Entry]:
        for index, value in enumerate(self.rows(key)):
            yield Entry(value, f"{key}[{index}]")
