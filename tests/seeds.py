"""How many random cases a suite goes through: at most sixteen at each change, all with `pytest --seeds all`.

`make test` runs the former, `make bench` the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Variant = TypeVar("Variant")

AT_EACH_CHANGE = 16
_everything = False


def run_all(everything: bool) -> None:
    """Say which; before the tests are collected, as seeds are parameters of tests."""
    global _everything
    _everything = everything


def everything() -> bool:
    """Whether the slow tests that show again what others do, on another board, are run as well."""
    return _everything


def seeds(count: int) -> range:
    """The seeds of a suite that has `count` of them."""
    return range(examples(count))


def examples(count: int) -> int:
    """The examples of a property that is checked on `count` of them."""
    return count if _everything else min(count, AT_EACH_CHANGE)


def some(variants: Sequence[Variant], few: int) -> Sequence[Variant]:
    """The first `few` of slow variants, which all show the same, or all of them."""
    return variants if _everything else variants[:few]


def turns(place: int, variants: Sequence[Variant]) -> Sequence[Variant]:
    """The variants in which the case at `place` of many is tried: one, so that neighbours take turns, or all."""
    return variants if _everything else [variants[place % len(variants)]]
