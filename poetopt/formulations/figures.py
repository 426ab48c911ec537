"""Figures: checks of numbers that users give, and the costs of a model as numbers or as entries of its Params."""

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
"""Costs by name, with the field of `ProblemOperator` (`compute_`) or of the tensor."""


def problem_figures(problem: Problem, name: str) -> list[float]:
    """Return the cost `name` of `COSTS` for each operator or tensor."""
    things: tuple[Any, ...] = problem.operators if name.startswith("compute") else problem.tensors
    return [getattr(thing, COSTS[name]) for thing in things]


def figures(model: Any, name: str) -> list[Any]:
    """Return the cost `name` of `COSTS` for each operator or tensor, as Param entries if the model is mutable."""
    if model.space.limits.open:
        return list(model.component(name).values())
    return problem_figures(model.space.problem, name)


def more_room(model: Any) -> Any:
    """Return the budget's Param minus the number in memory rows, in memory units; 0 without a Param."""
    space = model.space
    if not space.limits.open:
        return 0.0
    from poetopt.formulations.parameters import BYTE  # units take Pyomo half a second

    base = int(space.room_bytes) + int(space.problem.reserve_bytes) + model.reserved_bytes
    return (model.ram_bytes - base * BYTE) / (space.memory_unit * BYTE)


def is_figure(value: object, *, positive: bool = False) -> bool:
    """Return whether `value` is a finite number of at least 0, or with `positive` above 0."""
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
    """Check the arguments of a build.

    Parameters
    ----------
    where
        The formulation, in words, for messages.
    choices
        Arguments that must be True or False.

    Raises
    ------
    FormulationError
        An argument has a wrong type or value.
    """
    if not is_figure(ram_bytes):
        raise FormulationError(f"{where}: ram_bytes must be a number of bytes from 0 on, and is {ram_bytes!r}")
    for name, seconds in (("compute_s", compute_s), ("makespan_s", makespan_s)):
        if seconds is not None and not is_figure(seconds):
            raise FormulationError(f"{where}: {name} must be seconds from 0 on, or None, and is {seconds!r}")
    if not is_figure(hidden_share) or hidden_share > 1:  # type: ignore[operator]
        raise FormulationError(f"{where}: hidden_share must be a number from 0 to 1, and is {hidden_share!r}")
    if ceiling_j != math.inf and not is_figure(ceiling_j):
        raise FormulationError(f"{where}: ceiling_j must be joules from 0 on, or inf, and is {ceiling_j!r}")
    if not isinstance(scope, str):
        raise FormulationError(f"{where}: scope must be a text such as 'full', and is {scope!r}")
    for name, chosen in choices.items():
        if not isinstance(chosen, bool):
            raise FormulationError(f"{where}: {name} must be True or False, and is {chosen!r}")
