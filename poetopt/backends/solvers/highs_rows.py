"""Rows in the form in which HiGHS takes them."""

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
    """Rows that came at once: (m, n) `rows`, the other fields are (m,).

    slack
        By how much a row is broken before it comes in.
    """

    rows: csr_matrix
    lower: Floats
    upper: Floats
    slack: Floats

    def only(self, places: Sequence[int] | Places) -> HighsRows:
        """Some of them."""
        x = np.array(places, dtype=np.int64)
        return HighsRows(self.rows[x], self.lower[x], self.upper[x], self.slack[x])

    def append_to(self, solver: highspy.Highs) -> None:
        """Append these to the model in `solver`."""
        starts, indices = (x.astype(np.int32) for x in (self.rows.indptr[:-1], self.rows.indices))
        if len(self.lower):
            solver.addRows(len(self.lower), self.lower, self.upper, len(indices), starts, indices, self.rows.data)


def compressed(columns: Columns, rows: Sequence[Row]) -> HighsRows:
    """Rows found by separators. Raises PoetError for one over no column of the model."""
    starts, indices, values = columns.compress(rows)
    matrix = csr_matrix((values, indices, np.append(starts, len(indices))), shape=(len(rows), len(columns)))
    lower = np.array([row.lower for row in rows], dtype=float)
    upper = np.array([row.upper for row in rows], dtype=float)
    return _part(matrix, lower, upper, np.array([row.core for row in rows], dtype=bool))


def basic_rows(basis: highspy.HighsBasis) -> NDArray[np.bool_]:
    """(m,) which rows don't bind at `basis`."""
    basic = highspy.HighsBasisStatus.kBasic
    return np.array([status == basic for status in basis.row_status], dtype=bool)


def largest(rows: csr_matrix) -> Floats:
    """(m,) the largest coefficient of each row, as a magnitude."""
    if not rows.shape[1]:
        return np.zeros(rows.shape[0])
    found: Floats = abs(rows).max(axis=1).toarray().reshape(-1)
    return found


# All rows of a model's relaxations, of which a session, and each explorer of a tree, has in its solver what it needs.
#
# Most rows of a model never bind, three of four in a large one, and of thousands that separators find few bind at one
# point. Each iteration of the simplex method takes time for all that are there, so what doesn't bind waits here until a
# point breaks it: what is solved has fewer rows than the model, so that its optimum is a bound all the same.


Places = NDArray[np.int64]


class RowPool:
    """Rows by number, in the order in which they came. Shared by threads.

    matrix
        The model, whose rows come first.
    """

    def __init__(self, matrix: Matrix) -> None:
        own = np.ones(len(matrix.row_lower), dtype=bool)
        self._parts = [_part(matrix.rows, matrix.row_lower, matrix.row_upper, own)]
        self._count = len(own)
        self._known: dict[bytes, int] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def add(self, rows: HighsRows, *, anew: bool = False) -> Places:
        """Take rows found by separators; their numbers, (m,).

        One that is there already keeps its number, unless all are to have one `anew`.
        """
        keys = _keys(rows)
        with self._guard:
            fresh: list[int] = []
            numbers: list[int] = []
            for x, key in enumerate(keys):
                if anew or key not in self._known:
                    self._known[key] = self._count + len(fresh)
                    fresh.append(x)
                numbers.append(self._known[key])
            if fresh:
                self._parts.append(rows.only(fresh))
                self._count += len(fresh)
            # rows are joined to one matrix once they are in so many
            if len(self._parts) > 8:
                self._parts = [*self._parts[:2], _joined(self._parts[2:])]
                if len(self._parts[2].lower) > len(self._parts[1].lower):
                    self._parts = [self._parts[0], _joined(self._parts[1:])]
            return np.array(numbers, dtype=np.int64)

    def broken(self, values: Floats, active: NDArray[np.bool_]) -> Places:
        """The rows that the point `values` (n,) breaks, without those that are `active` ((m,), or fewer)."""
        breaks = []
        for part in self._all():
            activity = part.rows @ values
            breaks.append(np.maximum(part.lower - activity, activity - part.upper) > part.slack)
        found = np.concatenate(breaks)
        found[: len(active)] &= ~active
        return np.flatnonzero(found)

    def rows(self, places: Places) -> HighsRows:
        """Those of these numbers, in this order."""
        parts = self._all()
        begins = np.cumsum([0, *(len(part.lower) for part in parts)])
        owner = np.searchsorted(begins, places, side="right") - 1
        picked = [(x, places[owner == x] - begins[x]) for x in range(len(parts))]
        order = np.empty(len(places), dtype=np.int64)
        order[np.concatenate([np.flatnonzero(owner == x) for x, _ in picked])] = np.arange(len(places))
        return _joined([parts[x].only(own) for x, own in picked]).only(order)

    def _all(self) -> list[HighsRows]:
        with self._guard:
            return list(self._parts)


def _part(rows: csr_matrix, lower: Floats, upper: Floats, core: NDArray[np.bool_]) -> HighsRows:
    size = largest(rows)
    # a row of the model comes in where it is broken by more than this share of its largest coefficient
    # a cut does where it is broken by more than this share: separators ask for more
    return HighsRows(rows, lower, upper, np.where(core, 1e-6 * np.maximum(size, 1.0), 5e-3 * size))


def _joined(parts: Sequence[HighsRows]) -> HighsRows:
    return HighsRows(
        vstack([part.rows for part in parts], format="csr"),
        np.concatenate([part.lower for part in parts]),
        np.concatenate([part.upper for part in parts]),
        np.concatenate([part.slack for part in parts]),
    )


def _keys(rows: HighsRows) -> list[bytes]:
    """A key of each row: its terms, sides and slack."""
    found, sides = rows.rows, np.stack([rows.lower, rows.upper, rows.slack], axis=1)
    return [
        blake2b(
            found.indices[begin:end].tobytes() + found.data[begin:end].tobytes() + side.tobytes(), digest_size=16
        ).digest()
        for (begin, end), side in zip(itertools.pairwise(found.indptr.tolist()), sides, strict=True)
    ]


class PresentRows:
    """Rows of `pool` in `solver`.

    numbers
        (m,) the pool's numbers of those that are there, in the order in which `solver` has them.
    """

    def __init__(self, solver: highspy.Highs, pool: RowPool, numbers: Places) -> None:
        self._solver = solver
        self.pool, self.numbers = pool, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def bring_in(self, numbers: Places) -> Places:
        """Append those that aren't there; which these are, (k,), each once."""
        away = np.zeros(len(self.pool), dtype=bool)
        away[numbers] = True
        away[self.numbers] = False
        coming: Places = np.flatnonzero(away)
        if len(coming):
            self.pool.rows(coming).append_to(self._solver)
            self.numbers = np.concatenate([self.numbers, coming])
        return coming

    def drop(self, places: NDArray[np.int64]) -> None:
        """Send out the rows at these places (k,) of `numbers`."""
        self._solver.deleteRows(len(places), places.astype(np.int32))
        self.numbers = np.delete(self.numbers, places)

    def broken(self, values: Floats) -> Places:
        """The rows outside that the point `values` (n,) breaks."""
        here = np.zeros(len(self.pool), dtype=bool)
        here[self.numbers] = True
        return self.pool.broken(values, here)
