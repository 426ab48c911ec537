"""Spelling of scopes: `depth:D`, `forward`, `full` in options, `depth<=D` in results."""

from __future__ import annotations

import math

from poetopt.util.errors import FormulationError

ALL = "all"
"""Name of the space of all plans in results."""


def scope_depth(scope: str) -> float:
    """Return D of `depth:D`, or infinity for `forward` and `full`. Raises FormulationError for any other form."""
    if scope in ("forward", "full"):
        return math.inf
    prefix, _, digits = scope.partition(":")
    if prefix != "depth" or not digits.isdecimal() or int(digits) < 1:
        raise FormulationError(f"unknown scope '{scope}': give auto, depth:D (D >= 1), forward or full")
    return int(digits)


def scope_name(scope: str) -> str:
    """Return the name of a scope in results: `depth<=8` for `depth:8`."""
    return scope.replace("depth:", "depth<=")


def scope_option(name: str) -> str:
    """Return the option for a result's scope: `depth:8` for `depth<=8`."""
    return name.replace("depth<=", "depth:")


def kind_words(scope: str) -> str:
    """Return the schedules of a result's scope in words, to follow "with"."""
    if scope.startswith("depth<="):
        depth = scope.removeprefix("depth<=")
        if depth == "0":
            return "nothing recomputed"
        return "single operators recomputed" if depth == "1" else f"up to {depth} operators recomputed in a row"
    return {
        "forward": "any number of forward operators recomputed in a row",
        "full": "any operator recomputed at any time",
        "store-all": "everything kept",
        ALL: "all schedules",
    }.get(scope, scope)


def proven_words(scope: str) -> str:
    """Return the words of `kind_words` for a proof, which covers rows that compute each operator once."""
    words = kind_words(scope)
    if scope == "full":
        return f"{words}, once before each other"
    return f"{words}, each once" if words.endswith("in a row") else words
