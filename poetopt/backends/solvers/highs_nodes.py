"""Branch-and-bound trees in HiGHS: a separate Highs object, whose bounds and basis are set before each solve."""

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
    """Declare the columns of the mask `integer` (n,) as integers."""
    columns = np.flatnonzero(integer).astype(np.int32)
    kind = int(highspy.HighsVarType.kInteger)
    solver.changeColsIntegrality(len(columns), columns, np.full(len(columns), kind, dtype=np.uint8))


@dataclass(frozen=True)
class _Basis:
    """Basis of a relaxation whose rows are those of the pool at `places` (m,)."""

    highs: highspy.HighsBasis
    places: Places


class HighsNodes:
    """Implementation of `poetopt.backends.solvers.nodes.Nodes`."""

    def __init__(
        self,
        new_solver: Callable[[Interrupt], highspy.Highs],
        matrix: Matrix,
        pool: RowPool,
        places: Places,
        basis: highspy.HighsBasis,
        bounds: tuple[Floats, Floats],
        scale: float,
    ) -> None:
        """Create the nodes of a relaxation of `matrix` and all rows of `pool`, whose last solve ended at `basis`.

        Parameters
        ----------
        fresh
            Creates an object of HiGHS, whose simplex method the interrupt ends.
        places
            Rows of that solve.
        bounds
            (n,) each; they may be tighter than the model's own.
        scale
            Factor of the objective.
        """
        self._matrix, self._scale, self._stop = matrix, scale, Interrupt()
        self.integer, self.costs = matrix.integer, matrix.costs
        self.lower, self.upper = bounds[0].copy(), bounds[1].copy()  # the session tightens its own in place
        self._bounds = self.lower, self.upper
        self._columns: NDArray[np.int32] = np.arange(len(self.lower), dtype=np.int32)
        self._lp = solver = new_solver(self._stop)
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("presolve", "off")  # every solve begins from a basis
        lp = highspy.HighsLp()
        lp.num_col_ = len(self.costs)
        lp.col_cost_ = self.costs * scale
        lp.col_lower_, lp.col_upper_ = self.lower, self.upper
        solver.passModel(lp)
        pool.rows(places).append_to(solver)
        self._rows = PresentRows(solver, pool, places)
        self._pending: Places = np.zeros(0, dtype=np.int64)
        """Rows to append before the next solve."""
        solver.setBasis(basis)

    def enter(self, lower: Floats, upper: Floats) -> None:
        """Go to the node with these bounds."""
        self._bounds = lower, upper
        self._lp.changeColsBounds(len(self._columns), self._columns, lower, upper)

    def solve(self, basis: object, cutoff: float) -> Vertex | None:
        """Solve the relaxation at this node; rows that a vertex violates enter the solver."""
        while True:
            status = self._run(basis, cutoff, NO_LIMIT)
            if status in _NOTHING:
                return None
            if status != highspy.HighsModelStatus.kOptimal:
                raise StoppedError  # without a proof for this node there is none for the tree
            solution, objective = self._lp.getSolution(), self._objective()
            if objective >= cutoff:
                return None
            values = np.array(solution.col_value)
            self._pending = self._rows.broken(values)
            if not len(self._pending):
                final_basis = _Basis(self._lp.getBasis(), self._rows.numbers)
                return Vertex(objective, values, final_basis)
            basis = None

    def proof(self) -> DualProof:
        """Return the multipliers of the last solve, or a ray where it was infeasible."""
        lp, solution = self._lp.getLp(), self._lp.getSolution()
        costs, constant = self.costs, self._matrix.constant
        if self._lp.getModelStatus() in _NOTHING:
            solver: Any = self._lp  # its stubs lack the method
            _, has_ray, ray = solver.getDualRay()
            costs, constant = np.zeros(len(costs)), 0.0
            multipliers = np.array(ray) if has_ray else np.zeros(lp.num_row_)
        else:
            multipliers = np.array(solution.row_dual) / self._scale
        matrix, shape = lp.a_matrix_, (lp.num_row_, lp.num_col_)
        parts = matrix.value_, matrix.index_, matrix.start_
        by_row = matrix.format_ == highspy.MatrixFormat.kRowwise
        rows = csr_matrix(parts, shape=shape) if by_row else csr_matrix(parts, shape=shape[::-1]).T.tocsr()
        return DualProof(
            constant=constant,
            costs=costs.tolist(),
            lower=self._bounds[0].tolist(),
            upper=self._bounds[1].tolist(),
            starts=rows.indptr.tolist(),
            columns=rows.indices.tolist(),
            values=rows.data.tolist(),
            row_lower=list(lp.row_lower_),
            row_upper=list(lp.row_upper_),
            multipliers=multipliers.tolist(),
        )

    def probe(self, column: int, lower: float, upper: float, basis: object, cutoff: float) -> tuple[float, bool]:
        """Return the objective with other bounds of one column."""
        self._lp.changeColBounds(column, lower, upper)
        try:
            # iterations of the simplex method per probe: the value of a branching shows long before the optimum
            status = self._run(basis, cutoff, 300)
            objective = self._objective()  # before the bounds change again: HiGHS forgets it then
        finally:
            self._lp.changeColBounds(column, self._bounds[0][column], self._bounds[1][column])
        if status in _NOTHING or (status == highspy.HighsModelStatus.kOptimal and objective >= cutoff):
            return math.inf, True
        # at its limit the method may have perturbed the costs: the objective is then an estimate and no bound
        return objective, status == highspy.HighsModelStatus.kOptimal

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators."""
        numbers = self._rows.pool.add(compressed(self._matrix.columns, rows))
        self._pending = np.union1d(self._pending, numbers)

    def _bring_in_pending(self) -> None:
        pending, self._pending = self._pending, self._pending[:0]
        self._rows.bring_in(pending)

    def _set_basis(self, basis: _Basis) -> None:
        """Set a basis. Rows that bind there enter the solver."""
        solver, highs_basis = self._lp, basis.highs
        n_later = len(self._rows) - len(basis.places)
        if np.array_equal(self._rows.numbers[: len(basis.places)], basis.places):
            # the usual case: the solver has the rows of the basis
            basic = [highspy.HighsBasisStatus.kBasic] * n_later
            solver.setBasis(
                _basis(highs_basis.col_status, [*highs_basis.row_status, *basic]) if n_later else highs_basis
            )
            return
        numbers = len(self._rows.pool)
        binding, statuses = _binding(basis)
        self._pending = np.union1d(self._pending, binding)
        self._bring_in_pending()
        place = np.zeros(numbers, dtype=np.int64)
        place[self._rows.numbers] = np.arange(len(self._rows))
        rows = [highspy.HighsBasisStatus.kBasic] * len(self._rows)
        for x, status in zip(place[binding].tolist(), statuses, strict=True):
            rows[x] = status
        solver.setBasis(_basis(highs_basis.col_status, rows))

    def point(self, vertex: Vertex, integral: bool) -> Point:
        """Return the vertex by Pyomo component."""
        return Point(vertex.values, self._matrix.columns.of, integral)

    def stop(self) -> None:
        """End the current solve, and refuse all others."""
        self._stop.set()

    def _objective(self) -> float:
        return float(self._lp.getInfo().objective_function_value) / self._scale + self._matrix.constant

    def _run(self, basis: object, cutoff: float, iterations: int) -> highspy.HighsModelStatus:
        """Solve from `basis`, which may lack the last rows. Raise `StoppedError` where the run is interrupted."""
        if self._stop.is_set():
            raise StoppedError
        solver = self._lp
        if isinstance(basis, _Basis):
            self._pending = self._pending[:0]
            self._set_basis(basis)
        self._bring_in_pending()
        solver.setOptionValue("simplex_iteration_limit", iterations)
        solver.setOptionValue("objective_bound", (cutoff - self._matrix.constant) * self._scale)
        run(solver)
        if solver.getModelStatus() == highspy.HighsModelStatus.kUnknown:
            # HiGHS's factors of that basis leave a reduced cost of the wrong sign; a solve from the basis alone doesn't
            basis_at_end = solver.getBasis()
            solver.clearSolver()
            solver.setBasis(basis_at_end)
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
    """Return the pool's numbers of the rows that aren't basic, and their statuses."""
    rows = basis.highs.row_status
    binding_rows = [x for x, status in enumerate(rows) if status != highspy.HighsBasisStatus.kBasic]
    return basis.places[binding_rows], [rows[x] for x in binding_rows]
