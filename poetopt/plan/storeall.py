"""The schedule of ordinary training: nothing recomputed, nothing paged, everything freed after its last read."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from poetopt.graph.problem import Home, Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate


def everything(problem: Problem) -> Schedule:
    """Nothing recomputed, and nothing paged but what comes anew with each batch."""
    moved = (
        i
        for i in problem.stored_at_start
        if problem.tensors[i].home is Home.STORAGE and not problem.tensors[i].may_stay and problem.readers[i]
    )
    return Schedule(page_ins=frozenset((problem.first_reads[i], i) for i in moved))


def store_all(problem: Problem) -> Plan:
    """Ordinary training as a plan, not laid out."""
    return plan_of(problem, everything(problem))


def store_all_bytes(problem: Problem) -> int:
    """The least budget in bytes that ordinary training keeps to: what a RAM percentage refers to.

    The peak of the live bytes or, where alignment or gaps make it the larger, the arena with the reserve beside it.
    """
    if problem not in _known:
        plan = store_all(problem)
        peak = simulate(plan).peak_bytes
        laid_out = lay_out(plan, ram_bytes=peak - problem.reserve_bytes, quick=True)
        _known[problem] = max(peak, arena_bytes(laid_out) + problem.reserve_bytes)
    return _known[problem]


_known: WeakKeyDictionary[Problem, int] = WeakKeyDictionary()
"""A percentage, the search and the report ask for the same figure, and a layout may take seconds."""
