"""Common parts of the rematerialization heuristics: from what is kept to what is recomputed.

`S[t, i]`: tensor i is in RAM as stage t begins. `R`: the pairs (stage, operator) that run again. The heuristics
choose S, and R follows from it: what S gains during a stage must be computed in it, and so must, in turn, what these
operators read and S has not got (Jain et al. 2020, section 4.5, carried from nodes to operators with several outputs:
an operator runs if any of its outputs is missing, and gives all of them).

Graph inputs, and the outputs of operators that can't run again, are kept from the start to their last read.

Page-ins are moved forward in time, so that a transfer channel beside the CPU can hide them.

Sublinear memory: every sqrt(n)-th activation is kept (Chen, Xu, Zhang, Guestrin 2016, section 4).

Of n candidates, in order, every floor(sqrt(n))-th is a checkpoint. The others are dropped in the forward pass, and
recomputed a segment at a time when the backward pass reaches the segment. It assumes a chain of layers of equal cost
and size: neither bytes nor joules are looked at, so there is one plan for all budgets.

On general graphs the candidates are all forward operators in order (linearized), as in Jain et al. (2020); activations
that jump over a checkpoint are held to their last forward reader or recomputed for it, whichever fits and is
cheaper. All outputs of a checkpointed operator are kept; workspace is the simulator's.

Sublinear memory, greedy: a checkpoint whenever enough bytes have gone by (Chen et al. 2016, algorithm 3).

In forward order, bytes are added up; a candidate at which the sum exceeds b is kept, and the sum starts anew. b is
swept over (geometrically, from the smallest operator to all activations), and the cheapest plan that fits is the
answer. It looks at bytes, not at costs.

An operator's bytes are those of all its outputs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
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


STEPS = 48
"""Values of b."""


def schedule_greedy(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The cheapest of all b. Raises NoScheduleError where no b gives a plan that fits."""
    return cheapest(problem, ram_bytes, _swept(problem), settings)


def greedy_checkpoints(problem: Problem, threshold: float) -> frozenset[int]:
    """The operators at which more than `threshold` bytes have gone by since the last checkpoint."""
    kept: set[int] = set()
    passed = 0
    for operator in forward_operators(problem):
        passed += problem.nbytes(problem.operators[operator].outputs)
        if passed > threshold:
            kept.add(operator)
            passed = 0
    return frozenset(kept)


def _swept(problem: Problem) -> Iterator[Schedule]:
    sizes = [problem.nbytes(problem.operators[operator].outputs) for operator in forward_operators(problem)]
    total = sum(sizes)
    least = min((size for size in sizes if size), default=1)
    seen: set[frozenset[int]] = set()
    for step in range(STEPS):
        threshold = least * (max(total, 1) / least) ** (step / (STEPS - 1)) - 1
        checkpoints = greedy_checkpoints(problem, threshold)
        if checkpoints not in seen:
            seen.add(checkpoints)
            yield from checkpointed(problem, checkpoints)


def schedule_sqrtn(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The one plan of the method. Raises NoScheduleError where the plan doesn't fit."""
    checkpoints = every_sqrt(forward_operators(problem))
    return cheapest(problem, ram_bytes, checkpointed(problem, checkpoints), settings)


def every_sqrt(candidates: Sequence[int]) -> frozenset[int]:
    """Every floor(sqrt(n))-th of n candidates."""
    step = max(1, math.isqrt(len(candidates)))
    return frozenset(candidates[step - 1 :: step])
