"""Common part of the backends' sessions: arrays, added rows, and the proof of a solved relaxation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.matrix import compile_model
from poetopt.backends.solvers.nodes import Nodes
from poetopt.backends.solvers.solver import Capability, DualProof, Outcome, Point, Relaxation, Search
from poetopt.formulations.rows import Floats, Row
from poetopt.util.errors import FormulationError, OptionError, PoetError
from poetopt.util.work import Work


class MatrixSession(ABC):
    """One Pyomo model as arrays; a backend's session derives from it and solves them.

    A subclass sets `_last`, `_activity`, `_relaxed` and, with duals, `_reduced` and `_multipliers` when it has solved
    the
    relaxation, by `_solved`. It overrides `_append`, `_delete` and `_fix` where its solver has the relaxation, too.
    """

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, model: Any, *, threads: int, scale: float) -> None:
        self._matrix = compile_model(model)
        self._columns = self._matrix.columns
        self._lower, self._upper = self._matrix.lower.copy(), self._matrix.upper.copy()
        self._threads = threads
        self._scale = scale
        self._added: list[Row] = []
        self._sources: set[str] = set()
        self._bound = -math.inf
        self._last: Floats | None = None
        self._activity: Floats | None = None
        self._reduced: Floats | None = None
        self._multipliers: Floats | None = None
        self._relaxed = 0.0
        self._fixed = 0
        self.work = Work()

    # overridden where the solver has the relaxation

    def _append(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Append rows, and return those that are new. Raise `FormulationError` for a row over an unknown variable."""
        self._columns.compress(rows)
        return rows

    def _delete(self, places: NDArray[np.int32]) -> None:  # noqa: B027 - does nothing without a relaxation
        """Delete rows, by their index among all rows."""

    def _fix(self, columns: NDArray[np.int32], values: Floats) -> None:  # noqa: B027 - likewise
        """Fix columns at values."""

    # called by subclasses

    def _objective(self, value: float) -> float:
        """Return a figure of the solver's (scaled, without the constant) in the model's units."""
        return value / self._scale + self._matrix.constant

    def _proven(self, bound: float) -> bool:
        """Record a bound on the whole model, in its units; return whether it is the best so far."""
        if not math.isfinite(bound) or bound <= self._bound:
            return False
        self._bound = bound
        return True

    def _point(self, values: Floats, integral: bool) -> Point:
        return Point(values, self._columns.of, integral)

    def _solved(
        self,
        objective: float,
        values: Floats,
        activity: Floats,
        reduced: Floats | None = None,
        multipliers: Floats | None = None,
    ) -> Relaxation:
        """Record a solved relaxation: (n,) `values` and `reduced`, (m,) `activity` and `multipliers`, all scaled.

        The m rows are the model's own, followed by the added ones.
        """
        self._last, self._activity, self._reduced, self._relaxed = values, activity, reduced, objective
        self._multipliers = multipliers
        bound = self._objective(objective)
        self._bound = max(self._bound, bound)
        return Relaxation(Outcome.OPTIMAL, bound, self._point(values, False))

    def _nothing_to_solve(self) -> Relaxation | None:
        """Return the result for a model without variables; None for others."""
        if len(self._columns):
            return None
        return self._solved(0.0, np.zeros(0), np.zeros(len(self._matrix.row_lower) + len(self._added)))

    def _nothing_to_search(self) -> Search | None:
        if len(self._columns):
            return None
        constant = self._matrix.constant
        return Search(Outcome.OPTIMAL, self._point(np.zeros(0), True), constant, constant)

    # the contract of `Session`

    @abstractmethod
    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""

    @property
    def incumbent_bound(self) -> float:
        """Best bound proven in this session, also after an interrupt."""
        return self._bound

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators. Raise `FormulationError` for a row over an unknown variable."""
        # seconds per column of the separation that found them, measured on bert and exact_bert_base
        self.work.compute(2e-6 * len(self._lower))
        if rows:
            self._added += self._append(rows)
            self._sources.update(row.block for row in rows)

    @property
    def added(self) -> Sequence[Row]:
        """Rows added and not purged."""
        return self._added

    @property
    def binding(self) -> Sequence[Row]:
        """Added rows on which the last relaxation's bound rests; all, where there are no multipliers."""
        if self._multipliers is None:
            return self._added
        base = len(self._matrix.row_lower)
        is_binding = self._multipliers[base:] != 0
        return [row for row, binds in zip(self._added, is_binding, strict=False) if binds]

    @property
    def sources(self) -> frozenset[str]:
        """Blocks whose rows were ever added."""
        return frozenset(self._sources)

    def purge(self) -> int:
        """Drop the added cuts that are slack at the last relaxation, never the model's own rows; return how many."""
        if self._activity is None:
            return 0
        base = len(self._matrix.row_lower)
        # cuts with more slack than 1e-6 are purged
        slack = [
            x
            for x, (row, value) in enumerate(zip(self._added, self._activity[base:], strict=False))
            if not row.core and min(value - row.lower, row.upper - value) > 1e-6
        ]
        self._forget(slack)
        return len(slack)

    def _forget(self, places: Sequence[int]) -> None:
        """Drop the added rows at these indices."""
        if not places:
            return
        self._delete(np.array(places, dtype=np.int32) + len(self._matrix.row_lower))
        dropped = set(places)
        self._added = [row for x, row in enumerate(self._added) if x not in dropped]
        if self._multipliers is not None:
            self._multipliers = np.delete(self._multipliers, np.array(places) + len(self._matrix.row_lower))
        self._activity = None

    @property
    def tightened(self) -> bool:
        """Return whether `tighten` has fixed any variable."""
        return bool(self._fixed)

    def tighten(self, cutoff: float) -> int:
        """Fix variables that no solution better than `cutoff` can change, as `Session.tighten` says."""
        if self._reduced is None or self._last is None:
            return 0
        is_zero, is_one = self._fixed_by_reduced_costs(cutoff)
        columns = np.flatnonzero(is_zero | is_one).astype(np.int32)
        if len(columns):
            values = np.where(is_one[columns], 1.0, 0.0)
            self._lower[columns] = self._upper[columns] = values
            self._fix(columns, values)
        self._fixed = max(self._fixed, len(columns))
        return len(columns)

    def _fixed_by_reduced_costs(self, cutoff: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return (n,) masks of the integers that are 0, and 1, in every solution better than `cutoff`."""
        assert self._reduced is not None
        assert self._last is not None
        slack = (cutoff - self._matrix.constant) * self._scale - self._relaxed
        slack += 1e-6 * max(1.0, abs(self._relaxed))  # the reduced costs are good to a tolerance
        is_zero = self._matrix.integer & (self._last < 1e-9) & (self._reduced > slack)
        is_one = self._matrix.integer & (self._last > 1 - 1e-9) & (self._reduced < -slack)
        return is_zero, is_one

    def nodes(self) -> Nodes:
        """Return the current relaxation for a tree, as `Session.nodes` says."""
        raise FormulationError("this backend has no relaxations for branch and bound (Capability.NODES)")

    def dual_proof(self) -> DualProof:
        """Return the current relaxation with its last solve's multipliers."""
        matrix = self._matrix.extended(self._added)
        multipliers = np.zeros(len(matrix.row_lower))
        if self._multipliers is not None:  # rows added after the last finished solve have none
            multipliers[: len(self._multipliers)] = self._multipliers / self._scale
        return DualProof(
            constant=matrix.constant,
            costs=matrix.costs.tolist(),
            lower=self._lower.tolist(),
            upper=self._upper.tolist(),
            starts=matrix.rows.indptr.tolist(),
            columns=matrix.rows.indices.tolist(),
            values=matrix.rows.data.tolist(),
            row_lower=matrix.row_lower.tolist(),
            row_upper=matrix.row_upper.tolist(),
            multipliers=multipliers.tolist(),
        )


def refuse_reserved(backend: str, options: Mapping[str, str], reserved: Mapping[str, str]) -> None:
    """Raise `OptionError` for a solver's option that poetopt sets itself; `reserved` maps it to poetopt's option."""
    for key in options:
        if key.lower() in reserved:
            option = reserved[key.lower()]
            raise option_error(key, options[key], f"poetopt sets {backend}'s {key} itself; use {option}")


def option_error(key: str, value: str, reason: str) -> OptionError:
    """Return the error for a solver's option that can't be set; `reason` says why."""
    return OptionError(f"--solver-option {key}={value}: {reason}")


def unbounded() -> PoetError:
    """Return the error for a model whose objective has no minimum."""
    return PoetError(
        "the model is unbounded: its objective has no minimum; check that no block adds a negative cost to a variable "
        "without a bound"
    )
