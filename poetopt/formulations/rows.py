"""Linear expressions and rows as data: what blocks contribute, separators find and backends take."""

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
    """The sum of coefficients[k] * variable[k] over the n entries of a variable, in the order of its index set."""
    return Terms(list(variable.values()), coefficients.tolist())


def total(*sums: Iterable[tuple[Any, Any]]) -> Terms:
    """The sum of coefficient * variable over all pairs of all `sums`."""
    pairs = [pair for one in sums for pair in one]
    return Terms([variable for _, variable in pairs], [coefficient for coefficient, _ in pairs])


def linear(parts: Iterable[Terms], unit: Any = 1.0) -> LinearExpression:
    """The sum of `parts` over `unit`, as the expression that Pyomo compiles fastest."""
    variables: list[Any] = []
    coefficients: list[float] = []
    for part in parts:
        variables.extend(part.variables)
        coefficients.extend(c / unit for c in part.coefficients)
    return LinearExpression(linear_coefs=coefficients, linear_vars=variables)


def most(parts: Iterable[Terms]) -> float:
    """An upper bound of the sum of `parts`, from the bounds of its variables; infinite where one has none."""
    found = 0.0
    for part in parts:
        for variable, coefficient in zip(part.variables, part.coefficients, strict=True):
            figure = value(coefficient)
            if figure:
                bound = variable.ub if figure > 0 else variable.lb
                found += math.inf if bound is None else figure * bound
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """lower <= sum of coefficients x variables <= upper; found by a separator.

    One bound may be infinite; coefficients are finite, one for each variable.
    """

    variables: Sequence[Any]
    coefficients: Sequence[float]
    lower: float
    upper: float
    violation: float
    """By how much the point violates the row: positive, in units comparable within one separator."""
    kind: str
    """For the log: which family the row belongs to."""
    core: bool = False
    """A row of the model proper (a solution that violates it is no schedule), not merely a cut: never dropped."""
    block: str = ""
    """The block that found it; filled in by `Formulation.separate`."""
    key: Hashable = None
    """The key from which the row's block can make it again in another scope's variables; None: it can't."""


class PointLike(Protocol):
    """Values of a model's variables, as a backend found them."""

    integral: bool
    """True where the point satisfies integrality (a candidate schedule), or is an LP solution."""

    def __getitem__(self, variable: Any) -> Floats:
        """(n,) the values of a variable's entries, in the order of its index set."""
        ...
