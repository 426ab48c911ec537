"""Which blocks of the storage hold each tensor that plans move, and what they hold before the first step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from poetopt.plan.instructions import Action, Plan
from poetopt.problem import Problem
from poetopt.runtimes.c.tiles.windows import BLOCK_BYTES

__all__ = ["BLOCK_BYTES", "Storage", "lay_out_storage"]


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a step.

    blocks
        The first block of each tensor that is paged or streamed, or that has its first value there, by its name.
    first
        The tensors with their first values there and their bytes, in the order of their blocks, which come before all
        others.
    count
        How many blocks there are.
    """

    blocks: Mapping[str, int]
    first: Mapping[str, int]
    count: int

    def of(self, problem: Problem) -> Mapping[int, int]:
        """`blocks` of the tensors of `problem`, by their index there."""
        return {i: self.blocks[held.name] for i, held in enumerate(problem.tensors) if held.name in self.blocks}


def lay_out_storage(
    plans: Sequence[Plan], first: int = 0, whole: Mapping[str, int] | None = None, empty: Collection[str] = ()
) -> Storage:
    """Whole blocks for each tensor, from block `first` on: what begins there, then what else the plans move.

    whole
        Bytes there of those that are larger than in RAM, by name: tables by rows.
    empty
        What has no value that matters before the first step.
    """
    begin: dict[str, int] = {}
    moved: dict[str, int] = {}
    for plan in plans:
        tensors = plan.problem.tensors
        begun = sorted({*plan.problem.stored_at_start, *plan.problem.lasting})
        begin |= {tensors[i].name: tensors[i].nbytes for i in begun if tensors[i].name not in empty}
        moved |= {tensors[i].name: tensors[i].nbytes for i in sorted({*begun, *_moved(plan)})}
    sizes = {**begin, **moved}
    blocks: dict[str, int] = {}
    end = first
    for name in sizes:
        blocks[name] = end
        end += -(-(whole or {}).get(name, sizes[name]) // BLOCK_BYTES)
    return Storage(blocks, begin, end)


def _moved(plan: Plan) -> set[int]:
    """What a plan pages or streams."""
    found = {step.target for step in plan.instructions if step.action in (Action.PAGE_OUT, Action.PAGE_IN)}
    for step in plan.instructions:
        if step.action is Action.COMPUTE and step.variant:
            way = plan.problem.operators[step.target].variant(step.variant)
            found.update((*way.streamed_in, *way.streamed_out))
    return found
