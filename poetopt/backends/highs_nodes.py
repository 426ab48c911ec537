"""Trees of relaxations in HiGHS: one more Highs object, whose bounds and basis are set before each solve.

Of the model's own rows most are far from binding, and a solve of few iterations takes as long as its rows are many. So
those that are basic at the root wait outside, and come in where a vertex breaks them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
_SEARCHED = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit)
"""How a search ends that has a bound."""


@dataclass(frozen=True)
class _Rows:
    """Rows as HiGHS takes them: bounds, and the entries row by row."""

    lower: Floats
    upper: Floats
    starts: NDArray[np.int32]
    indices: NDArray[np.int32]
    values: Floats

    def append_to(self, solver: highspy.Highs) -> None:
        """Append these to the model in `solver`."""
        solver.addRows(
            len(self.lower), self.lower, self.upper, len(self.indices), self.starts, self.indices, self.values
        )


def _rows_of(matrix: Matrix, places: NDArray[np.int64]) -> _Rows:
    rows = matrix.rows[places]
    starts, indices = rows.indptr[:-1].astype(np.int32), rows.indices.astype(np.int32)
    return _Rows(matrix.row_lower[places], matrix.row_upper[places], starts, indices, rows.data)


def _compressed(columns: Columns, rows: Sequence[Row]) -> _Rows:
    """Raises PoetError for a row over no column of the model."""
    starts, indices, values = columns.compress(rows)
    lower = np.array([row.lower for row in rows], dtype=float)
    upper = np.array([row.upper for row in rows], dtype=float)
    return _Rows(lower, upper, starts, indices, values)


def pass_integers(solver: highspy.Highs, integer: NDArray[np.bool_]) -> None:
    """Make the columns integers that (n,) `integer` names."""
    columns = np.flatnonzero(integer).astype(np.int32)
    kind = int(highspy.HighsVarType.kInteger)
    solver.changeColsIntegrality(len(columns), columns, np.full(len(columns), kind, dtype=np.uint8))


def append_rows(solver: highspy.Highs, columns: Columns, rows: Sequence[Row]) -> None:
    """Append rows found by separators to the model in `solver`. Raises PoetError for one over no column of it."""
    _compressed(columns, rows).append_to(solver)


class _Relaxation:
    """What twins share: the relaxation from which they begin, and the rows since, in the order in which they came.

    The row at one place is the same in all of them, so that a basis of one is a basis of the other.

    lp, basis
        Where the session's last solve ended.
    waits
        (m,) which of the model's own rows are basic there: they wait outside.
    """

    def __init__(self, lp: highspy.HighsLp, basis: highspy.HighsBasis, matrix: Matrix) -> None:
        self.lp, self.basis = lp, basis
        basic = np.array([status == highspy.HighsBasisStatus.kBasic for status in basis.row_status], dtype=bool)
        self.waits = basic[: matrix.shape[0]]  # what comes after is what separators found
        basis.row_status = [
            status for row, status in enumerate(basis.row_status) if row >= len(self.waits) or not self.waits[row]
        ]
        self._outside = self.waits.copy()
        self._later: list[tuple[_Rows, NDArray[np.int64]]] = []
        self.guard = threading.Lock()
        """Held while rows or a basis change."""

    def since(self, count: int) -> list[tuple[_Rows, NDArray[np.int64]]]:
        """What came after the first `count`: rows, and the places of those that waited. For who holds the guard."""
        return self._later[count:]

    def add(self, rows: _Rows) -> None:
        """Rows that separators found."""
        with self.guard:
            self._later.append((rows, np.zeros(0, dtype=np.int64)))

    def bring_in(self, places: NDArray[np.int64], matrix: Matrix) -> None:
        """Those of the rows at `places` that still wait outside."""
        with self.guard:
            places = places[self._outside[places]]
            if len(places):
                self._outside[places] = False
                self._later.append((_rows_of(matrix, places), places))


class HighsNodes:
    """See `poetopt.backends.nodes.Nodes`."""

    def __init__(
        self,
        fresh: Callable[[threading.Event], highspy.Highs],
        relaxation: _Relaxation,
        matrix: Matrix,
        bounds: tuple[Floats, Floats],
        scale: float,
        stop: threading.Event,
    ) -> None:
        """Begin where `relaxation` does.

        fresh
            A new object of HiGHS, whose simplex method an event interrupts.
        matrix
            The model that it came from; `bounds`, (n,) each, may be tighter than its own.
        scale
            What the objective was multiplied by.
        stop
            The event.
        """
        self._fresh, self._relaxation = fresh, relaxation
        self._matrix, self._scale, self._stop = matrix, scale, stop
        self.integer, self.costs = matrix.integer, matrix.costs
        self.lower, self.upper = bounds[0].copy(), bounds[1].copy()  # the session tightens its own
        self._at = self.lower, self.upper
        self._columns: NDArray[np.int32] = np.arange(len(self.lower), dtype=np.int32)
        self._outside = relaxation.waits.copy()
        """(m,) which of the model's own rows aren't here."""
        self._slack = BROKEN * np.maximum(abs(matrix.rows).max(axis=1).toarray().reshape(-1), 1.0)
        self._seen = 0
        """How many of the relaxation's later rows are here."""
        self._lp = solver = fresh(stop)
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("presolve", "off")  # every solve begins from a basis
        solver.passModel(relaxation.lp)
        places = np.flatnonzero(relaxation.waits).astype(np.int32)
        solver.deleteRows(len(places), places)
        solver.setBasis(relaxation.basis)

    @classmethod
    def of(
        cls,
        fresh: Callable[[threading.Event], highspy.Highs],
        lp: highspy.HighsLp,
        basis: highspy.HighsBasis,
        matrix: Matrix,
        bounds: tuple[Floats, Floats],
        scale: float,
    ) -> HighsNodes:
        """The nodes of the relaxation `lp`, whose last solve ended at `basis`. For the rest see `HighsNodes`."""
        return cls(fresh, _Relaxation(lp, basis, matrix), matrix, bounds, scale, threading.Event())

    def twin(self) -> HighsNodes:
        """The same relaxation for one more thread."""
        bounds = self.lower, self.upper
        return HighsNodes(self._fresh, self._relaxation, self._matrix, bounds, self._scale, self._stop)

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
            self._relaxation.bring_in(broken, self._matrix)
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

    def search(self, cutoff: float, seconds: float, on_point: Callable[[Point], None]) -> tuple[float, bool]:
        """HiGHS's search of this node, from presolve on: where little is open, it closes what a tree takes long for.

        It may notice `stop` late: presolve and its first relaxation don't look.
        """
        with self._relaxation.guard:
            self._catch_up()
        solver, stop = self._fresh(self._stop), self._stop
        solver.setOptionValue("output_flag", False)
        solver.passModel(self._lp.getLp())
        _rows_of(self._matrix, np.flatnonzero(self._outside)).append_to(solver)
        pass_integers(solver, self.integer)
        solver.setOptionValue("time_limit", seconds)
        solver.setOptionValue("mip_rel_gap", 0.0)
        solver.setOptionValue("objective_bound", self._scaled(cutoff))

        best = cutoff

        def told(value: float, values: Floats) -> None:
            nonlocal best
            if value < best and not stop.is_set():
                best = value
                on_point(Point(values, self._matrix.columns.of, True))

        def improving(event: Any) -> None:
            data = event.data_out
            told(self._unscaled(data.objective_function_value), np.array(data.mip_solution))

        solver.cbMipImprovingSolution += improving
        solver.cbMipInterrupt += lambda event: event.interrupt() if stop.is_set() else None
        solver.run()
        if stop.is_set():
            raise StoppedError
        info, status = solver.getInfo(), solver.getModelStatus()
        if status in _NOTHING and info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusNone:
            return cutoff, True
        if status not in _SEARCHED:  # as where a point was found that breaks a row by a little
            return -math.inf, False
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            told(self._unscaled(info.objective_function_value), np.array(solver.getSolution().col_value))
        proven = self._unscaled(info.mip_dual_bound)
        ended = status == highspy.HighsModelStatus.kOptimal
        return (min(proven, cutoff) if math.isfinite(proven) else -math.inf), ended

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators."""
        self._relaxation.add(_compressed(self._matrix.columns, rows))

    def _broken(self, values: Floats) -> NDArray[np.int64]:
        """Which of the rows outside `values` break."""
        matrix = self._matrix
        activity = matrix.rows @ values
        beyond = np.maximum(matrix.row_lower - activity, activity - matrix.row_upper)
        return np.flatnonzero(self._outside & (beyond > self._slack))

    def _catch_up(self) -> None:
        """Append what came to the relaxation since the last solve."""
        for rows, places in self._relaxation.since(self._seen):
            rows.append_to(self._lp)
            self._outside[places] = False
            self._seen += 1

    def point(self, vertex: Vertex, integral: bool) -> Point:
        """The vertex by Pyomo component."""
        return Point(vertex.values, self._matrix.columns.of, integral)

    def stop(self) -> None:
        """End the solve at work, and refuse all others."""
        self._stop.set()

    def _objective(self) -> float:
        return self._unscaled(self._lp.getInfo().objective_function_value)

    def _unscaled(self, value: float) -> float:
        return value / self._scale + self._matrix.constant

    def _scaled(self, value: float) -> float:
        return (value - self._matrix.constant) * self._scale

    def _run(self, basis: object, cutoff: float, iterations: int) -> highspy.HighsModelStatus:
        """Solve from `basis`, which may be older than the last rows. Raises StoppedError."""
        if self._stop.is_set():
            raise StoppedError
        solver = self._lp
        with self._relaxation.guard:
            self._catch_up()
            if isinstance(basis, highspy.HighsBasis):
                missing = solver.getNumRow() - len(basis.row_status)
                if missing:
                    basis.row_status = [*basis.row_status, *[highspy.HighsBasisStatus.kBasic] * missing]
                solver.setBasis(basis)
        solver.setOptionValue("simplex_iteration_limit", iterations)
        solver.setOptionValue("objective_bound", self._scaled(cutoff))
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInterrupt:
            raise StoppedError
        return status
