"""Common parts of the rematerialization heuristics, and the two methods of Chen et al. 2016.

`S[t, i]`: tensor i is in RAM as stage t begins. `R`: the pairs (stage, operator) that run again. The heuristics choose
S, and R follows from it: tensors that S gains during a stage must be computed in it, and so must, in turn, their
operators' inputs that are missing in S (Jain et al. 2020, section 4.5, extended from nodes to operators with several
outputs: an operator runs if any of its outputs is missing, and writes all of them).

Graph inputs, and outputs of operators that can't run again, are kept from the start to their last read.

Page-ins are moved forward in time, so that a transfer channel beside the CPU can hide them.

Sublinear memory: every sqrt(n)-th activation is kept (Chen, Xu, Zhang, Guestrin 2016, section 4).

Of n candidates, in order, every floor(sqrt(n))-th is a checkpoint. The others are dropped in the forward pass, and
recomputed one segment at a time when the backward pass reaches it. The method assumes a chain of layers of equal cost
and size: it ignores bytes and joules, so that there is one plan for all budgets.

On general graphs the candidates are all forward operators in order (linearized), as in Jain et al. (2020). Activations
that jump over a checkpoint are held to their last forward reader or recomputed for it, whichever fits and is cheaper.
All outputs of a checkpointed operator are kept; workspace is the simulator's.

Sublinear memory, greedy: a checkpoint after every b bytes (Chen et al. 2016, algorithm 3).

In forward order, bytes are added up; a candidate at which the sum exceeds b is kept, and the sum restarts. b varies
geometrically from the smallest operator to all activations, and the cheapest plan that fits is the result. The method
considers bytes, but not costs.

The bytes of an operator are those of all its outputs.
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
    """Return the forward operators, in order."""
    return tuple(index for index, operator in enumerate(problem.operators) if not operator.backward)


def with_prefetch(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedule with earlier page-ins if the device has DMA, and with its page-ins just in time.

    From the last page-in to the first, each must end when its tensor is read or the next one begins, whichever is
    earlier. It begins in the stage that this implies, but never before the stage after the tensor's previous access.
    """
    if problem.dma and schedule.page_ins:
        end_times = np.concatenate([[0.0], np.cumsum([operator.time_s for operator in problem.operators])])
        begin_times = end_times.tolist()
        early_page_ins: set[tuple[int, int]] = set()
        channel_free_s = float(end_times[-1])
        for stage, i in sorted(schedule.page_ins, reverse=True):
            tensor = problem.tensors[i]
            channel_free_s = min(channel_free_s, begin_times[stage]) - tensor.page_in_s
            earlier = [reader for reader in problem.readers[i] if reader < stage]
            earlier += [
                recompute_stage
                for recompute_stage, operator in schedule.recomputes
                if recompute_stage < stage and i in problem.operators[operator].inputs
            ]
            earliest_stage = max([tensor.producer + 1, *(recompute_stage + 1 for recompute_stage in earlier)])
            stage_by_time = bisect_right(begin_times, channel_free_s) - 1
            early_page_ins.add((min(stage, max(earliest_stage, stage_by_time)), i))
        yield Schedule(schedule.recomputes, frozenset(early_page_ins))
    yield schedule


Kept = NDArray[np.bool_]
"""S as an array (operators, tensors)."""


def irreplaceable(problem: Problem, tensor: int) -> bool:
    """Return whether no recompute can restore the tensor."""
    return not problem.may_recompute(tensor)


