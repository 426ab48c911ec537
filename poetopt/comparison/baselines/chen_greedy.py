"""Sublinear memory, greedy: a checkpoint whenever enough bytes have gone by (Chen et al. 2016, algorithm 3).

In forward order, bytes are added up; a candidate at which the sum exceeds b is kept, and the sum starts anew. b is
swept over (geometrically, from the smallest operator to all activations), and the cheapest plan that fits is the
answer. It looks at bytes, not at costs.

On general graphs the candidates are articulation points (`-ap`) or all forward operators (linearized); see
`chen_sqrtn`. The bytes of an operator are those of all its outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.forward import articulation_points, forward_operators
from poetopt.comparison.baselines.keeping import checkpointed
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule

STEPS = 48
"""Values of b."""


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Linearized. Raises NoScheduleError where no b gives a plan that fits."""
    return cheapest(problem, ram_bytes, _swept(problem, forward_operators(problem)), settings)


def schedule_ap(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """On articulation points. Raises NoScheduleError where no b gives a plan that fits."""
    return cheapest(problem, ram_bytes, _swept(problem, articulation_points(problem)), settings)


def greedy_checkpoints(problem: Problem, candidates: Sequence[int], threshold: float) -> frozenset[int]:
    """The candidates at which more than `threshold` bytes have gone by since the last checkpoint."""
    able = set(candidates)
    kept: set[int] = set()
    passed = 0
    for operator in forward_operators(problem):
        passed += problem.nbytes(problem.operators[operator].outputs)
        if operator in able and passed > threshold:
            kept.add(operator)
            passed = 0
    return frozenset(kept)


def _swept(problem: Problem, candidates: Sequence[int]) -> Iterator[Schedule]:
    sizes = [problem.nbytes(problem.operators[operator].outputs) for operator in forward_operators(problem)]
    total = sum(sizes)
    least = min((size for size in sizes if size), default=1)
    seen: set[frozenset[int]] = set()
    for step in range(STEPS):
        threshold = least * (max(total, 1) / least) ** (step / (STEPS - 1)) - 1
        checkpoints = greedy_checkpoints(problem, candidates, threshold)
        if checkpoints not in seen:
            seen.add(checkpoints)
            yield from checkpointed(problem, checkpoints)
