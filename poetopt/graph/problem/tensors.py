"""Tensors and operators of a problem: where they begin, who writes them anew, what moving and running them costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class Home(StrEnum):
    """Says where a tensor is when the step begins, before the first operator."""

    NOWHERE = "nowhere"
    """An operator computes it."""
    RAM = "ram"
    """It lies in RAM."""
    STORAGE = "storage"
    """Storage holds a copy: reading it needs no page-out before."""
    FLASH = "flash"
    """It lies in mapped flash: read in place, without RAM and at no cost, and never written."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Seconds and joules of moving a whole tensor from storage (in) and to storage (out)."""

    page_in_s: float = 0.0
    page_in_j: float = 0.0
    page_out_s: float = 0.0
    page_out_j: float = 0.0


@dataclass(frozen=True, slots=True)
class ProblemTensor:
    """A tensor that a schedule may keep, free, page or lose.

    nbytes
        Its size in bytes; may be 0.
    producer
        Index of the operator that writes it, or -1 for a tensor that is there when the step begins.
    transfers
        Seconds and joules of moving it; `tensor.page_in_s` and its kin read them.
    home
        Where it is when the step begins. By default `nowhere` where an operator writes it, else `ram`.
    carried
        Whether it has to be where it began when the step ends, so that the step can be repeated.
    backed
        Whether storage holds a copy as well when the step begins, of a tensor that is in RAM then.
    of_batch
        Whether its content is another one with each batch, so that it can't stay in RAM from one step to the next.
    result
        Whether it has to be in RAM when the step ends, though an operator computed it: somebody reads it then.
    updated_by
        Index of the operator that reads it and writes it anew, over itself; -1 for none. Nothing reads it afterwards.
    zero_first
        Whether it is zero as the first part of a batch begins, whoever runs it: nothing of it is read from storage
        there, and `transfers` have the reads of the other parts alone.
    """

    name: str
    nbytes: int
    producer: int
    transfers: Transfers = field(default_factory=Transfers)
    home: Home = None  # type: ignore[assignment]  # what the producer says, below
    carried: bool = False
    result: bool = False
    updated_by: int = -1
    backed: bool = False
    of_batch: bool = False
    zero_first: bool = False

    def __post_init__(self) -> None:
        if self.home is None:
            object.__setattr__(self, "home", Home.NOWHERE if self.computed else Home.RAM)

    @property
    def computed(self) -> bool:
        """Says whether an operator writes it first; otherwise it has a home."""
        return self.producer >= 0

    @property
    def stored(self) -> bool:
        """Says whether storage holds a copy when the step begins."""
        return self.home is Home.STORAGE or self.backed

    @property
    def may_stay(self) -> bool:
        """Says whether it may stay in RAM from one step to the next, though its home is storage."""
        return self.home is Home.STORAGE and self.carried and not self.of_batch

    @property
    def updated(self) -> bool:
        """Says whether an operator writes it anew over itself."""
        return self.updated_by >= 0

    @property
    def first_stage(self) -> int:
        """The first stage that it exists in: its producer's, or the step's first."""
        return max(self.producer, 0)

    def moved_for(self, **figures: float) -> ProblemTensor:
        """The same tensor with other figures in its transfers, by their names."""
        return replace(self, transfers=replace(self.transfers, **figures))

    @property
    def page_in_s(self) -> float:
        """Seconds of reading all of it from storage."""
        return self.transfers.page_in_s

    @property
    def page_in_j(self) -> float:
        """Joules of reading all of it from storage."""
        return self.transfers.page_in_j

    @property
    def page_out_s(self) -> float:
        """Seconds of writing all of it to storage."""
        return self.transfers.page_out_s

    @property
    def page_out_j(self) -> float:
        """Joules of writing all of it to storage."""
        return self.transfers.page_out_j


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
        """Says whether anything goes to storage or comes from there while it runs."""
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
