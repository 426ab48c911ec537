"""How the operators run that follow the last part of a batch: each in the way of least energy that has room.

They run one by one, and none has anything in RAM that another one needs: what stays there from part to part alone
decides how much room each has, and what it finds there.
"""

from __future__ import annotations

from collections.abc import Iterable

from poetopt.graph.problem.arena import run_bytes, slots
from poetopt.graph.problem.problem import Problem


def closing_with(problem: Problem, kept: Iterable[int]) -> tuple[Problem, int]:
    """What follows the parts of `problem` that keep these tensors in RAM; and bytes kept that nothing of it reads."""
    closing = problem.closing
    assert closing is not None
    names = {problem.tensors[i].name: slots(problem, problem.tensors[i].nbytes) for i in kept}
    here = [i for i, held in enumerate(closing.tensors) if held.name in names and held.may_stay]
    beside = sum(names.values()) - sum(names[closing.tensors[i].name] for i in here)
    return closing.keeping(here), beside


def ways_within(closing: Problem, room_bytes: int) -> tuple[int, ...]:
    """For each operator the way of least energy that fits, as an `Instruction` numbers it; the leanest where none does.

    closing
        Its `lasting` tensors are in RAM throughout; whatever else an operator reads is paged in for it, or streamed.
    room_bytes
        For its operands, workspace and what lasts.
    """
    there = {i: slots(closing, closing.tensors[i].nbytes) for i in closing.lasting}
    lasting_bytes = sum(there.values())
    found = []
    for k, operator in enumerate(closing.operators):
        beside = lasting_bytes - sum(there.get(i, 0) for i in operator.inputs)
        ways = [v for v in closing.ways(k) if there.keys().isdisjoint(operator.variant(v).streamed_in)]
        taken = {v: run_bytes(closing, k, v) + beside for v in ways}
        fitting = [v for v in ways if taken[v] <= room_bytes]
        prices = {v: (moving_j(closing, k, v), taken[v]) for v in fitting}
        found.append(min(prices, key=prices.__getitem__) if prices else min(ways, key=taken.__getitem__))
    return tuple(found)


def moving_j(closing: Problem, operator: int, variant: int) -> float:
    """Joules of a run in one way, with the page-ins and write-backs around it of what is not in RAM for good."""
    op, there = closing.operators[operator], set(closing.lasting)
    way = op.variant(variant)
    moved = (closing.tensors[i] for i in op.inputs if i not in there and i not in way.streamed_in)
    around = sum(held.page_in_j + (held.page_out_j if held.updated_by == operator else 0.0) for held in moved)
    return way.energy_j + around
