"""A tree whose every node is closed by an exact sum: what branching proves, without the solver's word.

The tree is that of `poetopt.search.branching.branch_and_cut`; only what the relaxations of its nodes say is another
thing. A node's objective is the exact bound of its multipliers over its own box, its reduced costs are the exact ones,
and the node is empty only where a ray proves that. What the solver merely probes counts for nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from poetopt.backends.solvers.nodes import Floats, Nodes, StoppedError, Vertex
from poetopt.backends.solvers.solver import DualProof, Point
from poetopt.formulations.rows import Row
from poetopt.search.branching.branch_and_cut import BranchAndCut
from poetopt.search.branching.tree import Tree
from poetopt.util.errors import FormulationError

# The sum of a relaxation's dual over the rationals: a lower bound whatever the multipliers are.
#
# See `poetopt.search.diagnosis.certificate` for what it proves.


def exact_bound(proof: DualProof) -> Fraction:
    """The bound that the multipliers prove, over the rationals. Raises FormulationError where it is infinite."""
    return exact_sum(proof)[0]


def exact_sum(proof: DualProof) -> tuple[Fraction, list[Fraction]]:
    """The same, and the reduced costs (n,) that it stands on."""
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
    return total, reduced


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
    certified = CertifiedNodes(nodes, check)
    tree = Tree(
        nodes.lower,
        nodes.upper,
        cutoff=lambda: claimed_j,
        on_bound=lambda _: time.monotonic() > until,
        gap=0.0,
        remaining_s=lambda: until - time.monotonic(),
        dives=False,
    )
    explorer = BranchAndCut(
        tree,
        certified,
        separate=separate,
        judge=lambda point: [row for row in separate(point) if row.core],
    )
    end = threading.Timer(max(0.0, until - time.monotonic()), nodes.stop)
    end.daemon = True
    end.start()
    try:
        explorer.run()
    except StoppedError:
        pass
    finally:
        end.cancel()
    return Grown(tree.bound, tree.explored)


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
        exact, reduced = exact_sum(proof)
        bound_j = down(exact)
        if bound_j >= cutoff:
            return None
        return Vertex(bound_j, vertex.values, _toward_zero(reduced), vertex.basis)

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


def _toward_zero(values: Sequence[Fraction]) -> Floats:
    """(n,) floats that are no further from 0 than the exact values."""
    rounded: Floats = np.nextafter(np.array([float(value) for value in values]), 0.0)
    return rounded
