"""One test for all rows of a table: where its set-up, and collecting it, would take longer than what it asserts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., None]


def each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Decorates a test that is called with every row as its argument `names`, and fails with all rows that do."""
    wanted = (names,) if isinstance(names, str) else names
    table = [(row,) if isinstance(names, str) else tuple(row) for row in rows]

    def decorated(test: Test) -> Test:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            wrong: list[tuple[str, Exception]] = []
            for row in table:
                try:
                    test(**fixtures, **dict(zip(wanted, row, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
                    said = ", ".join(str(getattr(value, "name", value)) for value in row)
                    wrong.append((f"{said}: {error!r}", error if isinstance(error, Exception) else Exception(error)))
            if wrong:
                raise AssertionError("\n".join(told for told, _ in wrong)) from wrong[0][1]

        signature = inspect.signature(test)
        kept = [parameter for parameter in signature.parameters.values() if parameter.name not in wanted]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorated
