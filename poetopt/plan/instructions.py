"""The plan's vocabulary: four instructions, and the list of them that is a schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from poetopt.util.text import shown

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem


class Action(StrEnum):
    """The kinds of instructions (Algorithm 2 of the paper)."""

    COMPUTE = "compute"
    """Run an operator; its outputs become resident (those already there are overwritten in place)."""
    PAGE_OUT = "page_out"
    """Copy a resident tensor to storage; it stays in RAM until it is freed."""
    PAGE_IN = "page_in"
    """Copy a tensor from storage to a fresh buffer; the copy on storage stays valid."""
    FREE = "free"
    """Release a resident tensor's buffer."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a plan.

    target
        An operator's index for COMPUTE, else a tensor's.
    variant
        Of a COMPUTE, how it runs: 0 plain, v by `ProblemOperator.variants[v - 1]`.
    """

    action: Action
    target: int
    variant: int = 0


@dataclass(frozen=True)
class Plan:
    """A schedule of one training step for one problem.

    instructions
        In execution order. Graph inputs are resident before the first one.
    offsets
        Where each buffer starts in the arena: for the k-th allocation in execution order (each graph
        input in index order, then for each instruction what it makes newly resident, in index order,
        and for COMPUTE lastly its workspace) a byte offset. Empty until the plan has been laid out.
    """

    problem: Problem = field(repr=False)
    instructions: tuple[Instruction, ...]
    offsets: tuple[int, ...] = ()

    @property
    def instruction_bytes(self) -> int:
        """Bytes of the instructions, 7 bits a byte: two bits of action before the target, and a byte for a variant."""
        return sum(-(-(one.target.bit_length() + 2) // 7) + (one.variant > 0) for one in self.instructions)

    def __repr__(self) -> str:
        laid_out = "laid out" if self.offsets else "not laid out"
        return f"<Plan of {shown(self.problem.name)}: {len(self.instructions)} instructions, {laid_out}>"