def repaired(problem: Problem, kept: Kept) -> Schedule:
    """Return the recomputes that S needs.

    Parameters
    ----------
    kept
        S as bool (operators, tensors); entries of irreplaceable tensors are ignored.
    """
    stages = len(problem.operators)
    is_fixed = [irreplaceable(problem, i) for i in range(len(problem.tensors))]
    needed: list[set[int]] = [set() for _ in range(stages)]
    for stage, tensor in zip(*np.nonzero(kept[1:] & ~kept[:-1]), strict=True):
        if not is_fixed[tensor] and problem.tensors[tensor].producer < stage:
            needed[stage].add(problem.tensors[tensor].producer)
    recomputes: set[tuple[int, int]] = set()
    for stage in range(stages):
        resident = kept[stage]
        queue = [stage, *sorted(needed[stage])]
        runs = set(queue)
        while queue:
            for tensor in problem.operators[queue.pop()].inputs:
                producer = problem.tensors[tensor].producer
                if not is_fixed[tensor] and not resident[tensor] and producer not in runs:
                    runs.add(producer)
                    queue.append(producer)
        recomputes.update((stage, operator) for operator in runs if operator != stage)
    return Schedule(recomputes=frozenset(recomputes))


def kept_for(problem: Problem, checkpoints: Collection[int], *, hold_skips: bool) -> Kept:
    """Return S for the forward operators whose outputs are checkpoints.

    S keeps activations at the forward stages that read them; checkpoints, from their compute on; and gradients, to
    their last read. Of each segment between two checkpoints, it keeps the activations from the stage of the first
    backward operator that reads one of them (in which they are recomputed) to their own last read. So a segment is
    recomputed once, and held through its backward pass.

    Parameters
    ----------
    hold_skips
        Whether an activation that several forward operators read is held from the first to the last of them; otherwise
        it is recomputed for each.
    """
    stages, last = len(problem.operators), problem.last_forward
    kept = np.zeros((stages, len(problem.tensors)), dtype=bool)
    for i, (tensor, readers) in enumerate(zip(problem.tensors, problem.readers, strict=True)):
        producer = tensor.producer
        # The next operator's inputs are in RAM anyway, such as the loss's outputs for the first backward operator.
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
    """Yield the schedules of a set of checkpoints: with skips held, and with skips recomputed."""
    for hold_skips in (True, False):
        yield repaired(problem, kept_for(problem, checkpoints, hold_skips=hold_skips))


def _segments(problem: Problem, checkpoints: Collection[int]) -> Iterator[list[int]]:
    """Yield the runs of forward operators between checkpoints."""
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
"""Number of values of b."""


def schedule_greedy(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Return the cheapest plan over all b. Raises NoScheduleError if no b has a plan that fits."""
    return cheapest(problem, ram_bytes, _greedy_schedules(problem), settings)


def greedy_checkpoints(problem: Problem, threshold: float) -> frozenset[int]:
    """Return the operators at which more than `threshold` bytes have passed since the last checkpoint."""
    checkpoints: set[int] = set()
    passed = 0
    for operator in forward_operators(problem):
        passed += problem.nbytes(problem.operators[operator].outputs)
        if passed > threshold:
            checkpoints.add(operator)
            passed = 0
    return frozenset(checkpoints)


def _greedy_schedules(problem: Problem) -> Iterator[Schedule]:
    sizes = [problem.nbytes(problem.operators[operator].outputs) for operator in forward_operators(problem)]
    total_bytes = sum(sizes)
    smallest = min((size for size in sizes if size), default=1)
    seen: set[frozenset[int]] = set()
    for step in range(STEPS):
        threshold = smallest * (max(total_bytes, 1) / smallest) ** (step / (STEPS - 1)) - 1
        checkpoints = greedy_checkpoints(problem, threshold)
        if checkpoints not in seen:
            seen.add(checkpoints)
            yield from checkpointed(problem, checkpoints)


def schedule_sqrtn(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Return the only plan of the method. Raises NoScheduleError if it doesn't fit."""
    checkpoints = every_sqrt(forward_operators(problem))
    return cheapest(problem, ram_bytes, checkpointed(problem, checkpoints), settings)


def every_sqrt(candidates: Sequence[int]) -> frozenset[int]:
    """Return every floor(sqrt(n))-th of n candidates."""
    step = max(1, math.isqrt(len(candidates)))
    return frozenset(candidates[step - 1 :: step])
