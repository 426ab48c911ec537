"""Rows in the form in which HiGHS takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.matrix import Columns
from poetopt.backends.solvers.solver import Floats
from poetopt.formulations.rows import Row
from poetopt.util.sparse import csr_matrix


@dataclass(frozen=True)
class HighsRows:
    """Rows as HiGHS takes them: bounds, and the entries row by row."""

    lower: Floats
    upper: Floats
    starts: NDArray[np.int32]
    indices: NDArray[np.int32]
    values: Floats

    @property
    def ends(self) -> NDArray[np.int64]:
        """(m + 1,) where each row begins among the entries, and where the last one ends."""
        return np.append(self.starts, len(self.indices)).astype(np.int64)

    def append_to(self, solver: highspy.Highs) -> None:
        """Append these to the model in `solver`."""
        if len(self.lower):
            solver.addRows(
                len(self.lower), self.lower, self.upper, len(self.indices), self.starts, self.indices, self.values
            )


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
