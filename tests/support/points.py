"""Points of a model without a solver: what separators are shown, and what rows say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poetopt.formulations.rows import Floats, Row

Values = Sequence[tuple[Any, Floats]]
"""Variables with a value for each of their items, as a formulation's `start` returns them."""


class FakePoint:
    """Values by variable; the separators can't tell it from a solver's point."""

    def __init__(self, values: Values, integral: bool) -> None:
        self._values = {id(variable): array for variable, array in values}
        self.integral = integral

    def __getitem__(self, variable: Any) -> Floats:
        return self._values[id(variable)]


def by_item(values: Values) -> Mapping[int, float]:
    """The value of each variable's item, by its id; made once a point, for `activity`."""
    return {
        id(item): value
        for variable, array in values
        for item, value in zip(variable.values(), array.tolist(), strict=True)
    }


def activity(row: Row, value: Mapping[int, float]) -> float:
    """The left-hand side of `row` at a point."""
    return float(sum(c * value[id(v)] for v, c in zip(row.variables, row.coefficients, strict=True)))
