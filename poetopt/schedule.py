"""The decisions of a schedule, between a model's solution and a plan's instructions.

A *stage* t begins after the first compute of operator t-1 and ends with the first compute of
operator t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WHOLE = 1e-6
"""Shares this near to 0 and 1 are decided."""


@dataclass(frozen=True)
class Schedule:
    """The decisions of a schedule.

    recomputes
        (stage, operator) pairs: the operator runs again in that stage.
    page_ins
        (stage, tensor) pairs: the tensor comes back from storage in that stage.
    """

    recomputes: frozenset[tuple[int, int]] = frozenset()
    page_ins: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, eq=False)
class Leaning:
    """What a relaxation's point leans to, which is no schedule: each figure is a share between 0 and 1.

    kept
        (n_tensors, n_stages): how much of a tensor stays from a stage to the next.
    recomputes
        (stage, operator) -> how much of it runs again there; pairs without any are left out.
    page_ins
        (stage, tensor) -> how much of it comes back from storage there; pairs without any are left out.
    """

    kept: NDArray[np.float64]
    recomputes: Mapping[tuple[int, int], float]
    page_ins: Mapping[tuple[int, int], float]

    @cached_property
    def undecided(self) -> tuple[NDArray[np.intp], ...]:
        """Where `kept` is neither 0 nor 1: (m,) tensors, and (m,) stages."""
        return ((self.kept > WHOLE) & (self.kept < 1 - WHOLE)).nonzero()
