"""NNTrainer (Moon et al. 2024) and checkpoint-all.

NNTrainer swaps proactively: every tensor leaves RAM after its use, and returns a fixed time ahead of the next.
Operators have a fixed order, so that the next use of each tensor is known. Between two uses a tensor is on storage,
unless the second use is so near that it would have to return at once. A tensor that operator t reads is paged in before
operator t - k, for a *look-ahead* of k operators that the user chooses. Activations are written once, right after they
are computed. Parameters and optimizer states whose home is storage are read from there in each step, and written back
after their update; none stays from one step to the next. Nothing is recomputed.

Here every look-ahead from 0 on is tried, and the cheapest plan within the budget is the result. In joules that is the
largest look-ahead that fits, because tensors that are used again within k operators stay.

Checkpoint-all is PyTorch's default. Nothing is recomputed or paged; each tensor is freed after its last read. It works
on any graph and has no overhead, but needs RAM for everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule


def schedule_all(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Return the only plan of the method. Raises NoScheduleError if it doesn't fit."""
    return cheapest(problem, ram_bytes, [Schedule()], settings)


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Return the cheapest plan over all look-aheads. Raises NoScheduleError if none fits."""
    return cheapest(problem, ram_bytes, (swapped(problem, k) for k in look_aheads(problem)), settings)


def look_aheads(problem: Problem) -> Iterator[int]:
    """Yield the numbers of operators to page in ahead; with the last one, all tensors of the step stay."""
    k = 0
    while k < len(problem.operators):
        yield k
        # Every look-ahead up to 32 operators is tried; then each is a quarter longer than the one before.
        k = k + 1 if k < 32 else k + k // 4
    yield len(problem.operators)


def swapped(problem: Problem, ahead: int) -> Schedule:
    """Return the schedule in which every tensor returns `ahead` operators before it is read."""
    page_ins: set[tuple[int, int]] = set()
    for i, tensor in enumerate(problem.tensors):
        uses = [tensor.producer, *problem.readers[i]] if not tensor.stored else [*problem.readers[i]]
        if tensor.stored and uses:
            page_ins.add((max(uses[0] - ahead, 0), i))
        page_ins.update((after - ahead, i) for before, after in itertools.pairwise(uses) if after - ahead > before + 1)
    return Schedule(page_ins=frozenset(page_ins))
