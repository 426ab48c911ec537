"""NNTrainer (Moon et al. 2024), proactive swapping: all leaves RAM after its use, and returns a fixed time ahead.

The order of operators is fixed, so that the next use of each tensor is known. Between two uses it is on storage, unless
the second is so near that it would have to be back at once: a tensor that operator t reads is paged in before operator
t - k, for a *look-ahead* of k operators which the user sets. Activations are written out once, right after they are
made. Parameters and optimizer states whose home is storage are read from there in each step, and written back after
their update; none stays from one step to the next. Nothing is recomputed.

Here every look-ahead from 0 on is tried, and the cheapest plan that keeps the budget is the answer: in joules that is
the largest one that fits, as what is used again within k operators stays.

Checkpoint all: what PyTorch does by default.

Nothing is recomputed or paged; each tensor is freed after its last read. It assumes that everything fits,
works on any graph, and has no overhead, so that where it fits it is the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule


def schedule_all(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The one plan of the method. Raises NoScheduleError where it doesn't fit."""
    return cheapest(problem, ram_bytes, [Schedule()], settings)


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The cheapest over all look-aheads. Raises NoScheduleError where none fits."""
    return cheapest(problem, ram_bytes, (swapped(problem, k) for k in look_aheads(problem)), settings)


def look_aheads(problem: Problem) -> Iterator[int]:
    """Numbers of operators to page in ahead; with the last one all that a step makes stays."""
    k = 0
    while k < len(problem.operators):
        yield k
        # each look-ahead up to so many operators is tried, and then each a quarter longer than the one before
        k = k + 1 if k < 32 else k + k // 4
    yield len(problem.operators)


def swapped(problem: Problem, ahead: int) -> Schedule:
    """The schedule in which every tensor returns `ahead` operators before it is read."""
    page_ins: set[tuple[int, int]] = set()
    for i, tensor in enumerate(problem.tensors):
        uses = [tensor.producer, *problem.readers[i]] if not tensor.stored else [*problem.readers[i]]
        if tensor.stored and uses:
            page_ins.add((max(uses[0] - ahead, 0), i))
        page_ins.update((after - ahead, i) for before, after in itertools.pairwise(uses) if after - ahead > before + 1)
    return Schedule(page_ins=frozenset(page_ins))
