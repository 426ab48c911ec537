"""Rows in HiGHS: the form in which it takes them, and which of a model's own wait outside of a relaxation.

Most rows of a model never bind, three of four in a large one, and each iteration of the simplex method takes time for
all that are there. So rows come in once a point breaks them, and go when they don't bind: what is solved has fewer
rows than the model, so that its optimum is a bound all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.matrix import Columns, Matrix
from poetopt.backends.solver import Floats
from poetopt.formulations.rows import Row
from poetopt.sparse import csr_matrix

BROKEN = 1e-6
"""A row that waits outside comes in where it is broken by more than this share of its largest coefficient."""


@dataclass(frozen=True)
class HighsRows:
    """Rows as HiGHS takes them: bounds, and the entries row by row."""

    lower: Floats
    upper: Floats
    starts: NDArray[np.int32]
    indices: NDArray[np.int32]
    values: Floats

    def append_to(self, solver: highspy.Highs) -> None:
        """Append these to the model in `solver`."""
        if len(self.lower):
            solver.addRows(
                len(self.lower), self.lower, self.upper, len(self.indices), self.starts, self.indices, self.values
            )


def rows_of(matrix: Matrix, places: NDArray[np.int64]) -> HighsRows:
    """The model's own rows at `places`."""
    rows = matrix.rows[places]
    starts, indices = rows.indptr[:-1].astype(np.int32), rows.indices.astype(np.int32)
    return HighsRows(matrix.row_lower[places], matrix.row_upper[places], starts, indices, rows.data)


def compressed(columns: Columns, rows: Sequence[Row]) -> HighsRows:
    """Rows found by separators. Raises PoetError for one over no column of the model."""
    starts, indices, values = columns.compress(rows)
    lower = np.array([row.lower for row in rows], dtype=float)
    upper = np.array([row.upper for row in rows], dtype=float)
    return HighsRows(lower, upper, starts, indices, values)


def basic_rows(basis: highspy.HighsBasis) -> NDArray[np.bool_]:
    """(m,) which rows don't bind at `basis`."""
    basic = highspy.HighsBasisStatus.kBasic
    return np.array([status == basic for status in basis.row_status], dtype=bool)


def largest(rows: csr_matrix) -> Floats:
    """(m,) the largest coefficient of each row, as a magnitude."""
    found: Floats = abs(rows).max(axis=1).toarray().reshape(-1)
    return found


class Waiting:
    """Which of a model's own rows are outside of a relaxation: (m,) bool `outside`, which its owner changes."""

    def __init__(self, matrix: Matrix, outside: NDArray[np.bool_]) -> None:
        self.outside = outside.copy()
        self._matrix = matrix
        self._slack = BROKEN * np.maximum(largest(matrix.rows), 1.0)

    def broken(self, activity: Floats) -> NDArray[np.int64]:
        """Which of them a point breaks at which the model's rows have the values `activity`, (m,)."""
        return np.flatnonzero(self.outside & self.breaks(activity))

    def breaks(self, activity: Floats) -> NDArray[np.bool_]:
        """(m,) which rows of the model it breaks, outside or not."""
        beyond = np.maximum(self._matrix.row_lower - activity, activity - self._matrix.row_upper)
        broken: NDArray[np.bool_] = beyond > self._slack
        return broken
