"""A tree whose every node is closed by an exact sum: what branching proves, without the solver's word.

The node with the least bound is explored first: rows are separated there, and it is branched on the column that a few
iterations of the simplex method say most of. A node's objective is the exact bound of its multipliers over its own box,
and the node is empty only where a ray proves that. What the solver merely probes counts for nothing.
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
    """The bound that the multipliers prove, over the rationals. Raises FormulationError where it is infinite."""
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
                    "nothing can be certified: a variable of the model has no bound on a side where the multipliers "
                    "would have it go on for ever; give the block's variables bounds"
                )
            total += d * Fraction(side)
    return total


def down(value: Fraction) -> float:
    """The largest float that is not above `value`."""
    rounded = float(value)
    return math.nextafter(rounded, -math.inf) if Fraction(rounded) > value else rounded


@dataclass(frozen=True)
class Grown:
    """The proof of a tree: `bound_j` of the objective, over so many nodes."""

    bound_j: float
    explored: int


def grown(
    nodes: Nodes,
    separate: Callable[[Point], list[Row]],
    check: Callable[[Sequence[Row]], object],
    claimed_j: float,
    until: float,
) -> Grown:
    """Branch over `nodes` until `claimed_j` is proven, or until the moment `until` (of `time.monotonic`).

    separate
        The rows that a point breaks.
    check
        Raises PoetError where a row is among those given that can't be derived.
    """
    tree = _Tree(CertifiedNodes(nodes, check), separate, claimed_j)
    end = threading.Timer(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX), nodes.stop)
    end.daemon = True
    end.start()
    try:
        while tree.bound < min(claimed_j, tree.whole) and len(tree.open) < MOST_OPEN and time.monotonic() < until:
            tree.explore()
    except StoppedError:
        pass
    finally:
        end.cancel()
    return Grown(min(tree.bound, claimed_j), tree.explored)


WHOLE = 1e-6
"""An integer is whole within this."""
ROUNDS, ROUND_GAIN = 5, 2e-3
"""At most so many rounds of separation below the root; one that closes less than this share of what is open is the
last."""
LOOK, LOOK_ON = 20, 5
"""At most so many columns are probed at a node; that ends after so many in a row that were no better than the best."""
MOST_OPEN = 20_000
"""A tree that is wider gives up."""


class _Tree:
    """The open nodes, least bound first: (bound, number, the branchings that led there as (column, lower, upper))."""

    def __init__(self, nodes: CertifiedNodes, separate: Callable[[Point], list[Row]], claimed_j: float) -> None:
        self._nodes, self._separate, self._claimed_j = nodes, separate, claimed_j
        self._number = itertools.count()
        self.open: list[tuple[float, int, tuple[tuple[int, float, float], ...], object]] = []
        self._push(-math.inf, (), None)
        self._at = self.whole = math.inf
        """The bound of the node at work, and of the best at which all was whole and nothing broken."""
        self.explored = 0

    def _push(self, bound: float, path: tuple[tuple[int, float, float], ...], basis: object) -> None:
        heapq.heappush(self.open, (bound, next(self._number), path, basis))

    @property
    def bound(self) -> float:
        """The bound of all that is left."""
        return min(self._at, self.whole, self.open[0][0] if self.open else math.inf)

    def explore(self) -> None:
        """Cut the first node, and put its children in its place. Raises StoppedError."""
        nodes = self._nodes
        self._at, _, path, basis = heapq.heappop(self.open)
        self.explored += 1
        lower, upper = nodes.lower.copy(), nodes.upper.copy()
        for column, *sides in path:
            lower[column], upper[column] = sides
        nodes.enter(lower, upper)
        vertex = self._cut(nodes.solve(basis, self._claimed_j))
        if vertex is not None:
            self._at = max(self._at, vertex.objective)
            column = self._branching(vertex, lower, upper)
            floor = math.floor(vertex.values[column])
            for side in ((lower[column], floor), (floor + 1.0, upper[column])) if column >= 0 else ():
                self._push(self._at, (*path, (column, *side)), vertex.basis)
            if column < 0:
                self.whole = min(self.whole, self._at)
        self._at = math.inf

    def _open(self, vertex: Vertex) -> NDArray[np.int64]:
        away = np.abs(vertex.values - np.round(vertex.values))
        found = np.flatnonzero(self._nodes.integer & (away > WHOLE))
        return found[np.argsort(-away[found] * (1.0 + np.abs(self._nodes.costs[found])), kind="stable")]

    def _cut(self, vertex: Vertex | None) -> Vertex | None:
        """The vertex once the rows that it breaks are there; None where nothing below what was claimed is left."""
        for rounds in itertools.count(1):
            if vertex is None:
                break
            whole = not len(self._open(vertex))
            rows = [row for row in self._separate(self._nodes.point(vertex, whole)) if row.core or not whole]
            if not rows:
                break
            before = vertex.objective
            self._nodes.add(rows)
            vertex = self._nodes.solve(None, self._claimed_j)
            if vertex is None or whole:
                continue  # a point that breaks rows of the model can't stay
            little = vertex.objective - before < ROUND_GAIN * (self._claimed_j - vertex.objective)
            last = (little and rounds > 1) or (rounds >= ROUNDS and self.explored > 1)
            if last and len(self._open(vertex)):
                break
        return vertex

    def _branching(self, vertex: Vertex, lower: Floats, upper: Floats) -> int:
        """The column whose sides both gain most, as far as probing tells; -1 where all are whole."""
        best, found, since = -1.0, -1, 0
        for column in self._open(vertex)[:LOOK].tolist():
            floor = math.floor(vertex.values[column])
            sides = ((float(lower[column]), float(floor)), (floor + 1.0, float(upper[column])))
            gains = [
                min(self._nodes.probe(column, low, high, vertex.basis, self._claimed_j)[0], self._claimed_j)
                - vertex.objective
                for low, high in sides
            ]
            score = math.prod(max(gain, 1e-6 * (self._claimed_j - vertex.objective)) for gain in gains)
            if score > best * 1.001:
                best, found, since = score, column, 0
            else:
                since += 1
                if since >= LOOK_ON:
                    break
        return found


class CertifiedNodes:
    """Nodes that say of relaxations what is exactly proven; see `poetopt.backends.solvers.nodes.Nodes`."""

    def __init__(self, nodes: Nodes, check: Callable[[Sequence[Row]], object]) -> None:
        self._nodes, self._check = nodes, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nodes, name)

    def solve(self, basis: object, cutoff: float) -> Vertex | None:
        """The relaxation at this node, or None where it is proven that nothing below `cutoff` is there."""
        vertex = self._nodes.solve(basis, math.inf)
        proof = self._nodes.proof()
        if vertex is None:
            if not _empty(proof):
                raise StoppedError  # the solver says so, and it can't be shown
            return None
        bound_j = down(exact_bound(proof))
        if bound_j >= cutoff:
            return None
        return Vertex(bound_j, vertex.values, vertex.basis)

    def probe(self, column: int, lower: float, upper: float, basis: object, cutoff: float) -> tuple[float, bool]:
        """A figure to go by, and no bound."""
        return self._nodes.probe(column, lower, upper, basis, cutoff)[0], False

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows once they are derived again."""
        self._check(rows)
        self._nodes.add(rows)


def _empty(proof: DualProof) -> bool:
    """Say whether the ray, or its opposite, proves that the box holds no point."""
    feasible = replace(proof, constant=0.0, costs=[0.0] * len(proof.costs))
    for sign in (1.0, -1.0):
        ray = [sign * y for y in proof.multipliers]
        try:
            if exact_bound(replace(feasible, multipliers=ray)) > 0:
                return True
        except FormulationError:
            continue
    return False
