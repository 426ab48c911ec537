"""A Pyomo model as arrays: the input of every solver and of model files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyomo.common.numeric_types import native_numeric_types, value
from pyomo.core.base import Constraint, Objective, Var
from pyomo.core.base.var import VarData
from pyomo.core.expr.numeric_expr import (
    LinearExpression,
    MonomialTermExpression,
    NegationExpression,
    SumExpression,
)
from pyomo.core.expr.relational_expr import EqualityExpression, RangedExpression
from pyomo.repn import generate_standard_repn

from poetopt.backends.solvers.solver import Frozen
from poetopt.formulations.rows import Floats, Ints, Row
from poetopt.util import work
from poetopt.util.errors import FormulationError, InfeasibleError, PoetError
from poetopt.util.process import building
from poetopt.util.sparse import csr_matrix, vstack


@dataclass(frozen=True, eq=False)
class Columns:
    """Pyomo variable of each column."""

    variables: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_of", {id(variable): x for x, variable in enumerate(self.variables)})
        object.__setattr__(self, "_known", {})

    def __len__(self) -> int:
        return len(self.variables)

    def of(self, variable: Any) -> Ints:
        """Return the columns of an indexed variable's entries, in index order; -1 for an entry in no row or cost."""
        known: dict[int, Ints] = self.__dict__["_known"]
        if id(variable) not in known:
            column: dict[int, int] = self.__dict__["_of"]
            known[id(variable)] = np.array([column.get(id(v), -1) for v in variable.values()], dtype=np.int64)
        return known[id(variable)]

    def spread(self, start: Sequence[tuple[Any, Floats]]) -> Floats:
        """Return the values of a start by column, (n,); NaN where it has none."""
        values = np.full(len(self.variables), np.nan)
        for variable, array in start:
            columns = self.of(variable)
            values[columns[columns >= 0]] = array[columns >= 0]
        return values

    def frozen(self, parts: Sequence[Frozen]) -> tuple[NDArray[np.int32], Floats]:
        """Return the fixed columns and their values."""
        fixed: list[Ints] = [np.zeros(0, dtype=np.int64)]
        values: list[Floats] = [np.zeros(0)]
        for part in parts:
            columns = self.of(part.variable)
            chosen = part.mask & (columns >= 0)
            fixed.append(columns[chosen])
            values.append(part.values[chosen])
        return np.concatenate(fixed).astype(np.int32), np.concatenate(values)

    def compress(self, rows: Sequence[Row]) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
        """Return (starts, columns, coefficients) of rows found by separators, with repeated variables merged.

        Raise `FormulationError` for a variable that is no column.
        """
        column: dict[int, int] = self.__dict__["_of"]
        starts: list[int] = []
        indices: list[int] = []
        values: list[float] = []
        for row in rows:
            starts.append(len(indices))
            try:  # without a Python loop over entries: a round has hundreds of rows of hundreds of entries
                row_columns = list(map(column.__getitem__, map(id, row.variables)))
            except KeyError:
                unknown = next(variable for variable in row.variables if id(variable) not in column)
                raise FormulationError(_unknown(row, unknown)) from None
            merged = dict(zip(row_columns, row.coefficients, strict=True))
            if len(merged) < len(row_columns):
                merged = dict.fromkeys(row_columns, 0.0)
                for x, coefficient in zip(row_columns, row.coefficients, strict=True):
                    merged[x] += coefficient
            indices += merged
            values += merged.values()
        return np.array(starts, dtype=np.int32), np.array(indices, dtype=np.int32), np.array(values, dtype=float)


def _unknown(row: Row, variable: Any) -> str:
    """Return the message for a row over a variable that is no column, with its block."""
    block = f"block '{row.block}': " if row.block else ""
    if not isinstance(variable, VarData):
        return f"{block}a separator's row ({row.kind}) has a {type(variable).__name__} in place of a variable's entry"
    return (
        f"{block}a separator's row ({row.kind}) uses the variable {variable.name}, which no other row or cost of the "
        "model mentions; give it a cost or a constraint in its block"
    )


