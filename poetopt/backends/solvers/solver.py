"""Contract between the solve loop and solver backends.

A backend opens a *session* on a Pyomo model. The session compiles the model once, solves its relaxation as often as
asked, takes further rows in between, and solves the model to integrality from a warm start. Figures are in the model's
own units; a session may scale internally.
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
"""Backends that come with poetopt, by name: the module and the object in it."""


class Capability(StrEnum):
    """Ability of a backend beyond the required minimum. The solve loop asks for abilities, never for names."""

    WARM_START = "warm start"
    """`search` begins at `start`."""
    PROGRESS = "progress"
    """`search` reports improving solutions while it runs, not only when it ends."""
    BOUND = "bound"
    """A stopped search still proves a bound; without this ability only a finished one does."""
    CUTOFF = "cutoff"
    """`search` skips solutions that aren't better than a cutoff."""
    THREADS = "threads"
    """The backend uses `threads` threads; without this ability it uses one."""
    NODES = "nodes"
    """`nodes` returns the relaxation for poetopt's own branch and bound, which runs in parallel with the solver's."""
    WORK = "work"
    """`work` counts the backend's work; without this ability searches go by the clock."""


class Outcome(StrEnum):
    """Result of a solve."""

    OPTIMAL = "optimal"
    """Solved within the requested tolerance."""
    INFEASIBLE = "infeasible"
    """Proven infeasible."""
    STOPPED = "stopped"
    """Out of time, or interrupted; there may still be a solution and a bound."""


class Point:
    """Values of a model's variables by Pyomo component: `point[model.block.x]` is an array."""

    def __init__(self, values: Floats, columns: Callable[[Any], NDArray[np.int64]], integral: bool) -> None:
        self._values = values
        self._columns = columns
        self.integral = integral

    def __getitem__(self, variable: Any) -> Floats:
        """Return the values of an indexed variable, in index order; 0 for an entry that no row or cost mentions."""
        columns = self._columns(variable)
        values = np.zeros(len(columns))
        is_column = columns >= 0
        values[is_column] = self._values[columns[is_column]]
        return values


@dataclass(frozen=True)
class Relaxation:
    """Solved relaxation; `objective` is a valid bound where the outcome is OPTIMAL."""

    outcome: Outcome
    objective: float
    point: Point | None


@dataclass(frozen=True)
class Search:
    """Finished or stopped integer solve: the best point, its objective and the proven bound."""

    outcome: Outcome
    point: Point | None
    objective: float
    bound: float


@dataclass(frozen=True)
class Frozen:
    """Entries of an indexed variable that are fixed: `mask` (n,) selects them, `values` (n,) has their values."""

    variable: Any
    mask: NDArray[np.bool_]
    values: Floats


