"""Rows in HiGHS's format, and the pool from which a solver takes the rows that it needs."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.matrix import Columns, Matrix
from poetopt.formulations.rows import Floats, Row
from poetopt.util.sparse import csr_matrix, vstack


@dataclass(frozen=True)
class HighsRows:
    """Rows that were added together: `rows` is (m, n), the other fields are (m,).

    Attributes
    ----------
    slack
        Violation from which the row enters the solver.
    """

    rows: csr_matrix
    lower: Floats
    upper: Floats
    slack: Floats

    def only(self, places: Sequence[int] | Places) -> HighsRows:
        """Return the rows at these places."""
        indices = np.array(places, dtype=np.int64)
        return HighsRows(self.rows[indices], self.lower[indices], self.upper[indices], self.slack[indices])

    def append_to(self, solver: highspy.Highs) -> None:
        """Append these rows to the model in `solver`."""
        starts, indices = (x.astype(np.int32) for x in (self.rows.indptr[:-1], self.rows.indices))
        if len(self.lower):
            solver.addRows(len(self.lower), self.lower, self.upper, len(indices), starts, indices, self.rows.data)


def compressed(columns: Columns, rows: Sequence[Row]) -> HighsRows:
    """Return the rows found by separators. Raise `PoetError` for a row over a variable without a column."""
    starts, indices, values = columns.compress(rows)
    matrix = csr_matrix((values, indices, np.append(starts, len(indices))), shape=(len(rows), len(columns)))
    lower = np.array([row.lower for row in rows], dtype=float)
    upper = np.array([row.upper for row in rows], dtype=float)
    return _part(matrix, lower, upper, np.array([row.core for row in rows], dtype=bool))


def basic_rows(basis: highspy.HighsBasis) -> NDArray[np.bool_]:
    """Return an (m,) mask of the rows that don't bind at `basis`."""
    basic = highspy.HighsBasisStatus.kBasic
    return np.array([status == basic for status in basis.row_status], dtype=bool)


def largest(rows: csr_matrix) -> Floats:
    """Return the largest absolute coefficient of each row, (m,)."""
    if not rows.shape[1]:
        return np.zeros(rows.shape[0])
    magnitudes: Floats = abs(rows).max(axis=1).toarray().reshape(-1)
    return magnitudes


# The pool has all rows of a model's relaxations. A session, and each explorer of a tree, has only the rows that it
# needs in its solver.
#
# Most rows of a model never bind (three of four in a large one), and of thousands of cuts few bind at one point. Each
# iteration of the simplex method takes time for all rows in the solver. So rows that don't bind wait in the pool until
# a point violates them. The solver's model has fewer rows than the model itself, so its optimum is still a bound.


Places = NDArray[np.int64]


