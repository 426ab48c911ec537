"""A Pyomo model that somebody else has solved: the rows that it still lacks, and its plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.errors import FormulationError, PlanError
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import Floats
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out_within
from poetopt.plan.simulate import simulate

WHOLE = 1e-4
"""How far from a whole number a solver may leave what must be one."""
LATE = "late_rows"
"""The attribute of the model under which rows that came late stand."""


class _Values:
    """A PointLike: what stands in the variables."""

    integral = True

    def __getitem__(self, variable: Any) -> Floats:
        values = np.array([0.0 if entry.value is None else entry.value for entry in variable.values()], dtype=float)
        if variable.is_indexed() and len(variable) and all(entry.is_binary() for entry in variable.values()):
            whole: Floats = np.rint(values)
            if np.abs(values - whole).max() > WHOLE:
                raise PlanError(
                    f"{variable.name} isn't solved to whole numbers ({values[np.argmax(np.abs(values - whole))]:g}); "
                    "solve the model as an integer program first"
                )
            return whole
        return values


def add_late_rows(chosen: Formulation, model: Any) -> int:
    """Add the rows that the solution in `model` breaks and that blocks bring late; how many there were.

    Solve again for as long as there are any: without them a solution may take more than the budget.

    Raises PlanError for a solution that isn't whole, FormulationError for a model of another kind.
    """
    _known(model)
    if not hasattr(model, LATE):
        model.add_component(LATE, pyo.ConstraintList())
    rows = [row for row in chosen.separate(model, _Values()) if row.core]
    for row in rows:
        body = LinearExpression(linear_coefs=list(row.coefficients), linear_vars=list(row.variables))
        lower, upper = (None if np.isinf(side) else side for side in (row.lower, row.upper))
        getattr(model, LATE).add((lower, body, upper))
    return len(rows)


def plan_in(chosen: Formulation, model: Any) -> Plan:
    """The plan that the solution in `model` stands for, simulated and laid out within its budget.

    Raises PlanError for a solution that isn't whole, and for a plan that doesn't keep the budget; FormulationError for
    a model of another kind.
    """
    space = _known(model)
    plan = plan_of(space.problem, chosen.points.schedule(model, _Values()))
    ram_bytes = space.limits.ram_bytes
    peak = simulate(plan).peak_bytes
    if peak > ram_bytes:
        raise PlanError(
            f"the solution's plan takes {peak:,} bytes of {ram_bytes:,}: add the rows that come late (add_late_rows), "
            "and solve again"
        )
    room = ram_bytes - space.problem.reserve_bytes
    laid_out = lay_out_within(plan, room)
    if arena_bytes(laid_out) > room:
        raise PlanError(f"the solution's plan keeps the budget, but its buffers have no layout within {room:,} bytes")
    return laid_out


def _known(model: Any) -> Any:
    if not hasattr(model, "space") or not hasattr(model, "block_names"):
        raise FormulationError("this is no model that a formulation's `build` has made")
    return model.space
