"""A Pyomo model that somebody else has solved: the rows that it still lacks, and its plan."""

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

WHOLE = 1e-4
"""The distance from a whole number at which a solver may leave one."""
LATE = "late_rows"
"""The attribute of the model under which rows that came late stand."""


class _Values:
    """A PointLike: what stands in the variables; an entry that no row mentions has no value, and is 0."""

    integral = True

    def __init__(self, model: Any) -> None:
        """Raises PlanError where there is no value at all, and for a value that is no number within its bounds."""
        entries = [v for v in model.component_data_objects(pyo.Var) if not v.fixed]
        if entries and all(entry.value is None for entry in entries):
            raise PlanError(
                f"the model has no solution in it: none of its {len(entries):,} variables has a value; solve it first "
                "(and load the solution, where your solver leaves that to you)"
            )
        for entry in model.component_data_objects(pyo.Var):
            if entry.value is not None and not _possible(entry):
                raise PlanError(
                    f"{entry.name} has the value {entry.value!r}, and no solution has that (bounds: {entry.lb} and "
                    f"{entry.ub}); give the variables what your solver found"
                )
        self._whole = {id(variable) for variable, _ in model.formulation.search.stages(model)}

    def __getitem__(self, variable: Any) -> Floats:
        values = np.array([0.0 if entry.value is None else entry.value for entry in variable.values()], dtype=float)
        whole: Floats = np.rint(values)
        if not len(values) or not (id(variable) in self._whole or all(v.is_integer() for v in variable.values())):
            return values
        worst = int(np.argmax(np.abs(values - whole)))
        if abs(values[worst] - whole[worst]) > WHOLE:
            raise PlanError(
                f"{variable.name} isn't solved to whole numbers ({values[worst]:g}); "
                "solve the model as an integer program first"
            )
        return whole


def _possible(entry: Any) -> bool:
    """Say whether the value of a variable is a number within its bounds, as far as solvers keep them."""
    if not isinstance(entry.value, Real) or not math.isfinite(entry.value):
        return False
    value = float(entry.value)
    low, high = entry.bounds
    slack = WHOLE * max(1.0, abs(value))
    return (low is None or value >= low - slack) and (high is None or value <= high + slack)


def add_late_rows(model: Any) -> int:
    """Add the late rows that the solution in a Pyomo model breaks, and return how many there were.

        model = po.formulations.retention.build(problem, ram_bytes=10_000_000, scope="depth:4")
        solver.solve(model)
        while po.add_late_rows(model):
            solver.solve(model)
        plan = po.plan_of(model)

    model
        Built by any formulation, with blocks of others or without; it may be a block of a larger model, such as the
        extensive form of scenarios: then each of them by itself.

    Without these rows a solution may take more than the budget. Raises PlanError for a model without a solution, or
    with one that isn't whole; FormulationError for a model that no formulation has built.
    """
    chosen = _formulation(model)
    with _by_itself(model):
        rows = [row for row in chosen.separate(model, _Values(model)) if row.core]
    if rows and model.component(LATE) is None:
        model.add_component(LATE, pyo.ConstraintList())
    for row in rows:
        model.component(LATE).add(_expression(model, row))
    return len(rows)


def _expression(model: Any, row: Row) -> Any:
    """The row for Pyomo; where the budget is a Param, in it."""
    body = LinearExpression(linear_coefs=list(row.coefficients), linear_vars=list(row.variables))
    lower, upper = (None if np.isinf(side) else side for side in (row.lower, row.upper))
    if model.space.limits.open and row.block == "memory":
        upper = row.upper + more_room(model)
    return lower, body, upper


def plan_of(model: Any) -> Plan:
    """The plan that the solution in a Pyomo model stands for: simulated, laid out, and judged by every block.

    model
        As in `add_late_rows`.

    Raises PlanError for a model without a solution, or with one that isn't whole, and for a plan that breaks the
    budget (`add_late_rows` helps), the deadline or a block's rule; FormulationError for a model that no formulation
    has built.
    """
    chosen = _formulation(model)
    with _by_itself(model):
        schedule = chosen.search.schedule(model, _Values(model))
    incumbent = Incumbent(model.space.problem, _options(chosen, model.space))
    if not incumbent.offer(schedule):
        excess = incumbent.excess_bytes(schedule)
        if excess:
            raise PlanError(
                f"the solution's plan takes {excess:,} bytes more than the budget of "
                f"{incumbent.options.ram_bytes:,}: add the rows that come late (add_late_rows), and solve again"
            )
        raise PlanError(f"the solution's plan keeps the budget, but {_refusal(incumbent, incumbent.broken(schedule))}")
    incumbent.settle()
    assert incumbent.best is not None
    return incumbent.best.plan


def _options(chosen: Formulation, space: Any) -> Options:
    """The options that the model was built with, as a solve is asked for it."""
    limits = space.limits
    paper = limits.compute_s is not None
    return Options(
        ram_bytes=limits.ram_bytes + chosen.reserve_bytes(space.problem),
        deadline_s=limits.compute_s if paper else limits.makespan_s,
        deadline_model=DeadlineModel.PAPER if paper else DeadlineModel.MAKESPAN,
        formulation=chosen,
    )


def _refusal(incumbent: Incumbent, rule: str | None) -> str:
    if rule is not None:
        return f"a block refuses it: {rule}"
    if incumbent.arena_excess is not None:
        return (
            f"the best memory layout found is {incumbent.arena_excess:,} bytes over it; build the model with so much "
            "less ram_bytes"
        )
    if incumbent.makespan_excess_s is not None:
        return (
            f"it takes {show_limit(incumbent.makespan_excess_s, 's')} more than the deadline, as transfers don't hide "
            "as the model says; build the model with so much less time"
        )
    return "the simulator refuses it; has the model lost some of its rows?"


@contextmanager
def _by_itself(model: Any) -> Iterator[None]:
    """`model` as the root, where it is a block of a larger one: blocks look at `block.model()`."""
    component = model.parent_component()
    parent = component._parent
    component._parent = None
    try:
        yield
    finally:
        component._parent = parent


def _formulation(model: Any) -> Formulation:
    """The formulation of the model. Raises FormulationError for what no formulation has built, naming those inside."""
    found = getattr(model, "formulation", None)
    if isinstance(found, Formulation):
        if model.space.limits.open:
            from poetopt.formulations import parameters  # units take Pyomo half a second

            model.space = parameters.current(model)
        return found
    if not hasattr(model, "component_data_objects"):
        raise FormulationError(f"a {type(model).__name__} is no Pyomo model")
    inside = [
        block.name
        for block in model.component_data_objects(pyo.Block)
        if isinstance(getattr(block, "formulation", None), Formulation)
    ]
    if inside:
        raise FormulationError(
            f"this model has {len(inside)} of a formulation in it ({', '.join(inside[:3])}"
            f"{', ...' if len(inside) > 3 else ''}); ask for each by itself"
        )
    raise FormulationError("this is no model that a formulation's `build` has made")
