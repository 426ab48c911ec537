"""Sublinear memory: every sqrt(n)-th activation is kept (Chen, Xu, Zhang, Guestrin 2016, section 4).

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

The bytes of an operator are those of all its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.keeping import checkpointed, forward_operators
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule

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
