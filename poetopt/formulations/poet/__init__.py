"""`poet`: Algorithm 1 of the paper, generalised to operators with several outputs.

Stages x tensors matrices of R, S_ram, S_aux, M_in and M_out. It keeps the paper's rules, which are a
little stricter than what a plan may do: a tensor that a stage doesn't read stays until the stage ends,
and a tensor can be written out only when a stage begins. Exact, and slow: it is here to compare with,
and to be changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from poetopt.formulations.deadline import deadline
from poetopt.formulations.language import Formulation
from poetopt.formulations.poet.labels import labels
from poetopt.formulations.poet.memory import memory
from poetopt.formulations.poet.paging import paging, paging_source
from poetopt.formulations.poet.rematerialization import rematerialization
from poetopt.formulations.poet.space import PoetSpace, poet_space
from poetopt.formulations.rows import Floats, PointLike
from poetopt.schedule import Schedule


def _schedule(model: Any, point: PointLike) -> Schedule:
    space: PoetSpace = model.space
    R = point[model.rematerialization.R] > 0.5
    recomputes = {space.computes[x] for x in np.flatnonzero(R) if space.computes[x][0] != space.computes[x][1]}
    page_ins: set[tuple[int, int]] = set()
    if space.paging:
        for x in np.flatnonzero(point[model.paging.M_in] > 0.5):
            t, i = space.residences[x]
            page_ins.add((t + 1, i))
    return Schedule(frozenset(recomputes), frozenset(page_ins))


def _start(model: Any, schedule: Schedule) -> list[tuple[Any, Floats]] | None:
    """R alone is enough of a start: the solver completes the rest, or drops it."""
    space: PoetSpace = model.space
    R = np.zeros(len(space.computes))
    for x, (t, j) in enumerate(space.computes):
        R[x] = float(t == j or (t, j) in schedule.recomputes)
    values = [(model.rematerialization.R, R)]
    if space.paging:
        M_in = np.zeros(len(space.residences))
        for stage, tensor in schedule.page_ins:
            place = space.residence_index.get((stage - 1, tensor))
            if place is None:
                return None
            M_in[place] = 1.0
        values.append((model.paging.M_in, M_in))
    return values


poet = Formulation(
    name="poet",
    doc=__doc__,
    blocks=(paging, rematerialization, paging_source, memory, deadline),
    space=poet_space,
    schedule=_schedule,
    start=_start,
    labels=labels,
    strict=True,
    simulated=("paging", "rematerialization", "paging_source", "memory", "deadline"),
)
build = poet.build
with_block = poet.with_block
