"""Parse numbers as users and files write them; no other module converts texts to numbers.

A number has ASCII digits, a decimal point, and an exponent. Python's `float` and `int` also accept `1_0`, `nan` and the
digits of all scripts, and turn `1e-400` into 0; each of these is probably a mistake.
"""

from __future__ import annotations

import math
import operator
import re

NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""Pattern of a number without a unit."""
_NUMBER, _WHOLE = re.compile(NUMBER), re.compile(r"[+-]?[0-9]{1,400}")
LEAST, MOST = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
"""The smallest normal float32 above 0, and the largest."""


def read_number(value: object) -> float:
    """Return the finite number that `value` is, or that its text spells. Raise ValueError for anything else."""
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text) is None:
            raise ValueError("must be a number")
        number = float(text)
        if number == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
            raise ValueError("too small for a number")
    else:
        if isinstance(value, bool):
            raise ValueError("must be a number")
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, OverflowError) as error:
            raise ValueError("must be a number") from error
        if math.isnan(number):
            raise ValueError("must be a number")
    if math.isinf(number):
        raise ValueError("too large for a number")
    return number


def read_float32(value: object) -> float:
    """Return `read_number(value)`. Raise ValueError also if it would become 0, infinite or subnormal as a float32."""
    number = read_number(value)
    if number and not LEAST <= abs(number) <= MOST:
        size = "small" if abs(number) < 1 else "large"
        raise ValueError(f"too {size} for a float32, whose range is {LEAST:.3g} to {MOST:.3g}, and 0")
    return number


def read_whole(value: object) -> int:
    """Return the integer of 64 bits that `value` is, or that its text spells. Raise ValueError for anything else."""
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError("must be a whole number") from error
    if not -(2**63) <= number < 2**63:
        raise ValueError("must be less than 2^63" if number > 0 else "must be at least -2^63")
    return number
