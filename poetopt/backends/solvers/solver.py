"""The contract between the solve loop and whatever solves a model.

A backend opens a *session* on a Pyomo model: it compiles the model once, solves its relaxation as
often as asked, takes further rows in between, and solves it to integrality from a warm start.
Figures are in the model's own units; a session may scale internally.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.nodes import Nodes
from poetopt.formulations.rows import Floats, Row
from poetopt.util import imports
from poetopt.util.errors import BackendUnavailableError
from poetopt.util.imports import INSTALL
from poetopt.util.text import closest
from poetopt.util.work import Work

BACKENDS = {
    "highs": "poetopt.backends.solvers.highs:backend",
    "gurobi": "poetopt.backends.solvers.gurobi:backend",
    "cbc": "poetopt.backends.solvers.pyomo_solvers:cbc",
    "scip": "poetopt.backends.solvers.pyomo_solvers:scip",
}
"""The backends that come with poetopt, by name: the module and the object in it."""


class Capability(StrEnum):
    """An ability of a backend beyond the contract's least; the solve loop asks for these, never for names."""

    WARM_START = "warm start"
    """`search` begins with the given start."""
    PROGRESS = "progress"
    """`search` tells improving solutions while it runs, not only when it ends."""
    BOUND = "bound"
    """A search that is stopped still proves a bound; without it only a finished one does."""
    CUTOFF = "cutoff"
    """`search` passes over solutions that aren't better than a cutoff."""
    THREADS = "threads"
    """`threads` is obeyed; without it a backend uses one."""
    NODES = "nodes"
    """`nodes` gives the relaxation for a tree of ours, beside the solver's own search."""
    WORK = "work"
    """Its work is counted in `work`; without it searches go by the clock."""


class Outcome(StrEnum):
    """The end of a solve."""

    OPTIMAL = "optimal"
    """Solved within the tolerance that was asked for."""
    INFEASIBLE = "infeasible"
    """Proven to have no solution."""
    STOPPED = "stopped"
    """Out of time, or interrupted; there may be a solution and a bound all the same."""


class Point:
    """Values of a model's variables by Pyomo component: `point[model.block.x]` is an array."""

    def __init__(self, values: Floats, columns: Callable[[Any], NDArray[np.int64]], integral: bool) -> None:
        self._values = values
        self._columns = columns
        self.integral = integral

    def __getitem__(self, variable: Any) -> Floats:
        """Values of an indexed variable, in index order; 0 for one that no row or cost mentions."""
        columns = self._columns(variable)
        found = np.zeros(len(columns))
        used = columns >= 0
        found[used] = self._values[columns[used]]
        return found


@dataclass(frozen=True)
class Relaxation:
    """A solved relaxation; `objective` is a valid bound where the outcome is OPTIMAL."""

    outcome: Outcome
    objective: float
    point: Point | None


@dataclass(frozen=True)
class Search:
    """A finished or stopped integer solve: the best point, its objective and the proven bound."""

    outcome: Outcome
    point: Point | None
    objective: float
    bound: float


@dataclass(frozen=True)
class Frozen:
    """Part of an indexed variable, held at values: `mask` (n,) says where, `values` (n,) at what."""

    variable: Any
    mask: NDArray[np.bool_]
    values: Floats


@dataclass(frozen=True)
class DualProof:
    """A relaxation as the solver holds it, with multipliers for its rows: all that a bound's proof needs.

    In the model's own units: `costs` (n,) and `constant` of the objective, `lower` and `upper` (n,) of the
    variables; rows in compressed form with their sides, and one multiplier a row.
    """

    constant: float
    costs: list[float]
    lower: list[float]
    upper: list[float]
    starts: list[int]
    columns: list[int]
    values: list[float]
    row_lower: list[float]
    row_upper: list[float]
    multipliers: list[float]

    def rows(self) -> Iterator[tuple[float, float, float, list[int], list[float]]]:
        """(multiplier, lower, upper, columns, values) of each row."""
        for x, y in enumerate(self.multipliers):
            begin, end = self.starts[x], self.starts[x + 1]
            yield y, self.row_lower[x], self.row_upper[x], self.columns[begin:end], self.values[begin:end]


