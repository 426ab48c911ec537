"""What may happen to a tensor: where it begins, who writes it anew, what moving it costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from poetopt.graph.problem.home import Home


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
        """Whether an operator writes it first; otherwise it has a home."""
        return self.producer >= 0

    @property
    def stored(self) -> bool:
        """Whether storage holds a copy when the step begins."""
        return self.home is Home.STORAGE or self.backed

    @property
    def may_stay(self) -> bool:
        """Whether it may stay in RAM from one step to the next, though its home is storage."""
        return self.home is Home.STORAGE and self.carried and not self.of_batch

    @property
    def updated(self) -> bool:
        """Whether an operator writes it anew over itself."""
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
