"""Rows that wait outside of a relaxation until a point breaks them."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from poetopt.backends.solvers import highs
from poetopt.backends.solvers.highs_rows import HighsRows, RowPool
from poetopt.formulations import formulation
from poetopt.search.cutting import model_of, session_of
from poetopt.search.diagnosis.certified_nodes import exact_bound
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from poetopt.testing.problems import tight
from poetopt.util.sparse import csr_matrix
from tests.contract import milp

NEAR = 1e-6


@pytest.mark.parametrize("seed", range(12))
def test_rounds_of_cuts(seed: int) -> None:
    """Cutting proves a bound below the optimum, and multipliers for all rows prove it exactly."""
    rng = random.Random(seed)
    chosen = formulation("retention")
    problem, ram_bytes = tight(rng, forward=5)
    options = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1)
    solution = solve(problem, options)
    assert solution.status is Status.OPTIMAL
    assert solution.simulation is not None
    model = model_of(chosen, problem, options, "full")
    session = session_of(model, options, scale=1e4)
    bound = -np.inf
    for _ in range(30):
        relaxed = session.relax(60.0)
        assert relaxed.point is not None
        assert relaxed.objective >= bound - NEAR * abs(bound) or not np.isfinite(bound)
        bound = relaxed.objective
        proven = exact_bound(session.dual_proof())
        assert proven <= Fraction(solution.simulation.overhead_j * (1 + NEAR) + 1e-12)
        assert float(proven) == pytest.approx(bound, rel=1e-4, abs=1e-9)
        session.purge()
        rows = chosen.separate(model, relaxed.point)
        if not rows:
            break
        session.add(rows)
    nodes = session.nodes()
    vertex = nodes.solve(None, np.inf)
    assert vertex is not None
    assert vertex.objective >= bound - NEAR * abs(bound)
    assert vertex.objective <= solution.simulation.overhead_j * (1 + NEAR) + 1e-12


def _rows(matrix: csr_matrix, lower: list[float]) -> HighsRows:
    starts, indices = matrix.indptr[:-1].astype(np.int32), matrix.indices.astype(np.int32)
    return HighsRows(np.array(lower), np.full(len(lower), np.inf), starts, indices, matrix.data)


def test_a_pool_gives_each_row_one_number() -> None:
    rng = np.random.default_rng(1)
    problem = milp.covering(random.Random(1), n=6, m=3)
    own = highs.backend.open(problem.model, threads=1, scale=1.0)._matrix
    pool = RowPool(own)
    known = [(row, float(side)) for row, side in zip(own.rows.toarray(), own.row_lower, strict=True)]
    numbers: dict[bytes, int] = {}
    for _ in range(30):
        block = rng.integers(0, 2, size=(3, 6)).astype(float)
        for number, row in zip(pool.add(_rows(csr_matrix(block), [1.0] * 3), [False] * 3), block, strict=True):
            if row.tobytes() not in numbers:
                numbers[row.tobytes()] = int(number)
                known.append((row, 1.0))
            assert numbers[row.tobytes()] == number
    assert len(pool) == len(known)
    cut = _rows(csr_matrix(known[-1][0]), [1.0])
    assert pool.add(cut, [True]).tolist() == [len(known)]  # a cut that turns out to be the model's own is both
    known.append(known[-1])
    some = rng.permutation(len(pool))[:11]
    found = pool.rows(some)
    dense = csr_matrix((found.values, found.indices, [*found.starts, len(found.indices)]), shape=(11, 6)).toarray()
    for x, number in enumerate(some):
        assert np.array_equal(dense[x], known[number][0])
        assert found.lower[x] == known[number][1]
    active = rng.random(len(pool)) < 0.3
    point = rng.random(6) / 3
    wanted = [x for x, (row, side) in enumerate(known) if not active[x] and row @ point < side - 0.01]
    assert pool.broken(point, active).tolist() == wanted
