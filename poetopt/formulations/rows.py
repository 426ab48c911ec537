"""Linear expressions and rows as data: what blocks contribute, separators find and backends take."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pyomo.core.expr.numeric_expr import LinearExpression

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Terms(NamedTuple):
    """A linear expression as two parallel sequences."""

    variables: Sequence[Any]
    coefficients: Sequence[float]


def terms(variable: Any, coefficients: Floats) -> Terms:
    """The sum of coefficients[k] * variable[k] over a variable indexed 0..n-1."""
    return Terms(list(variable.values()), coefficients.tolist())


def linear(parts: Iterable[Terms], constant: float = 0.0) -> LinearExpression:
    """The sum of `parts`, as the expression that Pyomo compiles fastest."""
    variables: list[Any] = []
    coefficients: list[float] = []
    for part in parts:
        variables.extend(part.variables)
        coefficients.extend(part.coefficients)
    return LinearExpression(constant=constant, linear_coefs=coefficients, linear_vars=variables)


@dataclass(frozen=True, slots=True)
class Row:
    """lower <= sum of coefficients x variables <= upper; found by a separator."""

    variables: Sequence[Any]
    coefficients: Sequence[float]
    lower: float
    upper: float
    violation: float
    """By how much the point violates the row, in units comparable within one separator."""
    kind: str
    """For the log: which family the row belongs to."""
    core: bool = False
    """A row of the model proper (a solution that violates it is no schedule), not merely a cut."""
    block: str = ""
    """The block that found it; filled in by `Formulation.separate`."""
    key: Hashable = None
    """What the block that found the row can make it from again in another scope's variables; None: it can't."""


class PointLike(Protocol):
    """Values of a model's variables, as a backend found them."""

    integral: bool
    """Whether the point satisfies integrality (a candidate schedule), or is an LP solution."""

    def __getitem__(self, variable: Any) -> Floats:
        """The values of a variable indexed 0..n-1, in that order."""
        ...
