"""The sum of a relaxation's dual over the rationals: a lower bound whatever the multipliers are.

See `poetopt.search.diagnosis.certificate` for what it proves.
"""

from __future__ import annotations

import math
from fractions import Fraction

from poetopt.backends.solvers.solver import DualProof
from poetopt.util.errors import FormulationError


def exact_bound(proof: DualProof) -> Fraction:
    """What the multipliers prove, over the rationals. Raises FormulationError where that is minus infinity."""
    return exact_sum(proof)[0]


def exact_sum(proof: DualProof) -> tuple[Fraction, list[Fraction]]:
    """The same, and the reduced costs (n,) that it stands on."""
    reduced = [Fraction(c) for c in proof.costs]
    total = Fraction(proof.constant)
    for y, lower, upper, columns, values in proof.rows():
        side = lower if y > 0 else upper
        if y == 0 or math.isinf(side):
            continue
        multiplier = Fraction(y)
        total += multiplier * Fraction(side)
        for column, value in zip(columns, values, strict=True):
            reduced[column] -= multiplier * Fraction(value)
    for d, lower, upper in zip(reduced, proof.lower, proof.upper, strict=True):
        if d:
            side = lower if d > 0 else upper
            if math.isinf(side):
                raise FormulationError(
                    "nothing can be certified: a variable of the model has no bound on a side where the multipliers "
                    "would have it go on for ever; give the block's variables bounds"
                )
            total += d * Fraction(side)
    return total, reduced


def down(value: Fraction) -> float:
    """The largest float that is not above `value`."""
    rounded = float(value)
    return math.nextafter(rounded, -math.inf) if Fraction(rounded) > value else rounded
