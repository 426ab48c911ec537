"""Which of our backends can be tested here."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from poetopt.backends.solvers.pyomo_solvers import PyomoBackend
from poetopt.backends.solvers.solver import BACKENDS, Backend, backend
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


every_backend = pytest.mark.parametrize("name", BACKENDS)
needs_gurobi = pytest.mark.skipif(find_spec("gurobipy") is None, reason="gurobipy is not installed")