@dataclass(frozen=True)
class DualProof:
    """Relaxation in the solver, with multipliers of its rows: all that the proof of a bound needs.

    In the model's own units: `costs` (n,) and `constant` of the objective, `lower` and `upper` (n,) of the variables.
    The rows are compressed by row; each has two sides and one multiplier.
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
        """Yield (multiplier, lower, upper, columns, values) of each row."""
        for row, multiplier in enumerate(self.multipliers):
            begin, end = self.starts[row], self.starts[row + 1]
            yield multiplier, self.row_lower[row], self.row_upper[row], self.columns[begin:end], self.values[begin:end]


class Session(Protocol):
    """One model, open in a solver."""

    work: Work
    """Counter of the session's work, where it is capable of WORK."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the backend."""
        ...

    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""
        ...

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators; a row that is there already may be skipped."""
        ...

    def dual_proof(self) -> DualProof:
        """Return the current relaxation with the multipliers of its last solve."""
        ...

    @property
    def added(self) -> Sequence[Row]:
        """Rows added and not purged."""
        ...

    @property
    def binding(self) -> Sequence[Row]:
        """Added rows on which the last relaxation's bound rests; deeper scopes start with them."""
        ...

    @property
    def sources(self) -> frozenset[str]:
        """Blocks whose rows were ever added, purged ones included: the session's bounds may rest on them."""
        ...

    def purge(self) -> int:
        """Drop the added cuts that are slack at the last relaxation, never the model's own rows; return how many."""
        ...

    def tighten(self, cutoff: float) -> int:
        """Fix variables that no solution better than `cutoff` can change, by the last relaxation's reduced costs.

        Afterwards the model lacks some worse solutions: a bound found later is a bound up to `cutoff`. Return the
        number of
        fixed variables.
        """
        ...

    @property
    def tightened(self) -> bool:
        """Return whether `tighten` has fixed any variable."""
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

        Parameters
        ----------
        start
            Values to begin with, by variable.
        on_point
            Called with each improving solution; where the backend isn't capable of PROGRESS, at the end with the best.
        on_bound
            Called with the bound as it rises.
        frozen
            Variables that keep their values. The bound is then one of that neighbourhood only: it is neither reported
            nor
            remembered.
        cutoff
            Where no solution is better, the outcome may be INFEASIBLE, or a solution that isn't better. A backend that
            isn't capable of CUTOFF ignores it.
        enough
            Called now and then; the search stops early where it returns True. A backend that can't call it goes on.

        Returns
        -------
        Search
            A search that is out of time with a solution is STOPPED and has its point. Its bound is the one proven so
            far,
            -inf where there is none. A search that `enough` ends is STOPPED, too.

        Raises
        ------
        KeyboardInterrupt
            An interrupt (Ctrl-C) has stopped the search, or has left behind a search that doesn't stop. Such a search
            reports nothing more, and the session waits for its end before it goes on.
        """
        ...

    @property
    def incumbent_bound(self) -> float:
        """Best bound proven in this session, also after an interrupt."""
        ...

    def nodes(self) -> Nodes:
        """Return an independent copy of the current relaxation.

        Raise `FormulationError` in a backend that isn't capable of NODES.
        """
        ...


NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class Backend(Protocol):
    """Solver that opens models."""

    @property
    def name(self) -> str:
        """Name for `--backend`."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of its sessions."""
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
        """Compile `model` and return a session.

        Parameters
        ----------
        scale
            Factor of the objective inside the solver, whose tolerances are absolute.
        options
            The solver's own options, by its own names.
        log
            Path of a file to which the solver's output is appended.

        Raises
        ------
        BackendUnavailableError
            The solver isn't installed; the message has the command that installs it.
        OptionError
            The solver doesn't know an option.
        """
        ...


def names() -> tuple[str, ...]:
    """Return the names of the known backends: poetopt's own, then those of the entry points `poetopt.backends`."""
    from importlib.metadata import entry_points

    return (*BACKENDS, *sorted(point.name for point in entry_points(group="poetopt.backends")))


def backend(name: str | Backend) -> Backend:
    """Return the backend called `name`, which may be any solver of Pyomo's; return a backend unchanged.

    Raise `BackendUnavailableError`, with the closest names or the command that installs it.
    """
    if not isinstance(name, str):
        if not _is_backend(name):
            raise BackendUnavailableError(
                f"a backend can't be a {type(name).__name__}; give its name, or an object with name, capabilities and "
                "`open`"
            )
        return name
    if name in BACKENDS:
        module, _, attribute = BACKENDS[name].partition(":")
        try:
            imported: Backend = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            raise _not_installed(
                name, INSTALL if name == "highs" else f"pip install 'poetopt[{name}]'", error
            ) from error
        return imported
    from importlib.metadata import entry_points

    for point in entry_points(group="poetopt.backends"):
        if point.name == name:
            package = point.dist.name if point.dist is not None else point.value
            try:
                loaded = imports.loaded(point)
            except Exception as error:
                raise _not_installed(name, f"pip install --force-reinstall {package}", error) from error
            if not _is_backend(loaded):
                raise BackendUnavailableError(
                    f"backend '{name}' ({imports.origin(point)}) is a {type(loaded).__name__} without name, "
                    "capabilities and `open`; report it to its authors"
                )
            return cast("Backend", loaded)
    from pyomo.environ import SolverFactory

    if name in SolverFactory and not name.startswith("_"):
        from poetopt.backends.solvers.pyomo_solvers import PyomoBackend

        return PyomoBackend(name)
    raise BackendUnavailableError(
        f"unknown backend '{name}': choose {', '.join(names())}, or a solver of Pyomo's{closest(name, names())}"
    )


def _is_backend(candidate: object) -> bool:
    return all(hasattr(candidate, part) for part in ("name", "capabilities", "open"))


def _not_installed(name: str, command: str, error: Exception) -> BackendUnavailableError:
    return BackendUnavailableError(f"backend '{name}' is not installed ({error}); install it with: {command}")
