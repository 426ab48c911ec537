"""The names that somebody who mistyped one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, names: Iterable[str]) -> str:
    """`; closest: this or that`, for the end of a message; empty where no name is near."""
    found = difflib.get_close_matches(name, list(names), n=2)
    return f"; closest: {' or '.join(found)}" if found else ""
