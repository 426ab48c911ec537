"""The common part of our backends' sessions: arrays, rows that came late, and the proof of a solved relaxation."""

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
    the relaxation (through `_solved`), and overrides `_append`, `_delete` and `_fix` where its solver holds the
    relaxation too.
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

    # what a solver that holds the relaxation does

    def _append(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Rows are added; those that weren't there. Raises FormulationError for one over an unknown variable."""
        self._columns.compress(rows)
        return rows

    def _delete(self, places: NDArray[np.int32]) -> None:  # noqa: B027 - one that holds no relaxation does nothing
        """Rows, by their place in the whole, were dropped."""

    def _fix(self, columns: NDArray[np.int32], values: Floats) -> None:  # noqa: B027 - likewise
        """Columns were fixed."""

    # what a subclass tells

    def _objective(self, value: float) -> float:
        """A figure of the solver's (scaled, without the constant) in the model's units."""
        return value / self._scale + self._matrix.constant

    def _proven(self, bound: float) -> bool:
        """Take in a bound on the whole model, in its units; whether it is the best so far."""
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
        """The relaxation is solved: (n,) `values` and `reduced`, (m,) `activity` and `multipliers`, all scaled.

        The m rows are the model's own, and then those that were added.
        """
        self._last, self._activity, self._reduced, self._relaxed = values, activity, reduced, objective
        self._multipliers = multipliers
        bound = self._objective(objective)
        self._bound = max(self._bound, bound)
        return Relaxation(Outcome.OPTIMAL, bound, self._point(values, False))

    def _nothing_to_solve(self) -> Relaxation | None:
        """The answer for a model without variables."""
        if len(self._columns):
            return None
        return self._solved(0.0, np.zeros(0), np.zeros(len(self._matrix.row_lower) + len(self._added)))

    def _nothing_to_search(self) -> Search | None:
        if len(self._columns):
            return None
        constant = self._matrix.constant
        return Search(Outcome.OPTIMAL, self._point(np.zeros(0), True), constant, constant)

    # the contract

    @abstractmethod
    def relax(self, time_limit_s: float) -> Relaxation:
        """Solve the linear relaxation."""

    @property
    def incumbent_bound(self) -> float:
        """The best bound proven in this session, also after an interrupt."""
        return self._bound

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators. Raises FormulationError for one over a variable that the model hasn't."""
        # the time of a separation for each column. Measured on bert and exact_bert_base.
        self.work.compute(2e-6 * len(self._lower))  # which found them
        if rows:
            self._added += self._append(rows)
            self._sources.update(row.block for row in rows)

    @property
    def added(self) -> Sequence[Row]:
        """The rows added and not purged."""
        return self._added

    @property
    def binding(self) -> Sequence[Row]:
        """Those of them that the last relaxation's bound rests on; all, where there are no multipliers."""
        if self._multipliers is None:
            return self._added
        base = len(self._matrix.row_lower)
        rests = self._multipliers[base:] != 0
        return [row for row, rest in zip(self._added, rests, strict=False) if rest]

    @property
    def sources(self) -> frozenset[str]:
        """The blocks whose rows were ever added."""
        return frozenset(self._sources)

    def purge(self) -> int:
        """Drop the added cuts that are slack at the last relaxation (never a row of the model proper)."""
        if self._activity is None:
            return 0
        base = len(self._matrix.row_lower)
        # a cut with more slack than this at the relaxation is purged
        slack = [
            x
            for x, (row, value) in enumerate(zip(self._added, self._activity[base:], strict=False))
            if not row.core and min(value - row.lower, row.upper - value) > 1e-6
        ]
        self._forget(slack)
        return len(slack)

    def _forget(self, places: Sequence[int]) -> None:
        """Drop those of the added rows."""
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
        """Say whether `tighten` has fixed anything."""
        return bool(self._fixed)

    def tighten(self, cutoff: float) -> int:
        """Fix what no solution better than `cutoff` can change; see the contract."""
        if self._reduced is None or self._last is None:
            return 0
        down, up = self._settled(cutoff)
        chosen = np.flatnonzero(down | up).astype(np.int32)
        if len(chosen):
            values = np.where(up[chosen], 1.0, 0.0)
            self._lower[chosen] = self._upper[chosen] = values
            self._fix(chosen, values)
        self._fixed = max(self._fixed, len(chosen))
        return len(chosen)

    def _settled(self, cutoff: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(n,) the integers that every solution better than `cutoff` has at 0, and at 1, by the reduced costs."""
        assert self._reduced is not None
        assert self._last is not None
        slack = (cutoff - self._matrix.constant) * self._scale - self._relaxed
        slack += 1e-6 * max(1.0, abs(self._relaxed))  # the reduced costs are good to a tolerance
        down = self._matrix.integer & (self._last < 1e-9) & (self._reduced > slack)
        up = self._matrix.integer & (self._last > 1 - 1e-9) & (self._reduced < -slack)
        return down, up

    def nodes(self) -> Nodes:
        """The relaxation as it stands, for a tree; see the contract."""
        raise FormulationError("this backend has no relaxations for a tree of branches (Capability.NODES)")

    def dual_proof(self) -> DualProof:
        """The relaxation as it stands, with its last solve's multipliers."""
        whole = self._matrix.extended(self._added)
        multipliers = np.zeros(len(whole.row_lower))
        if self._multipliers is not None:  # rows that came since, before a solve that was stopped, have none
            multipliers[: len(self._multipliers)] = self._multipliers / self._scale
        return DualProof(
            constant=whole.constant,
            costs=whole.costs.tolist(),
            lower=self._lower.tolist(),
            upper=self._upper.tolist(),
            starts=whole.rows.indptr.tolist(),
            columns=whole.rows.indices.tolist(),
            values=whole.rows.data.tolist(),
            row_lower=whole.row_lower.tolist(),
            row_upper=whole.row_upper.tolist(),
            multipliers=multipliers.tolist(),
        )


def refuse_reserved(backend: str, options: Mapping[str, str], reserved: Mapping[str, str]) -> None:
    """Raise OptionError for a solver's option that poetopt sets itself; `reserved` says which of ours does."""
    for key in options:
        if key.lower() in reserved:
            ours = reserved[key.lower()]
            raise option_error(key, options[key], f"poetopt sets {backend}'s {key} itself; use {ours}")


def option_error(key: str, value: str, told: str) -> OptionError:
    """The error for a solver's option that can't be had, with what is wrong about it."""
    return OptionError(f"--solver-option {key}={value}: {told}")


def unbounded() -> PoetError:
    """The error for a model whose objective has no least value."""
    return PoetError(
        "the model is unbounded: its objective falls without end; check that no block contributes a negative cost "
        "to a variable that nothing bounds"
    )
