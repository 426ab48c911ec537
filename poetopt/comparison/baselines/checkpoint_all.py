"""Checkpoint all: what PyTorch does by default.

Nothing is recomputed or paged; each tensor is freed after its last read. It assumes that everything fits,
works on any graph, and has no overhead, so that where it fits it is the answer.
"""

from __future__ import annotations

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The one plan of the method. Raises NoScheduleError where it doesn't fit."""
    return cheapest(problem, ram_bytes, [Schedule()], settings)
