"""Names that nothing has yet."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping


def unique(name: str, taken: Iterable[str], numbers: MutableMapping[str, int] | None = None) -> str:
    """`name`, with a number appended where it is taken.

    numbers
        For those who ask for many: the last number that each name got, where counting goes on.
    """
    taken = taken if isinstance(taken, (set, frozenset, dict)) else set(taken)
    candidate, number = name, 1 if numbers is None else numbers.get(name, 1)
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    if numbers is not None and number > 1:
        numbers[name] = number
    return candidate
