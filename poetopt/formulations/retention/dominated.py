"""Dominated recomputes: no better than paging, as their operators cost what moving all that they write costs.

Say that operator j runs again in stage t for no less than writing out and paging in all its outputs. Then a schedule
does as well that pages in, in the place of this recompute, those of j's outputs that aren't there. They were written
out when j ran first, in no room of their own; paging in takes their buffers, where the recompute took those of its
inputs and its workspace as well; and what reads them finds them from the same instant on. An output that takes no room
stays from the first run on. One that nothing reads in stage t comes in where it is next read.

That holds of joules alone. Nothing is left out where seconds, runs of transfers or the storage's capacity count
(`retention_space` is asked for all decisions then, as for every formulation with blocks of others), nor of the stage
right after j's own, for which nothing that j wrote can come back from storage yet.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.block import Limits
from poetopt.graph.problem import Problem


def dominated(problem: Problem, limits: Limits, paging: bool) -> NDArray[np.bool_]:
    """(n_operators,) whether an optimum pages in what an operator writes rather than run it again."""
    none = np.zeros(len(problem.operators), dtype=bool)
    if not (paging and problem.paging) or problem.wake_j:
        return none
    if limits.open or limits.compute_s is not None or limits.makespan_s is not None:
        return none
    capacity = problem.storage_blocks
    if capacity is not None and sum(map(problem.blocks, range(len(problem.tensors)))) > capacity:
        return none
    moved = [tensor.page_in_j + tensor.page_out_j if tensor.nbytes else 0.0 for tensor in problem.tensors]
    return np.array(
        [
            min([operator.energy_j, *(way.energy_j for way in operator.variants)])
            >= (price := sum(moved[i] for i in operator.outputs))
            and math.isfinite(price)
            for operator in problem.operators
        ],
        dtype=bool,
    )


def replaced(operators: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n_stages, n_operators) the recomputes of `dominated` operators that page-ins can stand for."""
    places = np.arange(len(operators))
    return np.asarray(operators[None, :] & (places[:, None] >= places[None, :] + 2))
