"""Tensors and operators of a problem: their homes, their updates, and costs of moving and running them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class Home(StrEnum):
    """Place of a tensor when the step begins, before the first operator."""

    NOWHERE = "nowhere"
    """An operator computes it."""
    RAM = "ram"
    """It is in RAM."""
    STORAGE = "storage"
    """Storage has a copy, which can be read without a page-out."""
    FLASH = "flash"
    """It is in mapped flash: read in place, without RAM and at no cost, and never written."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Seconds and joules of reading a whole tensor from storage (in) and writing it to storage (out)."""

    page_in_s: float = 0.0
    page_in_j: float = 0.0
    page_out_s: float = 0.0
    page_out_j: float = 0.0


@dataclass(frozen=True, slots=True)
class ProblemTensor:
    """A tensor that a schedule may keep, free, page or recompute.

    Attributes
    ----------
    nbytes
        Size in bytes; may be 0.
    producer
        Index of the operator that writes it, or -1 if it exists when the step begins.
    transfers
        Seconds and joules of moving it; `tensor.page_in_s` and similar properties read them.
    home
        Place when the step begins. By default `nowhere` if an operator writes it, else `ram`.
    carried
        Whether it must be in its home again when the step ends, so that the step can be repeated.
    backed
        Whether a tensor in RAM also has a copy on storage when the step begins.
    of_batch
        Whether each batch replaces its content, so that it can't stay in RAM from one step to the next.
    result
        Whether a computed tensor must be in RAM when the step ends, because the caller reads it then.
    updated_by
        Index of the operator that updates it in place; -1 for none. Nothing reads it afterwards.
    zero_first
        Whether it is zero when the first part of a batch begins. That part doesn't read it from storage, so `transfers`
        contain only the reads of the other parts.
    """

    name: str
    nbytes: int
    producer: int
    transfers: Transfers = field(default_factory=Transfers)
    home: Home = None  # type: ignore[assignment]  # the producer decides, below
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
        """Return whether an operator writes it first; otherwise it has a home."""
        return self.producer >= 0

    @property
    def stored(self) -> bool:
        """Return whether storage has a copy when the step begins."""
        return self.home is Home.STORAGE or self.backed

    @property
    def may_stay(self) -> bool:
        """Return whether it may stay in RAM from one step to the next, although its home is storage."""
        return self.home is Home.STORAGE and self.carried and not self.of_batch

    @property
    def updated(self) -> bool:
        """Return whether an operator updates it in place."""
        return self.updated_by >= 0

    @property
    def first_stage(self) -> int:
        """First stage that it exists in: its producer's, or the first one."""
        return max(self.producer, 0)

    def moved_for(self, **figures: float) -> ProblemTensor:
        """Return the tensor with other figures in its transfers, by their names."""
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
    """One way to run an operator: some operands are streamed from or to storage in chunks, never whole in RAM.

    Attributes
    ----------
    streamed_in, streamed_out
        Indices of the operator's inputs and outputs that are streamed, ascending. A tensor that it updates is in both
        or in neither: its old chunks are read, and the new ones overwrite them.
    workspace_bytes
        Arena bytes while it runs, including chunks.
    time_s, energy_j
        Seconds and joules of one run, including transfers of chunks.
    read_bytes, written_bytes
        Bytes that one run reads from storage and writes to it.
    zero_first_bytes
        Bytes among those read that are zero in the first part of a batch, and not read there.
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
        """Return whether it transfers anything from or to storage while it runs."""
        return bool(self.streamed_in or self.streamed_out)


@dataclass(frozen=True, slots=True)
class ProblemOperator:
    """An operator; its index is its position in the fixed order, and its stage.

    Attributes
    ----------
    inputs, outputs
        Indices of the (non-resident) tensors that it reads and writes, ascending, without repetition. A tensor that it
        updates is an input whose `updated_by` is this operator.
    workspace_bytes
        Bytes in the arena only while it runs: its emitted temporaries.
    takes
        (input, output) if its output overwrites an input of the same size. No other operator reads that input, which no
        longer exists afterwards, and the operator runs once. Empty if it overwrites none; variants never do.
    recomputable
        Whether it may run more than once.
    count
        Number of the network's operators that it consists of: its length in a chain of recomputations.
    variants
        Ways to run it with streamed operands. The operator's own figures are those without streaming.
    updaters
        Indices of the operators that update tensors of the resident region that it reads, ascending: it may not run
        after any of them. (For scheduled tensors, `ProblemTensor.updated_by` has the operator.)
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
        """Return the variant that an `Instruction` numbers so; 0 runs without streaming."""
        return self.variants[number - 1] if number else self.plain

    def held(self, variant: int = 0) -> list[int]:
        """Return the operands and outputs with their own bytes in RAM: neither streamed nor overwritten."""
        chosen = self.variant(variant)
        excluded = {*chosen.streamed_in, *chosen.streamed_out, *(self.takes[:1] if not variant else ())}
        return [i for i in (*self.inputs, *self.outputs) if i not in excluded]

    @property
    def plain(self) -> Variant:
        """Variant with every operand whole in RAM."""
        return Variant(workspace_bytes=self.workspace_bytes, time_s=self.time_s, energy_j=self.energy_j)
