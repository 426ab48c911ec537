"""From a Pyomo model to arrays, by Pyomo's own compiler of the standard form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyomo.common.errors import InfeasibleConstraintException
from pyomo.core.base import Constraint, Objective, Var
from pyomo.core.expr.numeric_expr import LinearExpression, MonomialTermExpression
from pyomo.repn.linear import LinearRepnVisitor
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler, _LinearStandardFormCompiler_impl

from poetopt.backends.solvers.matrix import Columns, Matrix
from poetopt.util import work as clock
from poetopt.util.errors import FormulationError, InfeasibleError, PoetError
from poetopt.util.garbage import building

NUMBERS = {int, float}
ROWS = 1000
"""The clock is looked at once in this many rows."""


class _Rows(LinearRepnVisitor):  # type: ignore[misc]
    """Pyomo's walk through an expression, and a shorter way through what blocks are made of.

    A LinearExpression of plain numbers times variables, all seen before and each once, is a dictionary as it stands.
    """

    rows = 0

    def walk_expression(self, expr: Any) -> Any:
        self.rows += 1
        if not self.rows % ROWS:
            clock.check()
        if expr.__class__ is LinearExpression:
            terms, columns = expr.args, self.var_map
            linear = {}
            for term in terms:
                if term.__class__ is not MonomialTermExpression:
                    break
                coefficient, variable = term._args_
                name = id(variable)
                if coefficient.__class__ not in NUMBERS or not coefficient or name not in columns:
                    break
                linear[name] = coefficient
            else:
                if len(linear) == len(terms):
                    result = self.Result()
                    result.linear = linear
                    return result
        return super().walk_expression(expr)


class _Compiler(_LinearStandardFormCompiler_impl):  # type: ignore[misc]
    _get_visitor = _Rows


def compile_model(model: Any) -> Matrix:
    """The arrays of a linear Pyomo model with one objective, to be minimised.

    Raises PoetError where there is no active objective, InfeasibleError where a row can't hold whatever is decided, and
    FormulationError, with the block's name, for a row that isn't linear or a figure that isn't a number; TimeUpError
    inside of `clock.ending`.
    """
    if not any(True for _ in model.component_data_objects(Objective, active=True)):
        raise PoetError("the model has no active objective")
    try:
        with building():
            form = _Compiler(LinearStandardFormCompiler.CONFIG({"mixed_form": True})).write(model)
        bounds = [v.bounds for v in form.columns]
    except InfeasibleConstraintException as error:
        raise InfeasibleError(f"no schedule exists in this scope, budget and deadline: {error}") from error
    except ValueError as error:  # of Pyomo's own, or of a number that is none
        raise FormulationError(_unfit(model) or str(error)) from error
    n = len(form.columns)
    kinds = np.array([row.bound_type for row in form.rows], dtype=int)
    rhs = np.asarray(form.rhs, dtype=float)
    matrix = Matrix(
        columns=Columns(form.columns),
        constant=float(form.c_offset[0]),
        costs=np.asarray(form.c.todense(), dtype=float).reshape(-1)[:n] if n else np.zeros(0),
        lower=np.array([-np.inf if low is None else low for low, _ in bounds], dtype=float),
        upper=np.array([np.inf if high is None else high for _, high in bounds], dtype=float),
        integer=np.array([v.is_integer() for v in form.columns], dtype=bool),
        rows=form.A.tocsr(),
        row_lower=np.where(kinds <= 0, rhs, -np.inf),
        row_upper=np.where(kinds >= 0, rhs, np.inf),
        constraints=[row.constraint for row in form.rows],
    )
    _check_figures(matrix, rhs)
    return matrix


def _unfit(model: Any) -> str | None:
    """The first constraint that isn't linear, or variable whose bounds are no numbers, and its block."""
    for row in model.component_data_objects(Constraint, active=True):
        if row.body.polynomial_degree() not in (0, 1):
            return f"{_place(row)} is not linear, and solvers take linear rows alone"
    for variable in model.component_data_objects(Var):
        try:
            variable.bounds  # noqa: B018 - Pyomo looks at them only now
        except ValueError as error:
            return f"{_place(variable)}: {error}"
    return None


def _check_figures(matrix: Matrix, rhs: NDArray[np.float64]) -> None:
    """Raises FormulationError for coefficients, bounds and costs that solvers can't take."""
    wrong = np.flatnonzero(~np.isfinite(matrix.rows.data))
    if len(wrong):
        place = int(np.searchsorted(matrix.rows.indptr, wrong[0], side="right")) - 1
        raise FormulationError(f"{_place(matrix.constraints[place])} has the coefficient {matrix.rows.data[wrong[0]]}")
    if not np.isfinite(rhs).all():
        place = int(np.flatnonzero(~np.isfinite(rhs))[0])
        raise FormulationError(f"{_place(matrix.constraints[place])} has the bound {rhs[place]}")
    for what, bad in (
        ("cost", ~np.isfinite(matrix.costs)),
        ("bound", np.isnan(matrix.lower) | np.isnan(matrix.upper)),
    ):
        if bad.any():
            variable = matrix.columns.variables[int(np.flatnonzero(bad)[0])]
            raise FormulationError(f"{_place(variable)} has a {what} that is no number")


def _place(component: Any) -> str:
    """`block 'few_reads': constraint few_reads.within`."""
    return f"block '{component.name.partition('.')[0]}': {component.ctype.__name__.lower()} {component.name}"
