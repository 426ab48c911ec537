"""The report in a plan file, which anybody may have written: each field is checked, and each complaint says where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from poetopt.errors import PlanError
from poetopt.plan.text import LARGEST, LARGEST_NUMBER

T = TypeVar("T")


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

    def texts(self, key: str) -> Iterator[str]:
        for value in self.rows(key):
            yield value if isinstance(value, str) else self.refuse(key, "a list of texts")
