"""Names that nothing has yet."""

from __future__ import annotations

from collections.abc import Iterable


def unique(name: str, taken: Iterable[str]) -> str:
    """`name`, with a number appended where it is taken."""
    taken = taken if isinstance(taken, (set, frozenset, dict)) else set(taken)
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