@dataclass(frozen=True, eq=False)
class Matrix:
    """min costs x + constant, row_lower <= rows x <= row_upper, lower <= x <= upper, x[integer] integer.

    Attributes
    ----------
    costs, lower, upper, integer
        (n,), in the model's own units.
    rows
        (m, n), compressed by rows; `row_lower` and `row_upper` are (m,).
    constraints
        Pyomo constraint of each row of the model proper; rows found by separators have none.
    """

    columns: Columns
    constant: float
    costs: Floats
    lower: Floats
    upper: Floats
    integer: NDArray[np.bool_]
    rows: csr_matrix
    row_lower: Floats
    row_upper: Floats
    constraints: Sequence[Any] = ()

    def only(self, rows: Sequence[Row]) -> Matrix:
        """Return a model of the same variables with only `rows`."""
        starts, indices, values = self.columns.compress(rows)
        return replace(
            self,
            rows=csr_matrix((values, indices, [*starts, len(indices)]), shape=(len(rows), len(self.columns))),
            row_lower=np.array([row.lower for row in rows], dtype=float),
            row_upper=np.array([row.upper for row in rows], dtype=float),
            constraints=(),
        )

    def extended(self, rows: Sequence[Row]) -> Matrix:
        """Return the model with further rows appended."""
        if not rows:
            return self
        appended = self.only(rows)
        return replace(
            self,
            rows=vstack([self.rows, appended.rows], format="csr"),
            row_lower=np.concatenate([self.row_lower, appended.row_lower]),
            row_upper=np.concatenate([self.row_upper, appended.row_upper]),
        )

    def scaled(self, factor: float) -> Matrix:
        """Return the model with the objective times `factor`."""
        return replace(self, costs=self.costs * factor, constant=self.constant * factor)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return int(self.rows.shape[0]), len(self.columns)


SUMS = {LinearExpression, SumExpression}


class _Entries:
    """Entries of rows in order; a variable gets its column when it first occurs.

    Sums and differences of variables, times plain numbers, are read directly; Pyomo reads all other expressions.
    """

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self._column: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.columns)

    def add(self, expression: Any, sign: int = 1) -> float:
        """Add the terms of `expression`, times `sign`; return its constant. Raise `ValueError` if it isn't linear."""
        return self._sum((expression,), sign)

    def _sum(self, terms: Iterable[Any], sign: int) -> float:
        constant = 0.0
        known, columns, values = self._column, self.columns, self.values
        for term in terms:
            kind, signed = term.__class__, sign
            if kind is NegationExpression:
                term, signed = term.args[0], -sign
                kind = term.__class__
            if kind is VarData:
                coefficient, variable = signed, term
            elif kind in {LinearExpression, SumExpression}:
                constant += self._sum(term.args, signed)
                continue
            elif kind is MonomialTermExpression and term._args_[0].__class__ in native_numeric_types:
                coefficient, variable = term._args_
                coefficient *= signed
            elif kind in native_numeric_types:
                constant += signed * term
                continue
            else:
                constant += self._read(term, signed)
                continue
            place = known.get(id(variable))
            if place is None:
                place = self._assign_column(variable)
            if place < 0:
                constant += coefficient * variable.value
            else:
                columns.append(place)
                values.append(coefficient)
        return constant

    def _read(self, expression: Any, sign: int) -> float:
        linear = generate_standard_repn(expression)
        if not linear.is_linear():
            raise ValueError("it is not linear")
        for coefficient, variable in zip(linear.linear_coefs, linear.linear_vars, strict=True):
            place = self._column.get(id(variable))
            self.columns.append(self._assign_column(variable) if place is None else place)
            self.values.append(sign * coefficient)
        return sign * float(linear.constant)

    def _assign_column(self, variable: Any) -> int:
        """Assign columns to all entries of the variable's component; return the variable's, -1 where it is fixed."""
        for entry in variable.parent_component().values():
            self._column[id(entry)] = -1 if entry.fixed else len(self.variables)
            if not entry.fixed:
                self.variables.append(entry)
        return self._column[id(variable)]

    def row(self, relation: Any) -> tuple[float, float]:
        """Add the row of a relational expression, and return its bounds."""
        if relation.__class__ is RangedExpression:
            lower, body, upper = relation.args
            constant = self.add(body)
            return value(lower) - constant, value(upper) - constant
        left, right = relation.args
        if right.__class__ in native_numeric_types or not right.is_potentially_variable():
            lower, upper = -np.inf, value(right) - self.add(left)
        elif left.__class__ in native_numeric_types or not left.is_potentially_variable():
            lower, upper = value(left) - self.add(right), np.inf
        else:
            lower, upper = -np.inf, -(self.add(left) + self.add(right, -1))
        if relation.__class__ is EqualityExpression:
            return (upper, upper) if upper < np.inf else (lower, lower)
        return lower, upper


def compile_model(model: Any) -> Matrix:
    """Return the arrays of a linear Pyomo model with one objective to minimise.

    Raises
    ------
    PoetError
        The model has no active objective.
    InfeasibleError
        A row can't hold, whatever is decided.
    FormulationError
        A row isn't linear, or a figure isn't a number; the message names the block.
    TimeUpError
        The time is up, inside of `clock.ending`.
    """
    objective = next(iter(model.component_data_objects(Objective, active=True)), None)
    if objective is None:
        raise PoetError("the model has no active objective")
    try:
        with building():
            return _compiled(model, objective)
    except ValueError as error:  # Pyomo's own, or a figure that is no number
        raise FormulationError(_find_fault(model) or str(error)) from error


