"""The tree of relaxations proves what trying everything finds."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from poetopt.backends.solvers.highs import HighsSession
from poetopt.backends.solvers.solver import Outcome, Point, backend
from poetopt.formulations import formulation
from poetopt.formulations.rows import Row
from poetopt.search.cutting import model_of, session_of
from poetopt.search.diagnosis.certified_nodes import grown
from poetopt.search.solution import Options
from poetopt.testing.problems import tight
from tests.seeds import seeds, some
from tests.support.contract import milp


@pytest.mark.parametrize("seed", some(range(60), 20))
def test_what_is_proven_is_what_trying_everything_finds(seed: int) -> None:
    """All of it where as much was claimed, and no more where more was."""
    problem = milp.covering(random.Random(seed))
    known = problem.best()
    assert known is not None

    def nothing(_: Point) -> list[Row]:
        return []

    for more in (0.0, 1.0):
        session = backend("highs").open(problem.model, threads=1, scale=1.0)
        session.relax(60.0)
        found = grown(session.nodes(), nothing, lambda _: None, known + more, math.inf)
        assert found.bound_j <= known + 1e-9
        assert more or found.bound_j == pytest.approx(known)


@pytest.mark.parametrize("seed", seeds(30))
def test_rows_that_wait_outside_come_in(seed: int) -> None:
    """The nodes of a model with some variables held, against a relaxation that has all rows from the beginning."""
    rng = random.Random(seed)
    problem, ram_bytes = tight(rng, forward=8)
    options = Options(ram_bytes=ram_bytes, scope="full", threads=1)
    chosen = formulation("retention")
    model = model_of(chosen, problem, options, "full")
    session = session_of(model, options, scale=1e4 / problem.baseline_energy_j)
    if session.relax(60.0).outcome is Outcome.INFEASIBLE:
        return
    nodes = session.nodes()
    for _ in range(6):
        held = np.array(rng.sample(range(len(nodes.lower)), 4))
        lower, upper = nodes.lower.copy(), nodes.upper.copy()
        lower[held] = upper[held] = [float(rng.random() < 0.5) for _ in held]
        nodes.enter(lower, upper)
        vertex = nodes.solve(None, math.inf)
        again = session_of(model, options, scale=1e4 / problem.baseline_energy_j)
        assert isinstance(again, HighsSession)
        again._lp.changeColsBounds(len(held), held.astype(np.int32), lower[held], upper[held])
        expected = again.relax(60.0)
        if vertex is None:
            assert expected.outcome is Outcome.INFEASIBLE
        else:
            assert vertex.objective == pytest.approx(expected.objective, rel=1e-6, abs=1e-9)