class RowPool:
    """Rows by number, in the order in which they were added. Threads share it.

    Parameters
    ----------
    matrix
        Model, whose rows come first.
    """

    def __init__(self, matrix: Matrix) -> None:
        is_core = np.ones(len(matrix.row_lower), dtype=bool)
        self._parts = [_part(matrix.rows, matrix.row_lower, matrix.row_upper, is_core)]
        self._count = len(is_core)
        self._known: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def add(self, rows: HighsRows, *, anew: bool = False) -> Places:
        """Add rows found by separators, and return their numbers, (m,).

        A row that the pool has keeps its number, unless `anew` gives every row a new one.
        """
        keys = _keys(rows)
        with self._lock:
            added: list[int] = []
            numbers: list[int] = []
            for index, key in enumerate(keys):
                if anew or key not in self._known:
                    self._known[key] = self._count + len(added)
                    added.append(index)
                numbers.append(self._known[key])
            if added:
                self._parts.append(rows.only(added))
                self._count += len(added)
            # more than this many parts are joined into one matrix
            if len(self._parts) > 8:
                self._parts = [*self._parts[:2], _joined(self._parts[2:])]
                if len(self._parts[2].lower) > len(self._parts[1].lower):
                    self._parts = [self._parts[0], _joined(self._parts[1:])]
            return np.array(numbers, dtype=np.int64)

    def broken(self, values: Floats, active: NDArray[np.bool_]) -> Places:
        """Return the numbers of the rows that the point `values` (n,) violates, without `active` ((m,) or fewer)."""
        parts = []
        for part in self._all():
            activity = part.rows @ values
            parts.append(np.maximum(part.lower - activity, activity - part.upper) > part.slack)
        is_violated = np.concatenate(parts)
        is_violated[: len(active)] &= ~active
        return np.flatnonzero(is_violated)

    def rows(self, places: Places) -> HighsRows:
        """Return the rows of these numbers, in this order."""
        parts = self._all()
        starts = np.cumsum([0, *(len(part.lower) for part in parts)])
        owner = np.searchsorted(starts, places, side="right") - 1
        selected = [(x, places[owner == x] - starts[x]) for x in range(len(parts))]
        order = np.empty(len(places), dtype=np.int64)
        order[np.concatenate([np.flatnonzero(owner == x) for x, _ in selected])] = np.arange(len(places))
        return _joined([parts[x].only(indices) for x, indices in selected]).only(order)

    def _all(self) -> list[HighsRows]:
        with self._lock:
            return list(self._parts)


def _part(rows: csr_matrix, lower: Floats, upper: Floats, core: NDArray[np.bool_]) -> HighsRows:
    scale = largest(rows)
    # shares of a row's largest coefficient. Beyond the first violation a row of the model enters the solver, beyond the
    # second a cut: separators ask for more.
    return HighsRows(rows, lower, upper, np.where(core, 1e-6 * np.maximum(scale, 1.0), 5e-3 * scale))


def _joined(parts: Sequence[HighsRows]) -> HighsRows:
    return HighsRows(
        vstack([part.rows for part in parts], format="csr"),
        np.concatenate([part.lower for part in parts]),
        np.concatenate([part.upper for part in parts]),
        np.concatenate([part.slack for part in parts]),
    )


def _keys(rows: HighsRows) -> list[bytes]:
    """Return a key of each row: a hash of its terms, sides and slack."""
    matrix, sides = rows.rows, np.stack([rows.lower, rows.upper, rows.slack], axis=1)
    return [
        blake2b(
            matrix.indices[begin:end].tobytes() + matrix.data[begin:end].tobytes() + side.tobytes(), digest_size=16
        ).digest()
        for (begin, end), side in zip(itertools.pairwise(matrix.indptr.tolist()), sides, strict=True)
    ]


class PresentRows:
    """Rows of `pool` that are in `solver`.

    Attributes
    ----------
    numbers
        (m,) the pool's numbers of those rows, in the order of `solver`.
    """

    def __init__(self, solver: highspy.Highs, pool: RowPool, numbers: Places) -> None:
        self._solver = solver
        self.pool, self.numbers = pool, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def bring_in(self, numbers: Places) -> Places:
        """Append the rows that are missing, and return their numbers, (k,), each once."""
        is_missing = np.zeros(len(self.pool), dtype=bool)
        is_missing[numbers] = True
        is_missing[self.numbers] = False
        missing: Places = np.flatnonzero(is_missing)
        if len(missing):
            self.pool.rows(missing).append_to(self._solver)
            self.numbers = np.concatenate([self.numbers, missing])
        return missing

    def drop(self, places: NDArray[np.int64]) -> None:
        """Remove the rows at these places (k,) of `numbers`."""
        self._solver.deleteRows(len(places), places.astype(np.int32))
        self.numbers = np.delete(self.numbers, places)

    def broken(self, values: Floats) -> Places:
        """Return the rows outside of the solver that the point `values` (n,) violates."""
        is_present = np.zeros(len(self.pool), dtype=bool)
        is_present[self.numbers] = True
        return self.pool.broken(values, is_present)
