"""JSON text that someone else may have written, and how large its numbers may be."""

from __future__ import annotations

import json
from typing import NoReturn

from poetopt.util.errors import PlanError

LARGEST = 2**53
"""No whole number may exceed it: JSON readers agree up to there, and sums stay within 64 bits."""
LARGEST_NUMBER = 1e300
"""No other number may exceed it: sums of seconds and joules stay finite."""


def parsed(text: str) -> object:
    """The JSON value in `text`, whose numbers are all finite. Raises PlanError."""

    def refuse(constant: str) -> NoReturn:
        raise PlanError(f"it holds {constant}, which is no number; the file is damaged")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"it is not a whole plan file: {error.msg} at line {error.lineno}, column {error.colno}; "
            "`poetopt solve MODEL --device DEVICE -o PLAN` writes one"
        ) from error
    except ValueError as error:
        raise PlanError("it holds a number of thousands of digits; the file is damaged") from error
    except RecursionError as error:
        raise PlanError("it is not a plan file: it is nested too deeply") from error
