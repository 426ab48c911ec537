"""How scopes are spelled: `depth:D`, `needed`, `forward`, `full` in options, `depth<=D` in results."""

from __future__ import annotations

import math

from poetopt.errors import FormulationError

NEEDED = "needed"
"""Between the depths and `forward`: a stage recomputes what its own operator needs, where that beats paging."""


def scope_depth(scope: str) -> float:
    """D of `depth:D`, infinity of `needed`, `forward`, `full`. Raises FormulationError for a scope of another form."""
    if scope in (NEEDED, "forward", "full"):
        return math.inf
    prefix, _, digits = scope.partition(":")
    if prefix != "depth" or not digits.isdecimal() or int(digits) < 1:
        raise FormulationError(f"unknown scope '{scope}': say auto, depth:D (D >= 1), needed, forward or full")
    return int(digits)


def scope_name(scope: str) -> str:
    """How results call a scope: `depth:8` is `depth<=8`."""
    return scope.replace("depth:", "depth<=")


def scope_option(name: str) -> str:
    """How options call a scope of a result: `depth<=8` is `depth:8`."""
    return name.replace("depth<=", "depth:")
