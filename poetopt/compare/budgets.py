"""Several RAM budgets in one option: `20%..100%/9`, `3MB..9MB/4`, `20%,35%,1MiB`."""

from __future__ import annotations

import re

from poetopt.util.errors import OptionError
from poetopt.util.units import Share, parse_ram

MOST = 1000
"""Budgets in one option at most."""


def parse_budgets(text: str, *, option: str = "--ram") -> tuple[int | Share, ...]:
    """Budgets in the order given: a list, of single ones and of ranges `LOW..HIGH/COUNT`, both ends included.

    Raises OptionError for anything else, and for a range whose ends are not both shares or both sizes.
    """
    found: list[int | Share] = []
    for part in text.split(","):
        if not part.strip():
            raise OptionError(f"{option} '{text}': a budget in it is empty; give one, as in 40%, or several: 30%,50%")
        ends, _, count = part.partition("/")
        low_text, dots, high_text = ends.partition("..")
        if not dots:
            if count:
                raise OptionError(f"{option} {text}: '/{count}' counts the budgets of a range, as in 20%..100%/9")
            _check_range(part.strip(), option)
            found.append(parse_ram(part.strip(), option=option))
            continue
        if not count.strip().isdecimal() or not 2 <= int(count) <= MOST:
            raise OptionError(f"{option} {text}: say how many budgets the range has (2 to {MOST}), as in 20%..100%/9")
        low, high = parse_ram(low_text.strip(), option=option), parse_ram(high_text.strip(), option=option)
        steps = int(count) - 1
        if isinstance(low, Share) and isinstance(high, Share):
            found += [Share(low.fraction + (high.fraction - low.fraction) * k / steps) for k in range(steps + 1)]
        elif isinstance(low, int) and isinstance(high, int):
            found += [low + (high - low) * k // steps for k in range(steps + 1)]
        else:
            raise OptionError(f"{option} {text}: both ends must be percentages, or both sizes")
    return tuple(found)


def _check_range(text: str, option: str) -> None:
    """Refuse what was meant for a range, as `20%-100%` or `20%..100%`. Raises OptionError."""
    ends = re.fullmatch(r"(\S+?)\s*(?:-|–|:|to)\s*(\d\S*)", text)
    if ends is not None and "e" not in text.lower():
        raise OptionError(f"{option} {text}: a range is written {ends[1]}..{ends[2]}/9, with how many budgets it has")


def in_bytes(budgets: tuple[int | Share, ...], store_all_peak_bytes: int) -> tuple[int, ...]:
    """The budgets in bytes, without repetition, ascending."""
    # Rounded before it is cut: 20%..100%/9 has 100 %, not a hair less.
    sizes = {
        int(round(budget.fraction * store_all_peak_bytes, 6)) if isinstance(budget, Share) else budget
        for budget in budgets
    }
    return tuple(sorted(sizes))
