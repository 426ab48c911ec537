"""What an operator reads, writes and costs, and the ways in which it may run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run an operator: some operands go to or come from storage chunk by chunk, never whole in RAM.

    streamed_in, streamed_out
        Indices of the operator's inputs and outputs that are streamed, ascending. What it updates is both or neither:
        its old chunks are read, and the new ones written over them.
    workspace_bytes
        Its arena bytes while it runs, chunks included.
    time_s, energy_j
        Of one run, transfers of chunks included.
    read_bytes, written_bytes
        Bytes that one run reads from storage and writes there.
    zero_first_bytes
        Of those that it reads, bytes that are zero in the first part of a batch, and not read there.
    """

    streamed_in: tuple[int, ...] = ()
    streamed_out: tuple[int, ...] = ()
    workspace_bytes: int = 0
    time_s: float = 0.0
    energy_j: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    zero_first_bytes: int = 0

    @property
    def streams(self) -> bool:
        """Whether anything goes to storage or comes from there while it runs."""
        return bool(self.streamed_in or self.streamed_out)


@dataclass(frozen=True, slots=True)
class ProblemOperator:
    """An operator; its index is its place in the fixed order, and its stage.

    inputs, outputs
        Indices of the (non-resident) tensors that it reads and writes, ascending, without repetition. A tensor
        that it updates is an input, and says so itself.
    workspace_bytes
        Bytes in the arena that are needed only while it runs: its emitted temporaries.
    takes
        (input, output) where its output is written over an input of the same size, which nobody else reads, and which
        is gone then. It runs once. Empty where it has none such; nor does it where a variant other than the plain one
        runs it.
    recomputable
        Whether it may run more than once.
    count
        How many of the network's operators it is: what it counts for in a chain of recomputations.
    variants
        Ways to run it with streamed operands, beside the plain one, whose figures are the operator's own.
    updaters
        Indices of the operators that write anew what it reads in the resident region, ascending: it may not run after
        any of them. (A tensor that is scheduled says itself who updates it.)
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    time_s: float
    energy_j: float
    workspace_bytes: int = 0
    recomputable: bool = True
    backward: bool = False
    kind: str = ""
    count: int = 1
    variants: tuple[Variant, ...] = ()
    updaters: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()

    def variant(self, number: int) -> Variant:
        """The way to run it that an `Instruction` numbers so: 0 is the plain one."""
        return self.variants[number - 1] if number else self.plain

    def held(self, variant: int = 0) -> list[int]:
        """The operands and outputs with bytes of their own in RAM: neither streamed, nor written over by the output."""
        way = self.variant(variant)
        gone = {*way.streamed_in, *way.streamed_out, *(self.takes[:1] if not variant else ())}
        return [i for i in (*self.inputs, *self.outputs) if i not in gone]

    @property
    def plain(self) -> Variant:
        """The way to run it with every operand whole in RAM."""
        return Variant(workspace_bytes=self.workspace_bytes, time_s=self.time_s, energy_j=self.energy_j)
