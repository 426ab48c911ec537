"""Figures: those that people give, as numbers; those of a model, as the problem has them or its Params."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from poetopt.graph.problem import Problem
from poetopt.util.errors import FormulationError

COSTS = {
    "compute_j": "energy_j",
    "compute_s": "time_s",
    "page_in_j": "page_in_j",
    "page_in_s": "page_in_s",
    "page_out_j": "page_out_j",
    "page_out_s": "page_out_s",
}
"""Costs by name: the fields of operators (`compute_`), and of tensors."""


def problem_figures(problem: Problem, name: str) -> list[float]:
    """One of `COSTS`, of each operator or tensor."""
    things: tuple[Any, ...] = problem.operators if name.startswith("compute") else problem.tensors
    return [getattr(thing, COSTS[name]) for thing in things]


def figures(model: Any, name: str) -> list[Any]:
    """One of `COSTS`, of each operator or tensor: entries of a Param where the model's figures may change."""
    if model.space.limits.open:
        return list(model.component(name).values())
    return problem_figures(model.space.problem, name)


def more_room(model: Any) -> Any:
    """The budget's Param above what rows on memory have as a number, in memory units; 0 without one."""
    space = model.space
    if not space.limits.open:
        return 0.0
    from poetopt.formulations.parameters import BYTE  # units take Pyomo half a second

    base = int(space.room_bytes) + int(space.problem.reserve_bytes) + model.reserved_bytes
    return (model.ram_bytes - base * BYTE) / (space.memory_unit * BYTE)


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
