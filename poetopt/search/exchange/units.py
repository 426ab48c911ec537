"""The unit of a written model's objective: small enough a unit that costs are large numbers.

A solver compares objectives with tolerances of its own, many of them absolute (1e-6 and the like), and a training step
on a small board takes millijoules: in joules, schedules that differ by a percent are the same to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from poetopt.formulations.goal import ENERGY, Goal

PREFIXES = ("", "m", "µ", "n", "p", "f")
"""Each a thousandth of the one before."""
LEAST = 1e4
"""What one pass is at least, in the unit that is chosen: single costs are then mostly between 1 and 1e4."""


@dataclass(frozen=True)
class Unit:
    """How a written objective counts.

    name
        Of the objective in the file: letters, digits and `_`.
    symbol
        `µJ`.
    scale
        So many of it are one of the model's own unit: 1e6.
    """

    name: str
    symbol: str
    scale: float

    def __str__(self) -> str:
        return f"{self.name} (in {self.symbol})"


def unit_of(goal: Goal, one_pass: float) -> Unit:
    """The largest of the unit and its thousandths in which `one_pass`, the value of one pass, is `LEAST` or more."""
    steps = range(len(PREFIXES))
    step = next((k for k in steps if one_pass * 1000.0**k >= LEAST), steps[-1]) if one_pass > 0 else 0
    letter = PREFIXES[step]
    what = "overhead" if goal is ENERGY else re.sub(r"\W+", "_", goal.name, flags=re.ASCII)
    ascii_unit = re.sub(r"\W+", "", goal.unit, flags=re.ASCII).lower()
    return Unit(f"{what}_{letter.replace('µ', 'u')}{ascii_unit}", f"{letter}{goal.unit}", 1000.0**step)
