"""Tree whose every node is closed by an exact sum, so that branching is proven without trusting the solver.

The node with the least bound is explored first. Rows are separated there, and the node is branched on the column with
the best score after a few iterations of the simplex method. A node's objective is the exact bound of its multipliers
over its own box, and the node is empty only if a ray proves that. Values that the solver merely probes prove nothing.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.nodes import Nodes, StoppedError, Vertex
from poetopt.backends.solvers.solver import DualProof, Point
from poetopt.formulations.rows import Floats, Row
from poetopt.util.errors import FormulationError

# The sum of a relaxation's dual over the rationals: a lower bound whatever the multipliers are.
#
# See `poetopt.search.diagnosis.certificate` for what it proves.


def exact_bound(proof: DualProof) -> Fraction:
    """Return the bound that the multipliers prove, over the rationals. Raise FormulationError if it is infinite."""
    reduced = [Fraction(c) for c in proof.costs]
    total = Fraction(proof.constant)
    for y, lower, upper, columns, values in proof.rows():
        side = lower if y > 0 else upper
        if y == 0 or math.isinf(side):
            continue
        multiplier = Fraction(y)
        total += multiplier * Fraction(side)
        for column, value in zip(columns, values, strict=True):
            reduced[column] -= multiplier * Fraction(value)
    for d, lower, upper in zip(reduced, proof.lower, proof.upper, strict=True):
        if d:
            side = lower if d > 0 else upper
            if math.isinf(side):
                raise FormulationError(
                    "nothing can be certified: a variable of the model has no bound in the direction of its reduced "
                    "cost. Give the variables of your block bounds"
                )
            total += d * Fraction(side)
    return total


def down(value: Fraction) -> float:
    """Return the largest float that is not above `value`."""
    rounded = float(value)
    return math.nextafter(rounded, -math.inf) if Fraction(rounded) > value else rounded


@dataclass(frozen=True)
class TreeProof:
    """Bound on the objective that a tree proves, with its number of explored nodes."""

    bound_j: float
    explored: int


def grown(
    nodes: Nodes,
    separate: Callable[[Point], list[Row]],
    check: Callable[[Sequence[Row]], object],
    claimed_j: float,
    until: float,
) -> TreeProof:
    """Branch over `nodes` until `claimed_j` is proven, or until the moment `until` (of `time.monotonic`).

    Parameters
    ----------
    separate
        Function that returns the rows that a point breaks.
    check
        Function that raises PoetError if one of the rows can't be derived.
    """
    tree = _Tree(CertifiedNodes(nodes, check), separate, claimed_j)
    timer = threading.Timer(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX), nodes.stop)
    timer.daemon = True
    timer.start()
    try:
        while tree.bound < min(claimed_j, tree.whole) and len(tree.open) < MAX_OPEN and time.monotonic() < until:
            tree.explore()
    except StoppedError:
        pass
    finally:
        timer.cancel()
    return TreeProof(min(tree.bound, claimed_j), tree.explored)


INTEGRALITY_TOLERANCE = 1e-6
"""Largest distance of an integer value from an integer."""
MAX_ROUNDS, ROUND_GAIN = 5, 2e-3
"""Largest number of separation rounds below the root, and the least share of the open gap that a round closes if
another one follows."""
MAX_PROBES, MAX_FAILED_PROBES = 20, 5
"""Largest number of probed columns at a node, and of consecutive ones without an improvement."""
MAX_OPEN = 20_000
"""Number of open nodes at which a tree gives up."""


class _Tree:
    """Open nodes, least bound first: (bound, number, branchings on the way as (column, lower, upper))."""

    def __init__(self, nodes: CertifiedNodes, separate: Callable[[Point], list[Row]], claimed_j: float) -> None:
        self._nodes, self._separate, self._claimed_j = nodes, separate, claimed_j
        self._number = itertools.count()
        self.open: list[tuple[float, int, tuple[tuple[int, float, float], ...], object]] = []
        self._push(-math.inf, (), None)
        self._current_bound = self.whole = math.inf
        """Bound of the current node, and of the best node that is integral and breaks no row."""
        self.explored = 0

    def _push(self, bound: float, path: tuple[tuple[int, float, float], ...], basis: object) -> None:
        heapq.heappush(self.open, (bound, next(self._number), path, basis))

    @property
    def bound(self) -> float:
        """Bound of all open nodes."""
        return min(self._current_bound, self.whole, self.open[0][0] if self.open else math.inf)

    def explore(self) -> None:
        """Cut the first node, and replace it by its children. Raise StoppedError if the time is over."""
        nodes = self._nodes
        self._current_bound, _, path, basis = heapq.heappop(self.open)
        self.explored += 1
        lower, upper = nodes.lower.copy(), nodes.upper.copy()
        for column, *sides in path:
            lower[column], upper[column] = sides
        nodes.enter(lower, upper)
        vertex = self._cut(nodes.solve(basis, self._claimed_j))
        if vertex is not None:
            self._current_bound = max(self._current_bound, vertex.objective)
            column = self._branching(vertex, lower, upper)
            floor = math.floor(vertex.values[column])
            for side in ((lower[column], floor), (floor + 1.0, upper[column])) if column >= 0 else ():
                self._push(self._current_bound, (*path, (column, *side)), vertex.basis)
            if column < 0:
                self.whole = min(self.whole, self._current_bound)
        self._current_bound = math.inf

    def _open(self, vertex: Vertex) -> NDArray[np.int64]:
        distance = np.abs(vertex.values - np.round(vertex.values))
        columns = np.flatnonzero(self._nodes.integer & (distance > INTEGRALITY_TOLERANCE))
        return columns[np.argsort(-distance[columns] * (1.0 + np.abs(self._nodes.costs[columns])), kind="stable")]

    def _cut(self, vertex: Vertex | None) -> Vertex | None:
        """Return the vertex after separation; None if it is proven that the claimed bound holds at this node."""
        for rounds in itertools.count(1):
            if vertex is None:
                break
            is_integral = not len(self._open(vertex))
            rows = [
                row for row in self._separate(self._nodes.point(vertex, is_integral)) if row.core or not is_integral
            ]
            if not rows:
                break
            before = vertex.objective
            self._nodes.add(rows)
            vertex = self._nodes.solve(None, self._claimed_j)
            if vertex is None or is_integral:
                continue  # an integral point that breaks rows has to be cut off
            gained_little = vertex.objective - before < ROUND_GAIN * (self._claimed_j - vertex.objective)
            is_last = (gained_little and rounds > 1) or (rounds >= MAX_ROUNDS and self.explored > 1)
            if is_last and len(self._open(vertex)):
                break
        return vertex

    def _branching(self, vertex: Vertex, lower: Floats, upper: Floats) -> int:
        """Return the column whose sides both gain most by probing; -1 if all are integral."""
        best, best_column, n_failed = -1.0, -1, 0
        for column in self._open(vertex)[:MAX_PROBES].tolist():
            floor = math.floor(vertex.values[column])
            sides = ((float(lower[column]), float(floor)), (floor + 1.0, float(upper[column])))
            gains = [
                min(self._nodes.probe(column, low, high, vertex.basis, self._claimed_j)[0], self._claimed_j)
                - vertex.objective
                for low, high in sides
            ]
            score = math.prod(max(gain, 1e-6 * (self._claimed_j - vertex.objective)) for gain in gains)
            if score > best * 1.001:
                best, best_column, n_failed = score, column, 0
            else:
                n_failed += 1
                if n_failed >= MAX_FAILED_PROBES:
                    break
        return best_column


class CertifiedNodes:
    """Nodes whose relaxations are bounded exactly; see `poetopt.backends.solvers.nodes.Nodes`."""

    def __init__(self, nodes: Nodes, check: Callable[[Sequence[Row]], object]) -> None:
        self._nodes, self._check = nodes, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nodes, name)

    def solve(self, basis: object, cutoff: float) -> Vertex | None:
        """Return the vertex at this node, or None if it has provably no point below `cutoff`."""
        vertex = self._nodes.solve(basis, math.inf)
        proof = self._nodes.proof()
        if vertex is None:
            if not _is_empty(proof):
                raise StoppedError  # the solver reports this without a proof
            return None
        bound_j = down(exact_bound(proof))
        if bound_j >= cutoff:
            return None
        return Vertex(bound_j, vertex.values, vertex.basis)

    def probe(self, column: int, lower: float, upper: float, basis: object, cutoff: float) -> tuple[float, bool]:
        """Return the estimate of a column's side, which proves nothing."""
        return self._nodes.probe(column, lower, upper, basis, cutoff)[0], False

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows after deriving them again."""
        self._check(rows)
        self._nodes.add(rows)


def _is_empty(proof: DualProof) -> bool:
    """Return whether the ray, or its opposite, proves that the box holds no point."""
    feasible = replace(proof, constant=0.0, costs=[0.0] * len(proof.costs))
    for sign in (1.0, -1.0):
        ray = [sign * y for y in proof.multipliers]
        try:
            if exact_bound(replace(feasible, multipliers=ray)) > 0:
                return True
        except FormulationError:
            continue
    return False
