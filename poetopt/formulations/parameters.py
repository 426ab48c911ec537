"""Budget, deadline, costs and storage capacity as mutable Params, which can change without a new build.

| component                                  | unit | meaning                                              |
|--------------------------------------------|------|------------------------------------------------------|
| `ram_bytes`                                | byte | the budget (Param)                                   |
| `deadline_s`                               | s    | the bound on time, if there is one (Param)           |
| `storage_bytes`                            | byte | capacity of the storage, if it is known (Param)      |
| `compute_j`, `compute_s`                   | J, s | one compute of each operator (Params)                |
| `page_in_j`, `page_out_j`                  | J    | moving each tensor (Params)                          |
| `page_in_s`, `page_out_s`                  | s    | moving each tensor (Params)                          |
| `energy_j`                                 | J    | of the step: one pass and the overhead (Expression)  |
| `compute_time_s`, `transfer_time_s`        | s    | of the step (Expressions)                            |
| `bytes_used`                               | byte | bytes that each row on the budget counts (Expression) |

The objective and the rows on deadline, budget and storage use these Params, with Pyomo's units. So do rows that other
blocks make from contributions. The space then drops no decision because of a figure (`Limits.open`), so models with
different figures have the same indices. A figure that a block holds as a plain number stays as it was built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyomo.environ as pyo

from poetopt.formulations.figures import COSTS, figures, problem_figures
from poetopt.graph.problem import Problem

J, S, BYTE = pyo.units.J, pyo.units.s, pyo.units.byte
UNITS = {"j": J, "s": S, "bytes": BYTE}
"""Units by the suffix of a figure's name."""


def mutable(name: str) -> Mapping[str, Any]:
    """Return the keyword arguments of a mutable Param for the figure `name`."""
    return {"within": pyo.NonNegativeReals, "mutable": True, "units": UNITS[name.rpartition("_")[2]]}


def declare(model: Any) -> None:
    """Put the Params on an abstract model that has its space."""
    problem, limits = model.space.problem, model.space.limits
    deadline_s = limits.makespan_s if limits.compute_s is None else limits.compute_s
    step = {
        "ram_bytes": limits.ram_bytes + model.reserved_bytes,
        "deadline_s": deadline_s,
        "storage_bytes": problem.storage_bytes,
    }
    for name, figure in step.items():
        if figure is not None:
            model.add_component(name, pyo.Param(initialize=figure, **mutable(name)))
    for name in COSTS:
        index = model.operators if name.startswith("compute") else model.tensors
        model.add_component(name, pyo.Param(index, initialize=_Figures(name), **mutable(name)))


class _Figures:
    """Pyomo's rule for a Param, from the problem."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, model: Any) -> dict[Any, float]:
        index = model.component(self._name).index_set()
        return dict(zip(index, problem_figures(model.space.problem, self._name), strict=True))


def current(model: Any) -> Any:
    """Return the space of `model` with the present figures of its Params; the same object if none has changed."""
    space, problem, limits = model.space, model.space.problem, model.space.limits
    if not limits.open:
        return space
    figures_now = {name: list(map(pyo.value, figures(model, name))) for name in COSTS}
    operators = tuple(
        replace(operator, energy_j=joules, time_s=seconds)
        for operator, joules, seconds in zip(
            problem.operators, figures_now.pop("compute_j"), figures_now.pop("compute_s"), strict=True
        )
    )
    tensors = tuple(
        tensor.moved_for(**dict(zip(figures_now, transfers, strict=True)))
        for tensor, *transfers in zip(problem.tensors, *figures_now.values(), strict=True)
    )
    limits = replace(limits, ram_bytes=int(pyo.value(model.ram_bytes)) - model.reserved_bytes)
    for key in ("compute_s", "makespan_s"):
        if getattr(limits, key) is not None:
            limits = replace(limits, **{key: float(pyo.value(model.deadline_s))})
    stored = problem.storage_bytes if problem.storage_bytes is None else int(pyo.value(model.storage_bytes))
    if (operators, tensors, limits, stored) == (
        problem.operators,
        problem.tensors,
        space.limits,
        problem.storage_bytes,
    ):
        return space
    changed: Problem = replace(problem, operators=operators, tensors=tensors, storage_bytes=stored)
    return replace(space, problem=changed, limits=limits)
