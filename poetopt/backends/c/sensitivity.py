"""How far apart two steps are, and how far one ulp of the input moves a step: what agreement is measured by.

Kernels that sum in another order round otherwise. How much that may come to depends on the network, so it is measured:
every float of the batch is moved to one of its neighbours, at random, and onnxruntime computes the step again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poetopt.graph import Array, TrainingGraph

TRIALS = 3
"""Random moves; the one that moves the gradients most counts."""


def distance(mine: Mapping[str, Array], theirs: Mapping[str, Array], names: Sequence[str]) -> float:
    """The norm of the difference over that of `theirs`, all tensors together; infinite where one is no number."""
    apart = size = 0.0
    for name in names:
        a, b = mine[name].astype(np.float64), theirs[name].astype(np.float64)
        apart += float(np.sum((a - b) ** 2))
        size += float(np.sum(b**2))
    if not np.isfinite(apart) or not np.isfinite(size):
        return float("inf")
    return float(np.sqrt(apart / size)) if size else float(apart > 0)


def moved_by(graph: TrainingGraph, before: Mapping[str, Array], after: Mapping[str, Array]) -> Mapping[str, Array]:
    """How far parameters went, in float64."""
    return {name: after[name].astype(np.float64) - before[name].astype(np.float64) for name in graph.trained}


def nudged(arrays: Mapping[str, Array], seed: int) -> Mapping[str, Array]:
    """The same arrays with each float one ulp up or down."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            towards = np.where(rng.integers(0, 2, array.shape), np.inf, -np.inf).astype(array.dtype)
            found[name] = np.nextafter(array, towards)
        else:
            found[name] = array
    return found


def has_floats(arrays: Mapping[str, Array]) -> bool:
    """Whether there is anything that can be moved."""
    return any(array.dtype.kind == "f" and array.size for array in arrays.values())
