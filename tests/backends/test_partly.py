"""Relaxations that are solved row by row end where the whole does, and what follows rests on all rows."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from pyomo.environ import Var

from poetopt.backends.solvers import highs, highs_nodes, highs_rows
from poetopt.backends.solvers.highs_rows import HighsRows, RowPool
from poetopt.backends.solvers.solver import Outcome, Session
from poetopt.formulations import formulation
from poetopt.formulations.rows import Row
from poetopt.search.cutting import model_of, session_of
from poetopt.search.diagnosis.certified_nodes import exact_bound
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from poetopt.testing import milp
from poetopt.testing.nodes import check_nodes
from poetopt.testing.problems import tight
from poetopt.util.sparse import csr_matrix
from tests.seeds import seeds

NEAR = 1e-6


@pytest.fixture(autouse=True)
def all_partly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs, "LARGE", 0)


def _to_the_end(session: Session) -> list[float]:
    """The bounds on the way to the relaxation."""
    bounds = []
    while True:
        found = session.relax_partly(60.0)
        assert found.outcome is Outcome.OPTIMAL
        bounds.append(found.objective)
        if not found.broken:
            return bounds


@pytest.mark.parametrize("seed", seeds(30))
@pytest.mark.parametrize("begun", ["whole", "stopped", "not yet"])
def test_the_same_relaxation(seed: int, begun: str) -> None:
    problem = milp.covering(random.Random(seed), n=12, m=9)
    wanted = highs.backend.open(problem.model, threads=1, scale=10.0).relax(60.0).objective
    session = highs.backend.open(problem.model, threads=1, scale=10.0)
    if begun == "whole":
        session.relax(60.0)
    elif begun == "stopped":  # small models are never stopped
        session._begin_anew()
        session._partly = True
    bounds = _to_the_end(session)
    assert bounds == pytest.approx(sorted(bounds), abs=NEAR)
    assert bounds[-1] == pytest.approx(wanted, abs=NEAR)
    session.purge()
    assert session.relax(60.0).objective == pytest.approx(wanted, abs=NEAR)
    best = problem.best()
    found = session.search(time_limit_s=60.0, gap=0.0, start=None, on_point=lambda _: None, on_bound=lambda _: None)
    assert best is not None
    assert found.objective == pytest.approx(best, abs=NEAR)


@pytest.mark.parametrize("seed", range(12))
def test_rounds_of_cuts(seed: int) -> None:
    """Cutting by either way proves a bound below the optimum, and multipliers for all rows prove it exactly."""
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
        relaxed = session.relax_partly(60.0)
        assert relaxed.point is not None
        assert relaxed.objective >= bound - NEAR * abs(bound) or not np.isfinite(bound)
        bound = relaxed.objective
        proven = exact_bound(session.dual_proof())
        assert proven <= Fraction(solution.simulation.overhead_j * (1 + NEAR) + 1e-12)
        assert float(proven) == pytest.approx(bound, rel=1e-4, abs=1e-9)
        session.purge()
        rows = chosen.separate(model, relaxed.point)
        if not rows and not relaxed.broken:
            break
        session.add(rows)
    nodes = session.nodes()
    vertex = nodes.solve(None, np.inf)
    assert vertex is not None
    assert vertex.objective >= bound - NEAR * abs(bound)
    assert vertex.objective <= solution.simulation.overhead_j * (1 + NEAR) + 1e-12


@pytest.mark.parametrize("seed", seeds(20))
def test_what_was_purged_comes_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come one by one, each followed by a purge, end where they do together."""
    monkeypatch.setattr(highs_rows, "BROKEN_CUT", 1e-9)
    rng = np.random.default_rng(seed)
    problem = milp.covering(random.Random(seed), n=20, m=4)
    variable = next(problem.model.component_objects(Var))
    variables = list(variable.values())
    some = rng.random((60, len(variables))) < 0.3
    some[:, 0] |= ~some.any(axis=1)
    cuts = [Row(variables, row.astype(float).tolist(), float(rng.random()), np.inf, 1.0, "cut") for row in some]
    together = highs.backend.open(problem.model, threads=1, scale=10.0)
    together.add(cuts)
    session = highs.backend.open(problem.model, threads=1, scale=10.0)
    _to_the_end(session)
    purged = 0
    for cut in cuts:
        session.add([cut])
        _to_the_end(session)
        purged += session.purge()
    assert _to_the_end(session)[-1] == pytest.approx(together.relax(60.0).objective, abs=NEAR)
    assert purged
    assert len(session.added) <= len(cuts)


@pytest.mark.parametrize("relaxed", [True, False])
def test_infeasible(relaxed: bool) -> None:
    session = highs.backend.open(milp.infeasible(relaxed=relaxed), threads=1, scale=1.0)
    session._begin_anew()
    session._partly = True
    found = session.relax_partly(60.0)
    while found.broken:
        found = session.relax_partly(60.0)
    assert (found.outcome is Outcome.INFEASIBLE) == relaxed


def test_what_is_outside_may_bound_it() -> None:
    session = highs.backend.open(milp.every_kind(), threads=1, scale=1.0)
    session._begin_anew()
    session._partly = True
    assert _to_the_end(session)[-1] == pytest.approx(4.5)


@pytest.mark.parametrize("seed", seeds(30))
@pytest.mark.parametrize("begun", ["whole", "partly"])
def test_nodes_keep_the_contract(seed: int, begun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a large relaxation, which keep the rows that bind alone, as `check_backend` asks."""
    monkeypatch.setattr(highs_nodes, "LARGE", 0)
    monkeypatch.setattr(highs_nodes, "SPARE", (0, 1.0))
    rng = random.Random(seed)
    problem = milp.covering(rng)
    session = highs.backend.open(problem.model, threads=1, scale=10.0)
    if begun == "partly":
        _to_the_end(session)
        session.purge()
    session.relax(60.0)

    def need(holds: object, message: str) -> None:
        assert holds, message

    check_nodes(session, problem, rng, need)


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
    assert pool.copy().add(cut, [True]).tolist() == [len(known)]  # a cut that turns out to be the model's own is both
    assert len(pool) == len(known)
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
