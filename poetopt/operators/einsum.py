"""The equation of an Einsum."""

from __future__ import annotations

import string
from collections.abc import Sequence


def labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The terms and the result of an equation, with `...` spelt out by unused letters, and an implicit result given.

    ranks
        How many axes each operand has.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [c for c in string.ascii_letters if c not in equation]
    widths = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    dots = "".join(free[: max((w for w, t in zip(widths, terms, strict=True) if "..." in t), default=0)])
    spelt = [t.replace("...", dots[len(dots) - w :] if w else "") for t, w in zip(terms, widths, strict=True)]
    if not arrow:
        once = sorted(c for c in set("".join(terms)) - {"."} if "".join(terms).count(c) == 1)
        right = ("..." if dots else "") + "".join(once)
    return spelt, right.replace("...", dots)
