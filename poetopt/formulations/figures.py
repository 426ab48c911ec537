"""Figures that people give: a number, and neither text, nor a truth value, nor what no comparison holds of."""

from __future__ import annotations

import math
from numbers import Real

from poetopt.util.errors import FormulationError


def is_figure(value: object, *, positive: bool = False) -> bool:
    """Say whether it is a finite number from 0 on; `positive`: above 0."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    number = float(value)
    return math.isfinite(number) and (number > 0 if positive else number >= 0)


def asked(
    where: str,
    *,
    ram_bytes: object,
    compute_s: object = None,
    makespan_s: object = None,
    hidden_share: object = 1.0,
    ceiling_j: object = math.inf,
    scope: object = "full",
    **choices: object,
) -> None:
    """Look at what a model is to be built for. Raises FormulationError, naming `where`, for what is no such figure.

    choices
        By name, what must be True or False.
    """
    if not is_figure(ram_bytes):
        raise FormulationError(f"{where}: ram_bytes must be a number of bytes from 0 on, and is {ram_bytes!r}")
    for name, given in (("compute_s", compute_s), ("makespan_s", makespan_s)):
        if given is not None and not is_figure(given):
            raise FormulationError(f"{where}: {name} must be seconds from 0 on, or None, and is {given!r}")
    if not is_figure(hidden_share) or hidden_share > 1:  # type: ignore[operator]
        raise FormulationError(f"{where}: hidden_share must be a number from 0 to 1, and is {hidden_share!r}")
    if ceiling_j != math.inf and not is_figure(ceiling_j):
        raise FormulationError(f"{where}: ceiling_j must be joules from 0 on, or inf, and is {ceiling_j!r}")
    if not isinstance(scope, str):
        raise FormulationError(f"{where}: scope must be a text such as 'full', and is {scope!r}")
    for name, chosen in choices.items():
        if not isinstance(chosen, bool):
            raise FormulationError(f"{where}: {name} must be True or False, and is {chosen!r}")
