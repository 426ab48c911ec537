"""The schedule of ordinary training: nothing recomputed, nothing paged, everything freed after its last read."""

from __future__ import annotations

from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.problem import Problem
from poetopt.schedule import Schedule


def store_all(problem: Problem) -> Plan:
    """The plan whose peak a RAM percentage refers to."""
    return plan_of(problem, Schedule())
