"""What identifies a rounded memory row, so that it can be derived again."""

from __future__ import annotations

from typing import NamedTuple


class Rounded(NamedTuple):
    """A row of `memory`, rounded.

    stage, found
        The stage row of that stage, where `found` is -1; else the row that `memory` found as number `found`.
    divisor
        What the row is divided by, in the units of memory rows.
    complemented
        Which of the row's terms, by their place in it, are counted as what is missing from 1.
    """

    stage: int
    found: int
    divisor: int
    complemented: tuple[int, ...]
