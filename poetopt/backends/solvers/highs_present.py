"""Which rows of a pool one Highs object has; the others wait outside."""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.highs_pool import Places, RowPool
from poetopt.backends.solvers.solver import Floats


class PresentRows:
    """Rows of `pool` in `solver`.

    numbers
        (m,) the pool's numbers of those that are there, in the order in which `solver` has them.
    first
        So many rows of `solver` come before them, and are none of the pool's.
    """

    def __init__(self, solver: highspy.Highs, pool: RowPool, numbers: Places, *, first: int = 0) -> None:
        self._solver, self._first = solver, first
        self.pool, self.numbers = pool, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def bring_in(self, numbers: Places) -> Places:
        """Append those that aren't there; which these are, (k,), each once."""
        coming: Places = np.setdiff1d(numbers, self.numbers)
        if len(coming):
            self.pool.rows(coming).append_to(self._solver)
            self.numbers = np.concatenate([self.numbers, coming])
        return coming

    def drop(self, places: NDArray[np.int64]) -> None:
        """Send out the rows at these places (k,) of `numbers`."""
        self._solver.deleteRows(len(places), (places + self._first).astype(np.int32))
        self.numbers = np.delete(self.numbers, places)

    def broken(self, values: Floats) -> Places:
        """Which rows outside the point `values` (n,) breaks."""
        here = np.zeros(len(self.pool), dtype=bool)
        here[self.numbers] = True
        return self.pool.broken(values, here)
