"""Sublinear memory: every sqrt(n)-th activation is kept (Chen, Xu, Zhang, Guestrin 2016, section 4).

Of n candidates, in order, every floor(sqrt(n))-th is a checkpoint. The others are dropped in the forward pass, and
recomputed a segment at a time when the backward pass reaches the segment. It assumes a chain of layers of equal cost
and size: neither bytes nor joules are looked at, so there is one plan for all budgets.

On general graphs the candidates are the articulation points of the undirected forward graph (`-ap`), which cut it as a
layer cuts a chain, or all forward operators in order (linearized), as in Jain et al. (2020); activations that
jump over a checkpoint are held to their last forward reader or recomputed for it, whichever fits and is
cheaper. All outputs of a checkpointed operator are kept; workspace is the simulator's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.forward import articulation_points, forward_operators
from poetopt.comparison.baselines.keeping import checkpointed
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Linearized. Raises NoScheduleError where the plan doesn't fit."""
    return _of(problem, forward_operators(problem), ram_bytes, settings)


def schedule_ap(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """On articulation points. Raises NoScheduleError where the plan doesn't fit."""
    return _of(problem, articulation_points(problem), ram_bytes, settings)


def every_sqrt(candidates: Sequence[int]) -> frozenset[int]:
    """Every floor(sqrt(n))-th of n candidates."""
    step = max(1, math.isqrt(len(candidates)))
    return frozenset(candidates[step - 1 :: step])


def _of(problem: Problem, candidates: Sequence[int], ram_bytes: int, settings: Settings) -> Plan:
    return cheapest(problem, ram_bytes, checkpointed(problem, every_sqrt(candidates)), settings)
