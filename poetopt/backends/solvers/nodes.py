"""The contract for trees of relaxations: one model's relaxation, on its own, within bounds that change node by node."""

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
    """The optimum of a relaxation; figures in the model's own units.

    values
        (n,) by column: the point.
    basis
        What a solve of a child begins from; only the nodes that gave it know what it is.
    """

    objective: float
    values: Floats
    basis: object


class Nodes(Protocol):
    """The relaxation of a session at one moment. Rows that come to it hold for all nodes alike.

    The session goes on without it.
    """

    @property
    def integer(self) -> NDArray[np.bool_]:
        """(n,) which columns are integers."""
        ...

    @property
    def costs(self) -> Floats:
        """(n,) of the columns."""
        ...

    @property
    def lower(self) -> Floats:
        """(n,) bounds of the columns, at the root."""
        ...

    @property
    def upper(self) -> Floats:
        """(n,) bounds of the columns, at the root."""
        ...

    def enter(self, lower: Floats, upper: Floats) -> None:
        """Go to the node with these bounds, (n,) each."""
        ...

    def solve(self, basis: object, cutoff: float) -> Vertex | None:
        """The relaxation at this node, or None where it has nothing below `cutoff`.

        basis
            Of a vertex, where rows may have come since; None: where the last solve ended.

        Raises StoppedError once `stop` was called, or where the solver can't tell.
        """
        ...

    def proof(self) -> DualProof:
        """The proof of the answer of the last `solve`, which had no cutoff: the relaxation and its multipliers.

        Where that found nothing, costs and constant are 0 and multipliers a ray: they prove more than 0, which nothing
        comes to.
        """
        ...

    def probe(self, column: int, lower: float, upper: float, basis: object, cutoff: float) -> tuple[float, bool]:
        """The objective with other bounds of one column, in a limited effort; and whether it is a bound.

        A bound is never above what `solve` would come to; it may be below, where rows of the model were left out. inf,
        as a bound, where nothing under `cutoff` is left. The node is as before afterwards.

        Raises StoppedError once `stop` was called.
        """
        ...

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows found by separators."""
        ...

    def point(self, vertex: Vertex, integral: bool) -> Point:
        """The vertex by Pyomo component."""
        ...

    def stop(self) -> None:
        """End the solve at work, and refuse all others. May be called from any thread."""
        ...


class StoppedError(Exception):
    """A solve was told to stop: no answer, and no error that a user sees."""
