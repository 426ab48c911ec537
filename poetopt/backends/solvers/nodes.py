"""Contract for branch-and-bound trees: one model's relaxation, within bounds that change from node to node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.rows import Floats, Row

if TYPE_CHECKING:
    from poetopt.backends.solvers.solver import DualProof, Point


@dataclass(frozen=True)
class Vertex:
    """Optimum of a relaxation; figures in the model's own units.

    Attributes
    ----------
    values
        (n,) the point, by column.
    basis
        Start basis for the solves of children, in the format of the `Nodes` that returned it.
    """

    objective: float
    values: Floats
    basis: object


class Nodes(Protocol):
    """Relaxation of a session at one moment, independent of the session. Later rows hold for all nodes alike."""

    @property
    def integer(self) -> NDArray[np.bool_]:
        """(n,) whether each column is an integer."""
        ...

    @property
    def costs(self) -> Floats:
        """(n,) costs of the columns."""
        ...

    @property
    def lower(self) -> Floats:
        """(n,) lower bounds of the columns at the root."""
        ...

    @property
    def upper(self) -> Floats:
        """(n,) upper bounds of the columns at the root."""
        ...

    def enter(self, lower: Floats, upper: Floats) -> None:
        """Go to the node with these bounds, (n,) each."""
        ...

    def solve(self, basis: object, cutoff: float) -> Vertex | None:
        """Solve the relaxation at this node; return None where its optimum isn't below `cutoff`.

        Parameters
        ----------
        basis
            Basis of a vertex, which may lack later rows; None: the last solve's final basis.

        Raises
        ------
        StoppedError
            `stop` was called, or the solver gave no answer.
        """
        ...

    def proof(self) -> DualProof:
        """Return the dual proof of the last `solve`, which must have had no cutoff: the relaxation and its multipliers.

        Where that solve was infeasible, costs and constant are 0 and the multipliers a ray: they prove a bound above 0,
        which no solution reaches.
        """
        ...

    def probe(self, column: int, lower: float, upper: float, basis: object, cutoff: float) -> tuple[float, bool]:
        """Return the objective with other bounds of one column, in a limited effort; and whether it is a bound.

        A bound is never above the optimum of `solve`; it may be below, where rows of the model were left out. It is inf
        where no solution below `cutoff` is left. The node stays as it was.

        Raises
        ------
        StoppedError
            `stop` was called.
        """
        ...

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators."""
        ...

    def point(self, vertex: Vertex, integral: bool) -> Point:
        """Return the vertex by Pyomo component."""
        ...

    def stop(self) -> None:
        """End the current solve, and refuse all others. Any thread may call it."""
        ...


class StoppedError(Exception):
    """Stop of a solve without an answer. Users never see this error."""
