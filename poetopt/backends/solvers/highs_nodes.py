"""Trees of relaxations in HiGHS: one more Highs object, whose bounds and basis are set before each solve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.highs_interrupt import NO_LIMIT, Interrupt, run
from poetopt.backends.solvers.highs_rows import Places, PresentRows, RowPool, compressed
from poetopt.backends.solvers.matrix import Matrix
from poetopt.backends.solvers.nodes import StoppedError, Vertex
from poetopt.backends.solvers.solver import DualProof, Point
from poetopt.formulations.rows import Floats, Row
from poetopt.util.sparse import csr_matrix

_NOTHING = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kObjectiveBound)


def pass_integers(solver: highspy.Highs, integer: NDArray[np.bool_]) -> None:
    """Make the columns integers that (n,) `integer` names."""
    columns = np.flatnonzero(integer).astype(np.int32)
    kind = int(highspy.HighsVarType.kInteger)
    solver.changeColsIntegrality(len(columns), columns, np.full(len(columns), kind, dtype=np.uint8))


@dataclass(frozen=True)
class _Basis:
    """Of a relaxation whose rows are those of the pool at (m,) `places`."""

    highs: highspy.HighsBasis
    places: Places


class HighsNodes:
    """See `poetopt.backends.solvers.nodes.Nodes`."""

    def __init__(
        self,
        fresh: Callable[[Interrupt], highspy.Highs],
        matrix: Matrix,
        pool: RowPool,
        places: Places,
        basis: highspy.HighsBasis,
        bounds: tuple[Floats, Floats],
        scale: float,
    ) -> None:
        """The nodes of a relaxation of `matrix` and all rows of `pool`, whose last solve ended at `basis`.

        fresh
            A new object of HiGHS, whose simplex method an interrupt ends.
        places
            The rows that the solve had.
        bounds
            (n,) each; they may be tighter than the model's own.
        scale
            What the objective is multiplied by.
        """
        self._matrix, self._scale, self._stop = matrix, scale, Interrupt()
        self.integer, self.costs = matrix.integer, matrix.costs
        self.lower, self.upper = bounds[0].copy(), bounds[1].copy()  # as the session tightens its own
        self._at = self.lower, self.upper
        self._columns: NDArray[np.int32] = np.arange(len(self.lower), dtype=np.int32)
        self._lp = solver = fresh(self._stop)
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("presolve", "off")  # every solve begins from a basis
        lp = highspy.HighsLp()
        lp.num_col_ = len(self.costs)
        lp.col_cost_ = self.costs * scale
        lp.col_lower_, lp.col_upper_ = self.lower, self.upper
        solver.passModel(lp)
        pool.rows(places).append_to(solver)
        self._rows = PresentRows(solver, pool, places)
        self._coming: Places = np.zeros(0, dtype=np.int64)
        """Those that come before the next solve from where the last one ended."""
        solver.setBasis(basis)

    def enter(self, lower: Floats, upper: Floats) -> None:
        """Go to the node with these bounds."""
        self._at = lower, upper
        self._lp.changeColsBounds(len(self._columns), self._columns, lower, upper)

    def solve(self, basis: object, cutoff: float) -> Vertex | None:
        """The relaxation at this node: those of its rows come in that a vertex breaks."""
        while True:
            status = self._run(basis, cutoff, NO_LIMIT)
            if status in _NOTHING:
                return None
            if status != highspy.HighsModelStatus.kOptimal:
                raise StoppedError  # nothing is proven of this node, so that nothing would be of the tree
            found, objective = self._lp.getSolution(), self._objective()
            if objective >= cutoff:
                return None
            values = np.array(found.col_value)
            self._coming = self._rows.broken(values)
            if not len(self._coming):
                ended = _Basis(self._lp.getBasis(), self._rows.numbers)
                return Vertex(objective, values, ended)
            basis = None

    def proof(self) -> DualProof:
        """The multipliers of the last solve, or a ray where it was infeasible."""
        lp, found = self._lp.getLp(), self._lp.getSolution()
        costs, constant = self.costs, self._matrix.constant
        if self._lp.getModelStatus() in _NOTHING:
            solver: Any = self._lp  # its stubs lack the method
            _, there, ray = solver.getDualRay()
            costs, constant = np.zeros(len(costs)), 0.0
            multipliers = np.array(ray) if there else np.zeros(lp.num_row_)
        else:
            multipliers = np.array(found.row_dual) / self._scale
        matrix, shape = lp.a_matrix_, (lp.num_row_, lp.num_col_)
        parts = matrix.value_, matrix.index_, matrix.start_
        by_row = matrix.format_ == highspy.MatrixFormat.kRowwise
        rows = csr_matrix(parts, shape=shape) if by_row else csr_matrix(parts, shape=shape[::-1]).T.tocsr()
        return DualProof(
            constant=constant,
            costs=costs.tolist(),
            lower=self._at[0].tolist(),
            upper=self._at[1].tolist(),
            starts=rows.indptr.tolist(),
            columns=rows.indices.tolist(),
            values=rows.data.tolist(),
            row_lower=list(lp.row_lower_),
            row_upper=list(lp.row_upper_),
            multipliers=multipliers.tolist(),
        )

    def probe(self, column: int, lower: float, upper: float, basis: object, cutoff: float) -> tuple[float, bool]:
        """The objective with other bounds of one column."""
        self._lp.changeColBounds(column, lower, upper)
        try:
            # of the simplex method, for each side that is probed: what a branching is worth shows long before its
            # optimum
            status = self._run(basis, cutoff, 300)
            objective = self._objective()  # before the bounds change again: HiGHS forgets it then
        finally:
            self._lp.changeColBounds(column, self._at[0][column], self._at[1][column])
        if status in _NOTHING or (status == highspy.HighsModelStatus.kOptimal and objective >= cutoff):
            return math.inf, True
        # at its limit the method may have moved the costs a little: a figure to go by, and no bound
        return objective, status == highspy.HighsModelStatus.kOptimal

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators."""
        numbers = self._rows.pool.add(compressed(self._matrix.columns, rows))
        self._coming = np.union1d(self._coming, numbers)

    def _append(self) -> None:
        """Bring in what is to come."""
        coming, self._coming = self._coming, self._coming[:0]
        self._rows.bring_in(coming)

    def _go(self, basis: _Basis) -> None:
        """To a basis: what binds there comes in."""
        solver, own = self._lp, basis.highs
        more = len(self._rows) - len(basis.places)
        if np.array_equal(self._rows.numbers[: len(basis.places)], basis.places):
            # Its own, as nearly all are: nothing comes in or goes.
            basic = [highspy.HighsBasisStatus.kBasic] * more
            solver.setBasis(_basis(own.col_status, [*own.row_status, *basic]) if more else own)
            return
        numbers = len(self._rows.pool)
        binding, statuses = _binding(basis)
        self._coming = np.union1d(self._coming, binding)
        self._append()
        place = np.zeros(numbers, dtype=np.int64)
        place[self._rows.numbers] = np.arange(len(self._rows))
        rows = [highspy.HighsBasisStatus.kBasic] * len(self._rows)
        for x, status in zip(place[binding].tolist(), statuses, strict=True):
            rows[x] = status
        solver.setBasis(_basis(own.col_status, rows))

    def point(self, vertex: Vertex, integral: bool) -> Point:
        """The vertex by Pyomo component."""
        return Point(vertex.values, self._matrix.columns.of, integral)

    def stop(self) -> None:
        """End the solve at work, and refuse all others."""
        self._stop.set()

    def _objective(self) -> float:
        return float(self._lp.getInfo().objective_function_value) / self._scale + self._matrix.constant

    def _run(self, basis: object, cutoff: float, iterations: int) -> highspy.HighsModelStatus:
        """Solve from `basis`, which may be older than the last rows. Raises StoppedError."""
        if self._stop.is_set():
            raise StoppedError
        solver = self._lp
        if isinstance(basis, _Basis):
            self._coming = self._coming[:0]
            self._go(basis)
        self._append()
        solver.setOptionValue("simplex_iteration_limit", iterations)
        solver.setOptionValue("objective_bound", (cutoff - self._matrix.constant) * self._scale)
        run(solver)
        if solver.getModelStatus() == highspy.HighsModelStatus.kUnknown:
            # What it knows of that basis leaves a reduced cost of the wrong sign; from the basis alone it comes right.
            ended = solver.getBasis()
            solver.clearSolver()
            solver.setBasis(ended)
            run(solver)
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInterrupt:
            raise StoppedError
        return status


def _basis(columns: Sequence[Any], rows: Sequence[Any]) -> highspy.HighsBasis:
    basis = highspy.HighsBasis()
    basis.col_status, basis.row_status = list(columns), list(rows)
    basis.valid = True
    return basis


def _binding(basis: _Basis) -> tuple[Places, list[Any]]:
    """The rows of the pool that aren't basic, and how they are bound."""
    rows = basis.highs.row_status
    bound = [x for x, status in enumerate(rows) if status != highspy.HighsBasisStatus.kBasic]
    return basis.places[bound], [rows[x] for x in bound]
