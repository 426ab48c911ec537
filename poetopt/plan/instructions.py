"""Vocabulary of plans: four kinds of instructions, and the list of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from poetopt.util.text import shown

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem


class Action(StrEnum):
    """Kinds of instructions (Algorithm 2 of the paper)."""

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

    Attributes
    ----------
    target
        Index of an operator for COMPUTE, else of a tensor.
    variant
        How a COMPUTE runs: 0 without streaming, v as `ProblemOperator.variants[v - 1]`.
    """

    action: Action
    target: int
    variant: int = 0


@dataclass(frozen=True)
class Plan:
    """Plan of one training step for one problem.

    Attributes
    ----------
    instructions
        Instructions in execution order. Graph inputs are in RAM before the first one.
    offsets
        Byte offset of each buffer in the arena, by allocation in execution order: each graph input in index order, then
        for each instruction the tensors that it allocates, in index order, and for a COMPUTE lastly its workspace.
        Empty until the plan is laid out.
    """

    problem: Problem = field(repr=False)
    instructions: tuple[Instruction, ...]
    offsets: tuple[int, ...] = ()

    @property
    def instruction_bytes(self) -> int:
        """Bytes of the instructions: 2 bits of action before the target in 7-bit bytes, and one byte for a variant."""
        return sum(-(-(step.target.bit_length() + 2) // 7) + (step.variant > 0) for step in self.instructions)

    def __repr__(self) -> str:
        laid_out = "laid out" if self.offsets else "not laid out"
        return f"<Plan of {shown(self.problem.name)}: {len(self.instructions)} instructions, {laid_out}>"
