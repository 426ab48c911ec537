"""Trees of relaxations in HiGHS: one more Highs object, whose bounds and basis are set before each solve.

Of the model's own rows most are far from binding, and a solve of few iterations takes as long as its rows are many. So
those that are basic at the root wait outside, and come in where a vertex breaks them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.matrix import Columns, Matrix
from poetopt.backends.nodes import Floats, StoppedError, Vertex
from poetopt.backends.solver import Point
from poetopt.formulations.language import Row

PROBE_ITERATIONS = 300
"""Of the simplex method, for each side that is probed: what a branching is worth shows long before its optimum."""
BROKEN = 1e-6
"""A row that waits outside comes in where it is broken by more than this share of its largest coefficient."""
_NO_LIMIT = 2**31 - 1
_NOTHING = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kObjectiveBound)


def append_rows(solver: highspy.Highs, columns: Columns, rows: Sequence[Row]) -> None:
    """Append rows found by separators to the model in `solver`. Raises PoetError for one over no column of it."""
    starts, indices, values = columns.compress(rows)
    lower = np.array([row.lower for row in rows], dtype=float)
    upper = np.array([row.upper for row in rows], dtype=float)
    solver.addRows(len(rows), lower, upper, len(indices), starts, indices, values)


class HighsNodes:
    """See `poetopt.backends.nodes.Nodes`."""

    def __init__(
        self,
        solver: highspy.Highs,
        stop: threading.Event,
        lp: highspy.HighsLp,
        basis: highspy.HighsBasis,
        matrix: Matrix,
        bounds: tuple[Floats, Floats],
        scale: float,
    ) -> None:
        """Take over `solver`, which is fresh.

        stop
            What interrupts the simplex method of `solver`.
        lp, basis
            The relaxation and where its last solve ended.
        matrix
            The model that it came from; `bounds`, (n,) each, may be tighter than its own.
        scale
            What the objective was multiplied by.
        """
        self._matrix, self._scale = matrix, scale
        self.integer, self.costs = matrix.integer, matrix.costs
        self.lower, self.upper = bounds[0].copy(), bounds[1].copy()
        self._at = self.lower, self.upper
        self._columns: NDArray[np.int32] = np.arange(len(self.lower), dtype=np.int32)
        self._stop = stop
        self._lp = solver
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("presolve", "off")  # every solve begins from a basis
        solver.passModel(lp)
        waits = np.array([status == highspy.HighsBasisStatus.kBasic for status in basis.row_status], dtype=bool)
        waits[matrix.shape[0] :] = False  # what separators found
        self._outside = waits[: matrix.shape[0]].copy()
        """(m,) which of the model's own rows wait."""
        self._slack = BROKEN * np.maximum(abs(matrix.rows).max(axis=1).toarray().reshape(-1), 1.0)
        places = np.flatnonzero(waits).astype(np.int32)
        solver.deleteRows(len(places), places)
        basis.row_status = [status for status, out in zip(basis.row_status, waits, strict=True) if not out]
        solver.setBasis(basis)

    def enter(self, lower: Floats, upper: Floats) -> None:
        """Go to the node with these bounds."""
        self._at = lower, upper
        self._lp.changeColsBounds(len(self._columns), self._columns, lower, upper)

    def solve(self, basis: object, cutoff: float) -> Vertex | None:
        """The relaxation at this node."""
        while True:
            status = self._run(basis, cutoff, _NO_LIMIT)
            if status in _NOTHING:
                return None
            if status != highspy.HighsModelStatus.kOptimal:
                raise StoppedError  # nothing is proven of this node, so that nothing would be of the tree
            found, objective = self._lp.getSolution(), self._objective()
            if objective >= cutoff:
                return None
            values = np.array(found.col_value)
            broken = self._broken(values)
            if not len(broken):
                return Vertex(objective, values, np.array(found.col_dual) / self._scale, self._lp.getBasis())
            self._bring_in(broken)
            basis = None

    def probe(self, column: int, lower: float, upper: float, basis: object, cutoff: float) -> tuple[float, bool]:
        """What the objective comes to with other bounds of one column."""
        self._lp.changeColBounds(column, lower, upper)
        try:
            status = self._run(basis, cutoff, PROBE_ITERATIONS)
            objective = self._objective()  # before the bounds change again: HiGHS forgets it then
        finally:
            self._lp.changeColBounds(column, self._at[0][column], self._at[1][column])
        if status in _NOTHING or (status == highspy.HighsModelStatus.kOptimal and objective >= cutoff):
            return math.inf, True
        # at its limit the method may have moved the costs a little: a figure to go by, and no bound
        return objective, status == highspy.HighsModelStatus.kOptimal

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators."""
        append_rows(self._lp, self._matrix.columns, rows)

    def _broken(self, values: Floats) -> NDArray[np.int64]:
        """Which of the rows outside `values` break."""
        matrix = self._matrix
        activity = matrix.rows @ values
        beyond = np.maximum(matrix.row_lower - activity, activity - matrix.row_upper)
        return np.flatnonzero(self._outside & (beyond > self._slack))

    def _bring_in(self, places: NDArray[np.int64]) -> None:
        matrix = self._matrix
        rows = matrix.rows[places]
        self._outside[places] = False
        lower, upper = matrix.row_lower[places], matrix.row_upper[places]
        starts, indices = rows.indptr[:-1].astype(np.int32), rows.indices.astype(np.int32)
        self._lp.addRows(len(places), lower, upper, rows.nnz, starts, indices, rows.data)

    def point(self, vertex: Vertex, integral: bool) -> Point:
        """The vertex by Pyomo component."""
        return Point(vertex.values, self._matrix.columns.of, integral)

    def stop(self) -> None:
        """End the solve at work, and refuse all others."""
        self._stop.set()

    def _objective(self) -> float:
        value: float = self._lp.getInfo().objective_function_value
        return value / self._scale + self._matrix.constant

    def _run(self, basis: object, cutoff: float, iterations: int) -> highspy.HighsModelStatus:
        """Solve from `basis`, which may be older than the last rows. Raises StoppedError."""
        if self._stop.is_set():
            raise StoppedError
        solver = self._lp
        if isinstance(basis, highspy.HighsBasis):
            missing = solver.getNumRow() - len(basis.row_status)
            if missing:
                basis.row_status = [*basis.row_status, *[highspy.HighsBasisStatus.kBasic] * missing]
            solver.setBasis(basis)
        solver.setOptionValue("simplex_iteration_limit", iterations)
        solver.setOptionValue("objective_bound", (cutoff - self._matrix.constant) * self._scale)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInterrupt:
            raise StoppedError
        return status
