"""The rows of several data sets, one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from poetopt.telling import Told, silent
from poetopt.training.data.contract import DataSet
from poetopt.training.data.digest import Digest

if TYPE_CHECKING:
    from poetopt.graph import Array


class Shards:
    """The rows of `parts`."""

    def __init__(self, shown: str, parts: Sequence[DataSet]) -> None:
        self.shown, self.parts = shown, parts
        self._ends = list(accumulate(part.rows for part in parts))
        self.rows = self._ends[-1]

    def take(self, rows: Array) -> Mapping[str, Array]:
        """See `DataSet`."""
        which = np.searchsorted(self._ends, rows, side="right")
        found: dict[str, Array] = {}
        for k in np.unique(which).tolist():
            places = np.nonzero(which == k)[0]
            for name, array in self.parts[k].take(rows[places] - self._start(k)).items():
                if name not in found:
                    found[name] = np.empty((len(rows), *array.shape[1:]), array.dtype)
                found[name][places] = array
        return found

    def where(self, row: int) -> str:
        """See `DataSet`."""
        k = bisect_right(self._ends, row)
        return self.parts[k].where(row - self._start(k))

    def check(self, told: Told = silent) -> str:
        """See `DataSet`."""
        return Digest.of(part.check(told) for part in self.parts)

    def _start(self, k: int) -> int:
        return self._ends[k - 1] if k else 0
