"""NL files, AMPL's, by Pyomo's writer; the names, which the format has no place for, in .col and .row files beside."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.repn.plugins.nl_writer import NLWriter

from poetopt.backends.solvers.matrix import Matrix
from poetopt.backends.solvers.names import distinct
from poetopt.formulations.rows import Row
from poetopt.util.files import write_atomically


def write_nl(
    path: str, model: Any, matrix: Matrix, added: Sequence[Row], names: Mapping[int, str], *, objective: str
) -> None:
    """Write `path`, and beside it the names of its columns (`.col`) and rows (`.row`), one a line.

    matrix
        The model's arrays: their objective is the one that is written, under the name `objective`.
    added
        Further rows; they and the objective are put on the model for as long as it takes.
    names
        By the id of a variable.
    """
    found = pyo.Block(concrete=True)
    found.row = pyo.Constraint(pyo.RangeSet(0, len(added) - 1), rule=lambda _, x: _expression(added[x]))
    found.objective = pyo.Objective(
        expr=LinearExpression(
            constant=matrix.constant, linear_coefs=matrix.costs.tolist(), linear_vars=list(matrix.columns.variables)
        )
    )
    own = list(model.component_data_objects(pyo.Objective, active=True))
    for entry in own:
        entry.deactivate()
    model.add_component("found_rows", found)
    try:
        text = io.StringIO(newline="")
        info = NLWriter().write(model, text, linear_presolve=False, symbolic_solver_labels=False)
    finally:
        model.del_component("found_rows")
        for entry in own:
            entry.activate()
    rows = [constraint.name for constraint in info.constraints]
    write_atomically(Path(path).with_suffix(".col"), _lines([names[id(variable)] for variable in info.variables]))
    write_atomically(Path(path).with_suffix(".row"), _lines([*distinct(rows), objective]))
    write_atomically(path, text.getvalue())


def _expression(row: Row) -> Any:
    body = LinearExpression(linear_coefs=list(row.coefficients), linear_vars=list(row.variables))
    lower = None if row.lower == -float("inf") else row.lower
    upper = None if row.upper == float("inf") else row.upper
    return (lower, body, upper) if lower != upper else (body, upper)


def _lines(names: Sequence[str]) -> str:
    return "".join(f"{name}\n" for name in names)