def _compiled(model: Any, objective: Any) -> Matrix:
    entries = _Entries()
    constant = entries.add(objective.expr)
    starts, constraints, row_lower, row_upper = [0, len(entries)], [], [], []
    for component in model.component_objects(Constraint, active=True):
        for constraint in component.values():
            if not constraint.active:
                continue
            lower_bound, upper_bound = entries.row(constraint.expr)
            starts.append(len(entries))
            constraints.append(constraint)
            row_lower.append(lower_bound)
            row_upper.append(upper_bound)
            # check the clock once in this many rows
            if not len(constraints) % 1000:
                work.check()
    shape = (len(starts) - 1, len(entries.variables))
    matrix_of_all = csr_matrix((np.array(entries.values, dtype=float), entries.columns, starts), shape=shape)
    matrix_of_all.sum_duplicates()
    matrix_of_all.eliminate_zeros()
    lower, upper = np.array(row_lower, dtype=float), np.array(row_upper, dtype=float)
    has_terms = np.diff(matrix_of_all.indptr)[1:] > 0
    impossible = np.flatnonzero(~has_terms & ((lower > 0) | (upper < 0)))
    if len(impossible):
        name = constraints[impossible[0]].name
        raise InfeasibleError(f"no schedule exists in this scope, budget and deadline: the row {name} can't hold")
    used = np.flatnonzero(np.bincount(matrix_of_all.indices, minlength=shape[1]))
    matrix_of_all = matrix_of_all[:, used] if len(used) < shape[1] else matrix_of_all
    variables = [entries.variables[x] for x in used.tolist()]
    bounds = [v.bounds for v in variables]
    matrix = Matrix(
        columns=Columns(variables),
        constant=float(constant),
        costs=matrix_of_all[:1].toarray().reshape(-1),
        lower=np.array([-np.inf if low is None else low for low, _ in bounds], dtype=float),
        upper=np.array([np.inf if high is None else high for _, high in bounds], dtype=float),
        integer=np.array([v.is_integer() for v in variables], dtype=bool),
        rows=matrix_of_all[1:][has_terms],
        row_lower=lower[has_terms],
        row_upper=upper[has_terms],
        constraints=[constraints[x] for x in np.flatnonzero(has_terms).tolist()],
    )
    _check_figures(matrix)
    return matrix


def _find_fault(model: Any) -> str | None:
    """Return a message on the first constraint that isn't linear, or variable whose bounds are no numbers."""
    for row in model.component_data_objects(Constraint, active=True):
        if row.body.polynomial_degree() not in (0, 1):
            return f"{_describe(row)} is not linear, and solvers take only linear rows"
    for variable in model.component_data_objects(Var):
        try:
            variable.bounds  # noqa: B018 - Pyomo checks them only now
        except ValueError as error:
            return f"{_describe(variable)}: {error}"
    return None


def _check_figures(matrix: Matrix) -> None:
    """Raise `FormulationError` for coefficients, bounds and costs that solvers can't take."""
    not_finite = np.flatnonzero(~np.isfinite(matrix.rows.data))
    if len(not_finite):
        row = int(np.searchsorted(matrix.rows.indptr, not_finite[0], side="right")) - 1
        raise FormulationError(
            f"{_describe(matrix.constraints[row])} has the coefficient {matrix.rows.data[not_finite[0]]}"
        )
    bounds = np.where(np.isneginf(matrix.row_lower), matrix.row_upper, matrix.row_lower)
    if not np.isfinite(bounds).all():
        row = int(np.flatnonzero(~np.isfinite(bounds))[0])
        raise FormulationError(f"{_describe(matrix.constraints[row])} has the bound {bounds[row]}")
    for what, is_bad in (
        ("cost", ~np.isfinite(matrix.costs)),
        ("bound", np.isnan(matrix.lower) | np.isnan(matrix.upper)),
    ):
        if is_bad.any():
            variable = matrix.columns.variables[int(np.flatnonzero(is_bad)[0])]
            raise FormulationError(f"{_describe(variable)} has a {what} that is no number")


def _describe(component: Any) -> str:
    """Return a component's block, kind and name: `block 'few_reads': constraint few_reads.within`."""
    return f"block '{component.name.partition('.')[0]}': {component.ctype.__name__.lower()} {component.name}"
