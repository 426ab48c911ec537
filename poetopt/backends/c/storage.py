"""Which blocks of the storage hold each tensor that a plan moves, and what they hold before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.plan.instructions import Action, Plan
from poetopt.runtimes.c.tiles.windows import BLOCK_BYTES

__all__ = ["BLOCK_BYTES", "Storage", "lay_out_storage"]


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a step.

    blocks
        The first block of each tensor that is paged or streamed, or that has its first value there, by its index in the
        problem.
    first
        The tensors with their first values there, in the order of their blocks, which come before all others.
    count
        How many blocks there are.
    """

    blocks: Mapping[int, int]
    first: tuple[int, ...]
    count: int


def lay_out_storage(plan: Plan, first: int = 0, whole: Mapping[int, int] | None = None) -> Storage:
    """Whole blocks for each tensor, from block `first` on: what begins there, then what else the plan moves.

    whole
        Bytes there of those that are larger than in RAM: tables by rows.
    """
    problem = plan.problem
    begin = tuple(sorted({*problem.stored_at_start, *problem.lasting}))
    moved = {i.target for i in plan.instructions if i.action in (Action.PAGE_OUT, Action.PAGE_IN)}
    for step in plan.instructions:
        if step.action is Action.COMPUTE and step.variant:
            way = problem.operators[step.target].variant(step.variant)
            moved.update((*way.streamed_in, *way.streamed_out))
    blocks: dict[int, int] = {}
    end = first
    for index in dict.fromkeys((*begin, *sorted(moved))):
        blocks[index] = end
        end += -(-(whole or {}).get(index, problem.tensors[index].nbytes) // BLOCK_BYTES)
    return Storage(blocks, begin, end)