class Session(Protocol):
    """One model, open in a solver."""

    work: Work
    """Counts what it does, where it is capable of WORK."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Its backend's."""
        ...

    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""
        ...

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators; one that is there already needn't come again."""
        ...

    def dual_proof(self) -> DualProof:
        """The relaxation as it stands, with the multipliers of its last solve."""
        ...

    @property
    def added(self) -> Sequence[Row]:
        """The rows added and not purged."""
        ...

    @property
    def binding(self) -> Sequence[Row]:
        """Those that the last relaxation's bound rests on, with which deeper scopes start."""
        ...

    @property
    def sources(self) -> frozenset[str]:
        """The blocks whose rows were ever added, purged ones included: its bounds may rest on them."""
        ...

    def purge(self) -> int:
        """Drop the added cuts that are slack at the last relaxation (never a row of the model proper)."""
        ...

    def tighten(self, cutoff: float) -> int:
        """Fix what no solution better than `cutoff` can change, by the last relaxation's reduced costs.

        Afterwards the model holds no worse solutions in full: a bound found later is a bound up to `cutoff`.
        Returns how many variables were fixed.
        """
        ...

    @property
    def tightened(self) -> bool:
        """Say whether `tighten` has fixed anything."""
        ...

    def search(
        self,
        *,
        time_limit_s: float,
        gap: float,
        start: Sequence[tuple[Any, Floats]] | None,
        on_point: Callable[[Point], None],
        on_bound: Callable[[float], None],
        frozen: Sequence[Frozen] = (),
        cutoff: float | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> Search:
        """Solve to integrality within the relative `gap`.

        Where nothing is better than `cutoff`, the outcome may be INFEASIBLE, or a solution that isn't better; a
        backend that isn't capable of CUTOFF ignores it.

        Variables in `frozen` keep the given values; the bound is then one of that neighbourhood only, and
        neither told nor remembered.

        `on_point` is called with each improving solution (at the end with the best, where the backend isn't
        capable of PROGRESS), `on_bound` with the bound as it rises. A search that is out of time with a solution is
        STOPPED and has its point; its bound is the one proven so far, -inf where there is none.
        `enough` is asked now and then; where it says so the search ends early, and is STOPPED. A backend that can't
        be asked goes on.
        An interrupt (Ctrl-C) stops the search, and is raised as KeyboardInterrupt once it has stopped, or is left
        behind as one that won't: then nothing is told any more, and the session waits for its end before it goes on.
        """
        ...

    @property
    def incumbent_bound(self) -> float:
        """The best bound proven in this session, also after an interrupt."""
        ...

    def nodes(self) -> Nodes:
        """The relaxation as it stands, once more and on its own.

        Raises FormulationError in a backend that isn't capable of NODES.
        """
        ...


NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class Backend(Protocol):
    """A solver: `open` a model in it."""

    @property
    def name(self) -> str:
        """Its name for `--backend`."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The abilities of its sessions."""
        ...

    def open(
        self,
        model: Any,
        *,
        threads: int,
        scale: float,
        options: Mapping[str, str] = NO_OPTIONS,
        log: str | None = None,
    ) -> Session:
        """Compile `model`. `scale` multiplies the objective inside the solver (its tolerances are absolute).

        options
            The solver's own options, by its own names.
        log
            A file to append what the solver prints to.

        Raises BackendUnavailableError, with how to get it, where the solver isn't installed, and OptionError for an
        option that the solver doesn't know.
        """
        ...


def names() -> tuple[str, ...]:
    """The backends that are known: our own, then those of the entry points `poetopt.backends`."""
    from importlib.metadata import entry_points

    return (*BACKENDS, *sorted(point.name for point in entry_points(group="poetopt.backends")))


def backend(name: str | Backend) -> Backend:
    """The backend called `name`, which may be any solver of Pyomo's; a backend itself is returned as it is.

    Raises BackendUnavailableError, with the closest names or how to install it.
    """
    if not isinstance(name, str):
        if not _whole(name):
            raise BackendUnavailableError(
                f"a backend is a name or an object with a name, capabilities and `open`, not a {type(name).__name__}"
            )
        return name
    if name in BACKENDS:
        module, _, attribute = BACKENDS[name].partition(":")
        try:
            found: Backend = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            raise _absent(name, INSTALL if name == "highs" else f"pip install 'poetopt[{name}]'", error) from error
        return found
    from importlib.metadata import entry_points

    for point in entry_points(group="poetopt.backends"):
        if point.name == name:
            package = point.dist.name if point.dist is not None else point.value
            try:
                loaded = imports.loaded(point)
            except Exception as error:
                raise _absent(name, f"pip install --force-reinstall {package}", error) from error
            if not _whole(loaded):
                raise BackendUnavailableError(
                    f"backend '{name}' ({imports.origin(point)}) is a {type(loaded).__name__}, and a backend has a "
                    "name, capabilities and `open`; tell its authors"
                )
            return cast("Backend", loaded)
    from pyomo.environ import SolverFactory

    if name in SolverFactory and not name.startswith("_"):
        from poetopt.backends.solvers.pyomo_solvers import PyomoBackend

        return PyomoBackend(name)
    raise BackendUnavailableError(
        f"unknown backend '{name}': there are {', '.join(names())}, and Pyomo's solvers{closest(name, names())}"
    )


def _whole(given: object) -> bool:
    return all(hasattr(given, part) for part in ("name", "capabilities", "open"))


def _absent(name: str, command: str, error: Exception) -> BackendUnavailableError:
    return BackendUnavailableError(f"backend '{name}' is not installed ({error}); install it with: {command}")
