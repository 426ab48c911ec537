"""Linear expressions and rows as data: blocks contribute them, separators find them, backends solve them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pyomo.common.numeric_types import value
from pyomo.core.expr.numeric_expr import LinearExpression

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Terms(NamedTuple):
    """A linear expression as two parallel sequences."""

    variables: Sequence[Any]
    coefficients: Sequence[Any]
    """Numbers, or entries of Params."""


def terms(variable: Any, coefficients: Floats) -> Terms:
    """Return the sum of coefficients[k] * variable[k] over the n entries of a variable, in index order."""
    return Terms(list(variable.values()), coefficients.tolist())


def total(*sums: Iterable[tuple[Any, Any]]) -> Terms:
    """Return the sum of coefficient * variable over all pairs of all `sums`."""
    pairs = [pair for one in sums for pair in one]
    return Terms([variable for _, variable in pairs], [coefficient for coefficient, _ in pairs])


def linear(parts: Iterable[Terms], unit: Any = 1.0) -> LinearExpression:
    """Return the sum of `parts` divided by `unit`, as the expression that Pyomo compiles fastest."""
    variables: list[Any] = []
    coefficients: list[float] = []
    for part in parts:
        variables.extend(part.variables)
        coefficients.extend(c / unit for c in part.coefficients)
    return LinearExpression(linear_coefs=coefficients, linear_vars=variables)


def most(parts: Iterable[Terms]) -> float:
    """Return an upper bound of the sum of `parts` from the bounds of its variables; infinite if one has none."""
    bound_sum = 0.0
    for part in parts:
        for variable, coefficient in zip(part.variables, part.coefficients, strict=True):
            figure = value(coefficient)
            if figure:
                bound = variable.ub if figure > 0 else variable.lb
                bound_sum += math.inf if bound is None else figure * bound
    return bound_sum


@dataclass(frozen=True, slots=True)
class Row:
    """Row lower <= sum of coefficients x variables <= upper that a separator found.

    One bound may be infinite. Coefficients are finite, one for each variable.
    """

    variables: Sequence[Any]
    coefficients: Sequence[float]
    lower: float
    upper: float
    violation: float
    """Amount by which the point violates the row: positive, in units comparable within one separator."""
    kind: str
    """Family of the row, for the log."""
    core: bool = False
    """True for a row of the model itself: a solution that violates it is no schedule. Such rows are never dropped."""
    block: str = ""
    """Block that found the row; filled in by `Formulation.separate`."""
    key: Hashable = None
    """Key from which the block can rebuild the row in another scope's variables; None if it can't."""


class PointLike(Protocol):
    """Values of a model's variables, as a backend found them."""

    integral: bool
    """True if the point satisfies integrality (a candidate schedule); False for an LP solution."""

    def __getitem__(self, variable: Any) -> Floats:
        """Return the values (n,) of a variable's entries, in the order of its index set."""
        ...
