"""Page-ins moved forward in time, so that a transfer channel beside the CPU can hide them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule


def with_prefetch(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """The schedule with its page-ins just in time, and, on a device with DMA, as early as the channel needs them.

    From the last page-in to the first, each is to end when its tensor is read or the next one begins, whichever is
    earlier, and begins in the stage where that takes it; never before the stage after the tensor's access before it.
    """
    if problem.dma and schedule.page_ins:
        ends = np.concatenate([[0.0], np.cumsum([operator.time_s for operator in problem.operators])])
        begins = ends.tolist()
        moved: set[tuple[int, int]] = set()
        free = float(ends[-1])
        for stage, i in sorted(schedule.page_ins, reverse=True):
            tensor = problem.tensors[i]
            free = min(free, begins[stage]) - tensor.page_in_s
            earlier = [reader for reader in problem.readers[i] if reader < stage]
            earlier += [
                at for at, operator in schedule.recomputes if at < stage and i in problem.operators[operator].inputs
            ]
            floor = max([tensor.producer + 1, *(at + 1 for at in earlier)])
            place = bisect_right(begins, free) - 1
            moved.add((min(stage, max(floor, place)), i))
        yield Schedule(schedule.recomputes, frozenset(moved))
    yield schedule
