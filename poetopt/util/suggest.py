"""The names that somebody who mistyped one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(name: str, names: Iterable[str], most: int = 2) -> list[str]:
    """The names that hold `name` or begin like it, then those that are spelled alike, in any case."""
    known = {known.lower(): known for known in names}
    asked = name.strip().lower()
    if asked in known:
        return [known[asked]]
    holding = [key for key in known if len(asked) > 1 and (asked in key or (key in asked and len(key) > 1))]
    alike = difflib.get_close_matches(asked, known, n=most)
    return [known[key] for key in dict.fromkeys((*(key for key in alike if key in holding), *holding, *alike))][:most]


def closest(name: str, names: Iterable[str]) -> str:
    """`; closest: this or that`, for the end of a message; empty where no name is near."""
    found = near(name, names)
    return f"; closest: {' or '.join(found)}" if found else ""
