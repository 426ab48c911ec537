"""Batches of a training, one after another from a data set."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from poetopt.backends.ort.batch import Batch, check_batch, load_batch, random_batch
from poetopt.errors import ModelError
from poetopt.graph import TrainingGraph


class Batches:
    """Batches one after another from a data set, in its order and round again.

    data
        Arrays by input name, taken anew for each batch. One of exactly an input's shape is fed in every step; one that
        is longer along the first axis is a data set, of which each step takes the next so many rows. All data sets
        have as many rows, and where there is one, no array has the rows of one batch alone.

    Raises ModelError for arrays that fit no input, or data sets of different lengths.
    """

    def __init__(self, graph: TrainingGraph, data: Mapping[str, object]) -> None:
        self.graph = graph
        self._data = data
        self._fixed: dict[str, tuple[int, ...]] = {}
        self._sets: dict[str, int] = {}
        for name in graph.inputs:
            if name not in data:
                continue
            found, shape = np.asarray(data[name]).shape, graph.tensors[name].shape
            if len(found) == len(shape) > 0 and found[1:] == shape[1:] and found[0] > shape[0]:
                self._sets[name] = found[0]
            else:
                self._fixed[name] = found
        self.rows = min(self._sets.values(), default=0)
        if uneven := [name for name, rows in self._sets.items() if rows != self.rows]:
            lengths = ", ".join(f"{name!r} {rows}" for name, rows in self._sets.items())
            raise ModelError(f"the data sets have different numbers of rows ({lengths}); cut {uneven[0]!r}")
        for name in self._sets:
            self._check_partners(name)
        self.get(0)

    def _check_partners(self, name: str) -> None:
        """Raise ModelError where an array has the rows of one batch, and would be paired with all rows of `name`."""
        count = self.graph.tensors[name].shape[0]
        for other, shape in self._fixed.items():
            # with batches of one row any constant looks like a batch
            if shape[:1] == (count,) and (count > 1 or other in self.graph.added_inputs):
                raise ModelError(
                    f"the data set {name!r} has {self.rows} rows, and {other!r} only the {count} of one batch, which "
                    f"would be paired with each batch of the other; give {other!r} {self.rows} rows too"
                )

    def get(self, step: int) -> Batch:
        """The batch of a step, from 0. Raises ModelError for values that the model can't take."""
        found = {name: self._data[name] for name in self._fixed}
        for name in self._sets:
            array, count = np.asarray(self._data[name]), self.graph.tensors[name].shape[0]
            start = step * count % self.rows
            whole = start + count <= self.rows
            found[name] = array[start : start + count] if whole else array[(start + np.arange(count)) % self.rows]
        return check_batch(self.graph, found)


def batches_of(graph: TrainingGraph, data: Mapping[str, object] | str | os.PathLike[str] | None, seed: int) -> Batches:
    """What `data` gives for each step; where it is None, the same random batch."""
    if data is None:
        return Batches(graph, random_batch(graph, seed))
    return Batches(graph, data if isinstance(data, Mapping) else load_batch(data, graph, sets=True))
