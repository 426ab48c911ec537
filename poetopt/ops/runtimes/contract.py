"""The contract of a runtime: what it takes of RAM to run operators, and what its kernels may write over.

The planner asks a runtime for nothing else. Passes ask which operands are written over, the cost model for
workspaces and the reserve, a step for the places inside a workspace. A runtime answers from shapes alone: it runs
nothing, and its library need not be installed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from poetopt.graph import Node, Operator, Role, Tensor, TrainingGraph

if TYPE_CHECKING:
    from poetopt.graph import Array

Operands = Sequence[Tensor | None]
"""The inputs of a node in order, None for an absent one."""
STORED = frozenset({Role.PARAMETER, Role.OPTIMIZER_STATE, Role.CONSTANT})
"""The roles of what begins on storage, where it isn't in RAM for good."""


@dataclass(frozen=True, slots=True)
class InnerLayout:
    """An operator's workspace in detail.

    storage
        Which tensor names the storage of each that shares another's. It maps a tensor to an output or an input of the
        operator where the group has one, else to a temporary.
    offsets
        Where each temporary starts in the workspace. Temporaries that share storage share the offset; those that
        share an output's or an input's storage are not here.
    temporaries_bytes
        Size of the workspace: the end of the last temporary.
    kernel_bytes
        For each node, the most that its kernel allocates beside the arena.
    kernel_offsets, total_bytes
        Were the kernels to allocate in the workspace too: where, beside the temporaries alive, and the end of it all.
    kept_bytes
        What its kernels keep from step to step (a random generator's state): a part of the resident region.
    """

    storage: Mapping[str, str]
    offsets: Mapping[str, int]
    temporaries_bytes: int
    kernel_bytes: tuple[int, ...]
    kernel_offsets: tuple[int, ...]
    total_bytes: int
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RuntimeVariant:
    """One way in which a runtime can run an operator.

    name
        What reports call it.
    workspace
        What it takes of RAM beside what is in RAM while it runs.
    streamed_in, streamed_out
        Inputs and outputs of the operator that go between storage and kernel chunk by chunk, and are never whole in
        RAM. What it updates is among the inputs: old chunks are read, and new ones written over them.
    reads, writes
        Transfers of one run: bytes, and how many there are of so many bytes.
    reads_of
        The same of `reads` for each streamed input by itself.
    detail
        What the runtime's own code generator writes it from.
    """

    name: str
    workspace: InnerLayout
    streamed_in: tuple[str, ...] = ()
    streamed_out: tuple[str, ...] = ()
    reads: tuple[tuple[int, int], ...] = ()
    writes: tuple[tuple[int, int], ...] = ()
    detail: object = field(default=None, compare=False, repr=False)
    reads_of: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def read_bytes(self) -> int:
        """All that one run reads from storage."""
        return sum(nbytes * count for nbytes, count in self.reads)

    @property
    def written_bytes(self) -> int:
        """All that one run writes there."""
        return sum(nbytes * count for nbytes, count in self.writes)


class NodeKernels(Protocol):
    """The kernels that run an operator node by node.

    alignment
        Bytes that every buffer in the arena starts at a multiple of.
    """

    alignment: int

    def in_place(self, node: Node) -> tuple[int, ...]:
        """Says which inputs of `node` its kernel may write its output over, by position; empty where none.

        Results must be the same bits as with an output of its own. Sizes are the caller's to compare: only an input of
        the output's size is written over, and only where nobody reads it afterwards.
        """
        ...

    def kernel_bytes(self, node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
        """Most bytes that the kernel of one node allocates at once, beside the arena.

        inputs, outputs
            What the node reads, and the outputs that it has, in order.
        """
        ...


class Runtime(NodeKernels, Protocol):
    """The RAM that a runtime takes, and what its kernels may do.

    name
        As device files call it.
    rows_of_parts
        Whether the rows that all parts of a batch use are known before the first one.
    """

    name: str
    rows_of_parts: bool = True

    @property
    def version(self) -> str:
        """The version of the kernels that its answers are of."""
        ...

    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        """Says where the temporaries of an operator lie while it runs.

        tensors
            All tensors of the graph by name, the operator's temporaries among them.
        alignment
            Every offset is a multiple of it; the runtime's own by default.

        Where an operator runs node by node, this is `poetopt.ops.runtimes.workspace.node_by_node`. Raises `ModelError`
        where a node names a tensor that `tensors` lacks.
        """
        ...

    def variants(
        self,
        operator: Operator,
        tensors: Mapping[str, Tensor],
        alignment: int | None = None,
        *,
        movable: Collection[str] = (),
        listed: Collection[str] = (),
        values: Mapping[str, Array] | None = None,
        block_bytes: int = 1,
    ) -> Iterable[RuntimeVariant]:
        """The ways to run an operator; the first is plain: it streams nothing, and its workspace is `workspace`.

        movable
            What may be on storage, by the operator's names: nothing else is streamed.
        listed
            Tables by rows, which may be, too; their rows lie here and there, and each is a transfer of its own.
        values
            Constants by name, where they are known.
        block_bytes
            Of the storage.

        A short list, and the same for each storage of such blocks: a plan names one by its place.
        """
        ...

    def reserve_bytes(self, kernels: int) -> int:
        """Gives what is set aside beside the arena for the whole step where no kernel allocates more than `kernels`."""
        ...

    def notes(self, graph: TrainingGraph) -> tuple[str, ...]:
        """Gives what it may have no kernels for, in words."""
        ...

    # What follows has an answer for runtimes that keep nothing of their own: a class of this one has it.

    def block_bytes(self, unit: int) -> int:
        """Bytes that it moves at once to and from a storage of blocks of `unit` bytes."""
        return 1

    def row_numbers_bytes(self, count: int) -> int:
        """Bytes kept of a table by rows, of which a batch uses `count` at most."""
        return 0

    def losses_bytes(self, graph: TrainingGraph) -> int:
        """Bytes kept of a batch in parts for the losses of those that have run."""
        return 0


@runtime_checkable
class TakesOver(Protocol):
    """A runtime that can write an output over an input that nobody reads afterwards."""

    def taking(
        self,
        operator: Operator,
        tensors: Mapping[str, Tensor],
        alignment: int | None = None,
        *,
        takes: tuple[str, str],
        values: Mapping[str, Array] | None = None,
    ) -> RuntimeVariant | None:
        """The operator with an output over an input of the same size (`takes`: both by name); None where it can't.

        The input is gone then, and results are the bits of the plain operator. `values` are constants by name.
        """
        ...
