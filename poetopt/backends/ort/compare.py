"""Whether two runs of a step agree, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common.

    different
        Names of the tensors that differ in at least one bit, in the order asked for.
    max_abs_diff
        The largest difference of two numbers; infinite where one of them is, or is no number, and the other isn't.
    """

    different: tuple[str, ...]
    max_abs_diff: float

    @property
    def identical(self) -> bool:
        """Whether all bits agree."""
        return not self.different

    def joined(self, other: Comparison) -> Comparison:
        """What holds of both comparisons."""
        names = dict.fromkeys((*self.different, *other.different))
        return Comparison(tuple(names), max(self.max_abs_diff, other.max_abs_diff))


def compare(mine: Mapping[str, Array], theirs: Mapping[str, Array], names: Sequence[str]) -> Comparison:
    """Compare the tensors `names` of two runs by their bytes, so that a NaN equals the same NaN."""
    different: list[str] = []
    largest = 0.0
    for name in names:
        a, b = mine[name], theirs[name]
        if a.shape == b.shape and a.dtype == b.dtype and np.array_equal(_bytes(a), _bytes(b)):
            continue
        different.append(name)
        largest = max(largest, _difference(a, b))
    return Comparison(tuple(different), largest)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _difference(a: Array, b: Array) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    left, right = a.astype(np.float64), b.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.abs(left - right))
    return float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max(initial=0.0))
