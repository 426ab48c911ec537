"""Which of our backends can be tested here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from poetopt.backends.solvers.pyomo_solvers import PyomoBackend
from poetopt.backends.solvers.solver import BACKENDS, Backend, backend
from poetopt.formulations import formulation
from poetopt.formulations.rows import Row
from poetopt.graph.problem import Problem
from poetopt.search.cutting import cut
from poetopt.search.run import Budget
from poetopt.util.errors import BackendUnavailableError


def installed(name: str) -> Backend:
    """The backend, or a skipped test where its solver isn't installed."""
    try:
        found = backend(name)
        if isinstance(found, PyomoBackend):
            found.solver()
        elif name == "scip":
            pytest.importorskip("pyscipopt")
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    return found


def cut_rows(problem: Problem, ram_bytes: int) -> tuple[Any, Sequence[Row]]:
    """The model of `retention`, and the rows that cut its relaxation."""
    retention = formulation("retention")
    model = retention.build(problem, ram_bytes=ram_bytes)
    session = backend("highs").open(model, threads=0, scale=1.0)
    cut(retention, model, session, until=Budget.by_clock(math.inf), overhead_j=None, on_bound=lambda _: False)
    return model, session.added


every_backend = pytest.mark.parametrize("name", BACKENDS)
needs_gurobi = pytest.mark.skipif(find_spec("gurobipy") is None, reason="gurobipy is not installed")
