"""A Pyomo model as arrays: what every solver takes, and what a model file is written from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyomo.core.base.var import VarData

from poetopt.backends.solvers.solver import Floats, Frozen
from poetopt.formulations.rows import Row
from poetopt.util.errors import FormulationError
from poetopt.util.sparse import csr_matrix, vstack

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Columns:
    """Which column is which Pyomo variable."""

    variables: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_of", {id(variable): x for x, variable in enumerate(self.variables)})
        object.__setattr__(self, "_known", {})

    def __len__(self) -> int:
        return len(self.variables)

    def of(self, variable: Any) -> Ints:
        """The columns of an indexed variable's entries, in index order; -1 for one that no row or cost mentions."""
        known: dict[int, Ints] = self.__dict__["_known"]
        if id(variable) not in known:
            column: dict[int, int] = self.__dict__["_of"]
            known[id(variable)] = np.array([column.get(id(v), -1) for v in variable.values()], dtype=np.int64)
        return known[id(variable)]

    def spread(self, start: Sequence[tuple[Any, Floats]]) -> Floats:
        """(n,) the values of a start by column, NaN where it has none."""
        values = np.full(len(self.variables), np.nan)
        for variable, array in start:
            columns = self.of(variable)
            values[columns[columns >= 0]] = array[columns >= 0]
        return values

    def frozen(self, parts: Sequence[Frozen]) -> tuple[NDArray[np.int32], Floats]:
        """The columns that are held, and at what."""
        held: list[Ints] = [np.zeros(0, dtype=np.int64)]
        values: list[Floats] = [np.zeros(0)]
        for part in parts:
            columns = self.of(part.variable)
            chosen = part.mask & (columns >= 0)
            held.append(columns[chosen])
            values.append(part.values[chosen])
        return np.concatenate(held).astype(np.int32), np.concatenate(values)

    def compress(self, rows: Sequence[Row]) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
        """(starts, columns, coefficients) of rows found by separators, with repeated variables merged.

        Raises FormulationError for a variable that is no column.
        """
        column: dict[int, int] = self.__dict__["_of"]
        starts: list[int] = []
        indices: list[int] = []
        values: list[float] = []
        for row in rows:
            starts.append(len(indices))
            try:  # no step of Python for each entry: a round has hundreds of rows of hundreds of entries
                found = list(map(column.__getitem__, map(id, row.variables)))
            except KeyError:
                unknown = next(variable for variable in row.variables if id(variable) not in column)
                raise FormulationError(_unknown(row, unknown)) from None
            merged = dict(zip(found, row.coefficients, strict=True))
            if len(merged) < len(found):
                merged = dict.fromkeys(found, 0.0)
                for x, coefficient in zip(found, row.coefficients, strict=True):
                    merged[x] += coefficient
            indices += merged
            values += merged.values()
        return np.array(starts, dtype=np.int32), np.array(indices, dtype=np.int32), np.array(values, dtype=float)


def _unknown(row: Row, variable: Any) -> str:
    """What is wrong with a row over what is no column, and whose row it is."""
    found = f"block '{row.block}': " if row.block else ""
    if not isinstance(variable, VarData):
        return f"{found}a separator's row ({row.kind}) has a {type(variable).__name__} in place of a variable's entry"
    return (
        f"{found}a separator's row ({row.kind}) uses the variable {variable.name}, which no other row or cost of the "
        "model mentions; give it a cost or a constraint in its block"
    )


@dataclass(frozen=True, eq=False)
class Matrix:
    """min costs x + constant, row_lower <= rows x <= row_upper, lower <= x <= upper, x[integer] whole.

    costs, lower, upper, integer
        (n,), in the model's own units.
    rows
        (m, n), compressed by rows; `row_lower` and `row_upper` are (m,).
    constraints
        For each row of the model proper, its Pyomo constraint; rows found by separators have none.
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
        """The same variables under `rows` alone."""
        starts, indices, values = self.columns.compress(rows)
        return replace(
            self,
            rows=csr_matrix((values, indices, [*starts, len(indices)]), shape=(len(rows), len(self.columns))),
            row_lower=np.array([row.lower for row in rows], dtype=float),
            row_upper=np.array([row.upper for row in rows], dtype=float),
            constraints=(),
        )

    def extended(self, rows: Sequence[Row]) -> Matrix:
        """The same with further rows below."""
        if not rows:
            return self
        below = self.only(rows)
        return replace(
            self,
            rows=vstack([self.rows, below.rows], format="csr"),
            row_lower=np.concatenate([self.row_lower, below.row_lower]),
            row_upper=np.concatenate([self.row_upper, below.row_upper]),
        )

    def scaled(self, factor: float) -> Matrix:
        """The same with the objective times `factor`."""
        return replace(self, costs=self.costs * factor, constant=self.constant * factor)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.rows.shape[0]), len(self.columns)
