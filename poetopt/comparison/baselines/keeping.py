"""Common parts of the rematerialization heuristics: from what is kept to what is recomputed.

`S[t, i]`: tensor i is in RAM as stage t begins. `R`: the pairs (stage, operator) that run again. The heuristics
choose S, and R follows from it: what S gains during a stage must be computed in it, and so must, in turn, what these
operators read and S has not got (Jain et al. 2020, section 4.5, carried from nodes to operators with several outputs:
an operator runs if any of its outputs is missing, and gives all of them).

Graph inputs, and the outputs of operators that can't run again, are kept from the start to their last read.

The forward graph, as the heuristics for chains see it.

Page-ins moved forward in time, so that a transfer channel beside the CPU can hide them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule


def forward_operators(problem: Problem) -> tuple[int, ...]:
    """The forward operators, in order."""
    return tuple(index for index, operator in enumerate(problem.operators) if not operator.backward)


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


Kept = NDArray[np.bool_]
"""(operators, tensors)."""


def irreplaceable(problem: Problem, tensor: int) -> bool:
    """Tell whether no recompute can bring the tensor back."""
    return not problem.may_recompute(tensor)


def repaired(problem: Problem, kept: Kept) -> Schedule:
    """The recomputes that S needs.

    kept
        (operators, tensors) bool; what it says of irreplaceable tensors is ignored.
    """
    stages = len(problem.operators)
    fixed = [irreplaceable(problem, i) for i in range(len(problem.tensors))]
    wanted: list[set[int]] = [set() for _ in range(stages)]
    for stage, tensor in zip(*np.nonzero(kept[1:] & ~kept[:-1]), strict=True):
        if not fixed[tensor] and problem.tensors[tensor].producer < stage:
            wanted[stage].add(problem.tensors[tensor].producer)
    recomputes: set[tuple[int, int]] = set()
    for stage in range(stages):
        here = kept[stage]
        queue = [stage, *sorted(wanted[stage])]
        runs = set(queue)
        while queue:
            for tensor in problem.operators[queue.pop()].inputs:
                producer = problem.tensors[tensor].producer
                if not fixed[tensor] and not here[tensor] and producer not in runs:
                    runs.add(producer)
                    queue.append(producer)
        recomputes.update((stage, operator) for operator in runs if operator != stage)
    return Schedule(recomputes=frozenset(recomputes))


def kept_for(problem: Problem, checkpoints: Collection[int], *, hold_skips: bool) -> Kept:
    """S from the forward operators whose outputs are checkpoints.

    Kept are: activations at the forward stages that read them; checkpoints, from their making on; gradients, to
    their last read; and of each segment between two checkpoints, its activations from the stage of the first backward
    operator that reads one of them (in which they are recomputed) to their own last read, so that a
    segment is recomputed once and held through its backward.

    hold_skips
        Whether an activation that several forward operators read is held from the first to the last of them;
        otherwise it is recomputed for each.
    """
    stages, last = len(problem.operators), problem.last_forward
    kept = np.zeros((stages, len(problem.tensors)), dtype=bool)
    for i, (tensor, readers) in enumerate(zip(problem.tensors, problem.readers, strict=True)):
        producer = tensor.producer
        # What the very next operator reads is in RAM anyway: the loss's outputs are, for the first backward operator.
        forward = [reader for reader in readers if reader <= max(last, producer + 1)]
        if not tensor.computed or producer in checkpoints:
            kept[producer + 1 :, i] = True
        elif problem.operators[producer].backward and readers:
            kept[producer + 1 : readers[-1] + 1, i] = True
        elif hold_skips and forward:
            kept[producer + 1 : forward[-1] + 1, i] = True
        else:
            kept[forward, i] = True
    for segment in _segments(problem, checkpoints):
        tensors = [i for operator in segment for i in problem.operators[operator].outputs]
        reads = [reader for i in tensors for reader in problem.readers[i] if reader > last]
        for i in tensors:
            if reads and problem.readers[i] and problem.readers[i][-1] > last:
                kept[min(reads) + 1 : problem.readers[i][-1] + 1, i] = True
    return kept


def checkpointed(problem: Problem, checkpoints: Collection[int]) -> Iterator[Schedule]:
    """The schedules of a set of checkpoints: skips held, and skips recomputed."""
    for hold_skips in (True, False):
        yield repaired(problem, kept_for(problem, checkpoints, hold_skips=hold_skips))


def _segments(problem: Problem, checkpoints: Collection[int]) -> Iterator[list[int]]:
    """The runs of forward operators between checkpoints."""
    segment: list[int] = []
    for index, operator in enumerate(problem.operators):
        if operator.backward:
            continue
        if index in checkpoints:
            yield segment
            segment = []
        else:
            segment.append(index)
    yield segment
