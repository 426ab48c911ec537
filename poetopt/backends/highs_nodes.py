"""Trees of relaxations in HiGHS: one more Highs object, whose bounds and basis are set before each solve."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.highs_interrupt import SEARCH, Interrupt
from poetopt.backends.highs_rows import HighsRows, Waiting, compressed, rows_of
from poetopt.backends.matrix import Matrix
from poetopt.backends.nodes import Floats, StoppedError, Vertex
from poetopt.backends.solver import Point
from poetopt.errors import FormulationError
from poetopt.formulations.rows import Count, Row

PROBE_ITERATIONS = 300
"""Of the simplex method, for each side that is probed: what a branching is worth shows long before its optimum."""
_NO_LIMIT = 2**31 - 1
_NOTHING = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kObjectiveBound)
_SEARCHED = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit)
"""How a search ends that has a bound."""


def pass_integers(solver: highspy.Highs, integer: NDArray[np.bool_]) -> None:
    """Make the columns integers that (n,) `integer` names."""
    columns = np.flatnonzero(integer).astype(np.int32)
    kind = int(highspy.HighsVarType.kInteger)
    solver.changeColsIntegrality(len(columns), columns, np.full(len(columns), kind, dtype=np.uint8))


class _Relaxation:
    """What twins share: the relaxation from which they begin, and the rows since, in the order in which they came.

    The row at one place is the same in all of them, so that a basis of one is a basis of the other.

    lp, basis
        Where the session's last solve ended.
    waits
        (m,) which of the model's own rows wait outside of it.
    counted
        For each count, the columns that it is the sum of.
    """

    def __init__(
        self,
        lp: highspy.HighsLp,
        basis: highspy.HighsBasis,
        waits: NDArray[np.bool_],
        counted: Sequence[NDArray[np.int64]],
    ) -> None:
        self.lp, self.basis, self.waits, self.counted = lp, basis, waits, counted
        self._outside = self.waits.copy()
        self._later: list[tuple[HighsRows, NDArray[np.int64]]] = []
        self.guard = threading.Lock()
        """Held while rows or a basis change."""

    def since(self, count: int) -> list[tuple[HighsRows, NDArray[np.int64]]]:
        """What came after the first `count`: rows, and the places of those that waited. For who holds the guard."""
        return self._later[count:]

    def pass_to(self, solver: highspy.Highs) -> None:
        """Give it to a solver, with a further column for each count, basic as nothing bounds it."""
        solver.passModel(self.lp)
        basis, n = self.basis, self.lp.num_col_
        if self.counted:
            sizes = np.array([len(columns) for columns in self.counted])
            zeros = np.zeros(len(sizes))
            empty = np.zeros(0, dtype=np.int32)
            solver.addCols(
                len(sizes), zeros, zeros, sizes.astype(float), 0, np.zeros(len(sizes), dtype=np.int32), empty, zeros[:0]
            )
            entries = [np.append(columns, n + k) for k, columns in enumerate(self.counted)]
            ones = [np.append(np.ones(size), -1.0) for size in sizes]
            starts = np.concatenate([[0], np.cumsum(sizes + 1)[:-1]])
            HighsRows(
                zeros,
                zeros,
                starts.astype(np.int32),
                np.concatenate(entries).astype(np.int32),
                np.concatenate(ones),
            ).append_to(solver)
            basis = highspy.HighsBasis()
            basis.col_status = [*self.basis.col_status, *[highspy.HighsBasisStatus.kBasic] * len(sizes)]
            basis.row_status = [*self.basis.row_status, *[highspy.HighsBasisStatus.kLower] * len(sizes)]
            basis.valid = True
        solver.setBasis(basis)

    def add(self, rows: HighsRows) -> None:
        """Rows that separators found."""
        with self.guard:
            self._later.append((rows, np.zeros(0, dtype=np.int64)))

    def bring_in(self, places: NDArray[np.int64], matrix: Matrix) -> None:
        """Those of the rows at `places` that still wait outside."""
        with self.guard:
            places = places[self._outside[places]]
            if len(places):
                self._outside[places] = False
                self._later.append((rows_of(matrix, places), places))


class HighsNodes:
    """See `poetopt.backends.nodes.Nodes`."""

    def __init__(
        self,
        fresh: Callable[[Interrupt], highspy.Highs],
        relaxation: _Relaxation,
        matrix: Matrix,
        bounds: tuple[Floats, Floats],
        scale: float,
        stop: Interrupt,
    ) -> None:
        """Begin where `relaxation` does.

        fresh
            A new object of HiGHS, whose simplex method an interrupt ends.
        matrix
            The model that it came from; `bounds`, (n,) each, may be tighter than its own.
        scale
            What the objective was multiplied by.
        stop
            The interrupt.
        """
        self._fresh, self._relaxation = fresh, relaxation
        self._matrix, self._scale, self._stop = matrix, scale, stop
        sizes = np.array([len(columns) for columns in relaxation.counted], dtype=float)
        self.counts = len(sizes)
        self.integer = np.append(matrix.integer, np.ones(len(sizes), dtype=bool))
        self.costs = np.append(matrix.costs, np.zeros(len(sizes)))
        # copies, as the session tightens its own
        self.lower, self.upper = np.append(bounds[0], np.zeros(len(sizes))), np.append(bounds[1], sizes)
        self._at = self.lower, self.upper
        self._columns: NDArray[np.int32] = np.arange(len(self.lower), dtype=np.int32)
        self._waiting = Waiting(matrix, relaxation.waits)
        self._seen = 0
        """How many of the relaxation's later rows are here."""
        self._lp = solver = fresh(stop)
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("presolve", "off")  # every solve begins from a basis
        relaxation.pass_to(solver)

    @classmethod
    def of(
        cls,
        fresh: Callable[[Interrupt], highspy.Highs],
        lp: highspy.HighsLp,
        basis: highspy.HighsBasis,
        waits: NDArray[np.bool_],
        matrix: Matrix,
        bounds: tuple[Floats, Floats],
        scale: float,
        counts: Sequence[Count] = (),
    ) -> HighsNodes:
        """The nodes of the relaxation `lp`, whose last solve ended at `basis`, and outside of which rows wait.

        For the rest see `HighsNodes`. Raises FormulationError for a count of what isn't whole.
        """
        found = [matrix.columns.of(count.variable)[count.entries] for count in counts]
        counted = [columns[columns >= 0] for columns in found]
        for count, columns in zip(counts, counted, strict=True):
            if not matrix.integer[columns].all():
                raise FormulationError(f"a count sums {count.variable.name}, of which not all entries are whole")
        relaxation = _Relaxation(lp, basis, waits, counted)
        return cls(fresh, relaxation, matrix, bounds, scale, Interrupt())

    def twin(self) -> HighsNodes:
        """The same relaxation for one more thread."""
        n = len(self._matrix.costs)
        bounds = self.lower[:n], self.upper[:n]
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
            broken = self._waiting.broken(self._matrix.rows @ values[: len(values) - self.counts])
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
        rows_of(self._matrix, np.flatnonzero(self._waiting.outside)).append_to(solver)
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
        stop.attach(solver, SEARCH)
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
        self._relaxation.add(compressed(self._matrix.columns, rows))

    def _catch_up(self) -> None:
        """Append what came to the relaxation since the last solve."""
        for rows, places in self._relaxation.since(self._seen):
            rows.append_to(self._lp)
            self._waiting.outside[places] = False
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
