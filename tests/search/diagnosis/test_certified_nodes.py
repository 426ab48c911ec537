"""The tree of relaxations proves what trying everything finds."""

from __future__ import annotations

import math
import random

import pytest

from poetopt.backends.solvers.solver import Point, backend
from poetopt.formulations.rows import Row
from poetopt.search.diagnosis.certified_nodes import grown
from tests.seeds import some
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
