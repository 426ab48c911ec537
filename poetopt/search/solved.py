"""Late rows and the plan of a Pyomo model that another program has solved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
import pyomo.core as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.figures import more_room
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import Floats, Row
from poetopt.plan.instructions import Plan
from poetopt.search.incumbent import Incumbent
from poetopt.search.solution import DeadlineModel, Options
from poetopt.util.errors import FormulationError, PlanError
from poetopt.util.units import show_limit

INTEGRALITY_TOLERANCE = 1e-4
"""Largest distance of an integer variable from an integer."""
LATE_ROWS = "late_rows"
"""Attribute of the model for rows that were added late."""


class _Values:
    """PointLike of a model's variables. An entry that no row mentions has no value, and is 0."""

    integral = True

    def __init__(self, model: Any) -> None:
        """Raise PlanError if the model has no value at all, or one that is no number within its bounds."""
        entries = [v for v in model.component_data_objects(pyo.Var) if not v.fixed]
        if entries and all(entry.value is None for entry in entries):
            raise PlanError(
                f"the model has no solution: none of its {len(entries):,} variables has a value. Solve it first "
                "(and load the solution, if your solver leaves that to you)."
            )
        for entry in model.component_data_objects(pyo.Var):
            if entry.value is not None and not _is_possible(entry):
                raise PlanError(
                    f"{entry.name} has the value {entry.value!r}, which is no number within its bounds ({entry.lb} and "
                    f"{entry.ub}). Set the variables to your solver's solution."
                )
        self._whole = {id(variable) for variable, _ in model.formulation.search.stages(model)}

    def __getitem__(self, variable: Any) -> Floats:
        values = np.array([0.0 if entry.value is None else entry.value for entry in variable.values()], dtype=float)
        rounded: Floats = np.rint(values)
        if not len(values) or not (id(variable) in self._whole or all(v.is_integer() for v in variable.values())):
            return values
        worst = int(np.argmax(np.abs(values - rounded)))
        if abs(values[worst] - rounded[worst]) > INTEGRALITY_TOLERANCE:
            raise PlanError(
                f"{variable.name} isn't solved to whole numbers ({values[worst]:g}). "
                "Solve the model as an integer program first."
            )
        return rounded


def _is_possible(entry: Any) -> bool:
    """Return whether a variable's value is a number within its bounds, up to the tolerance of solvers."""
    if not isinstance(entry.value, Real) or not math.isfinite(entry.value):
        return False
    value = float(entry.value)
    low, high = entry.bounds
    slack = INTEGRALITY_TOLERANCE * max(1.0, abs(value))
    return (low is None or value >= low - slack) and (high is None or value <= high + slack)


def add_late_rows(model: Any) -> int:
    """Add the late rows that the solution in a Pyomo model breaks, and return their number.

    Without these rows a solution may take more than the budget.

        model = po.formulations.retention.build(problem, ram_bytes=10_000_000, scope="depth:4")
        solver.solve(model)
        while po.add_late_rows(model):
            solver.solve(model)
        plan = po.plan_of(model)

    Parameters
    ----------
    model
        Model that a formulation has built, with further blocks or without. It may be a block of a larger model,
        such as the extensive form of scenarios; then call the function for each block by itself.

    Raises
    ------
    PlanError
        For a model without a solution, or with one that isn't integral.
    FormulationError
        For a model that no formulation has built.
    """
    chosen = _formulation(model)
    with _as_root(model):
        rows = [row for row in chosen.separate(model, _Values(model)) if row.core]
    if rows and model.component(LATE_ROWS) is None:
        model.add_component(LATE_ROWS, pyo.ConstraintList())
    for row in rows:
        model.component(LATE_ROWS).add(_expression(model, row))
    return len(rows)


def _expression(model: Any, row: Row) -> Any:
    """Return the row for Pyomo, in terms of the budget if that is a Param."""
    body = LinearExpression(linear_coefs=list(row.coefficients), linear_vars=list(row.variables))
    lower, upper = (None if np.isinf(side) else side for side in (row.lower, row.upper))
    if model.space.limits.open and row.block == "memory":
        upper = row.upper + more_room(model)
    return lower, body, upper


def plan_of(model: Any) -> Plan:
    """Return the plan of the solution in a Pyomo model: simulated, laid out, and checked by every block.

    Parameters
    ----------
    model
        See `add_late_rows`.

    Raises
    ------
    PlanError
        For a model without a solution, or with one that isn't integral; for a plan that breaks the budget
        (`add_late_rows` helps), the deadline or a block's rule.
    FormulationError
        For a model that no formulation has built.
    """
    chosen = _formulation(model)
    with _as_root(model):
        schedule = chosen.search.schedule(model, _Values(model))
    incumbent = Incumbent(model.space.problem, _options(chosen, model.space))
    if not incumbent.offer(schedule):
        excess = incumbent.excess_bytes(schedule)
        if excess:
            raise PlanError(
                f"the solution's plan takes {excess:,} bytes more than the budget of "
                f"{incumbent.options.ram_bytes:,}. Add the late rows (po.add_late_rows), and solve again."
            )
        raise PlanError(f"the solution's plan fits the budget, but {_rejection(incumbent, incumbent.broken(schedule))}")
    incumbent.settle()
    assert incumbent.best is not None
    return incumbent.best.plan


def _options(chosen: Formulation, space: Any) -> Options:
    """Return the options of a solve with the limits of the model."""
    limits = space.limits
    paper = limits.compute_s is not None
    return Options(
        ram_bytes=limits.ram_bytes + chosen.reserve_bytes(space.problem),
        deadline_s=limits.compute_s if paper else limits.makespan_s,
        deadline_model=DeadlineModel.PAPER if paper else DeadlineModel.MAKESPAN,
        formulation=chosen,
    )


def _rejection(incumbent: Incumbent, rule: str | None) -> str:
    if rule is not None:
        return f"a block rejects it: {rule}"
    if incumbent.arena_excess is not None:
        return (
            f"the best memory layout found exceeds it by {incumbent.arena_excess:,} bytes. Build the model with "
            "ram_bytes reduced by that."
        )
    if incumbent.makespan_excess_s is not None:
        return (
            f"it takes {show_limit(incumbent.makespan_excess_s, 's')} more than the deadline, since it hides fewer "
            "transfers than the model. Build the model with a deadline that is earlier by that."
        )
    return "the simulator rejects it. Check whether the model has lost some of its rows."


@contextmanager
def _as_root(model: Any) -> Iterator[None]:
    """Make `model` the root while the context lasts, since blocks look at `block.model()`."""
    component = model.parent_component()
    parent = component._parent
    component._parent = None
    try:
        yield
    finally:
        component._parent = parent


def _formulation(model: Any) -> Formulation:
    """Return the formulation of the model. Raise FormulationError if there is none, naming those inside."""
    chosen = getattr(model, "formulation", None)
    if isinstance(chosen, Formulation):
        if model.space.limits.open:
            from poetopt.formulations import parameters  # units take Pyomo half a second

            model.space = parameters.current(model)
        return chosen
    if not hasattr(model, "component_data_objects"):
        raise FormulationError(f"a {type(model).__name__} is no Pyomo model. Give the model that `build` returned.")
    names = [
        block.name
        for block in model.component_data_objects(pyo.Block)
        if isinstance(getattr(block, "formulation", None), Formulation)
    ]
    if names:
        raise FormulationError(
            f"this model contains {len(names)} models of a formulation ({', '.join(names[:3])}"
            f"{', ...' if len(names) > 3 else ''}). Call the function for each of them."
        )
    raise FormulationError("no formulation has built this model. Give the model that `build` returned.")
