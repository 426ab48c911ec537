"""Which blocks of the storage hold each tensor that a plan pages out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.plan.instructions import Action, Plan

BLOCK_BYTES = 512
"""Of an SD card, and of the storage that `po_read` and `po_write` speak of."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a step.

    blocks
        The first block of each tensor that is paged, by its index in the problem.
    count
        How many blocks there are.
    """

    blocks: Mapping[int, int]
    count: int


def lay_out_storage(plan: Plan, first: int = 0) -> Storage:
    """Whole blocks for each tensor that the plan moves, from block `first` on, in the order of the problem."""
    moved = sorted({i.target for i in plan.instructions if i.action in (Action.PAGE_OUT, Action.PAGE_IN)})
    blocks: dict[int, int] = {}
    end = first
    for index in moved:
        blocks[index] = end
        end += -(-plan.problem.tensors[index].nbytes // BLOCK_BYTES)
    return Storage(blocks, end)
