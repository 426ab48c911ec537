"""The contract of a runtime: the RAM that it needs to run operators, and the operands that its kernels may overwrite.

The planner asks a runtime for nothing else. Passes ask which operands may be overwritten. The cost model asks for
workspaces and the reserve. A training step asks for the offsets inside a workspace. A runtime answers from shapes
alone: it runs nothing, and its library need not be installed.
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
"""Roles of tensors that lie on storage at the beginning of a step, unless they stay in RAM."""


@dataclass(frozen=True, slots=True)
class InnerLayout:
    """Layout of an operator's workspace.

    Attributes
    ----------
    storage
        The tensor that names the storage of each tensor that shares another's. It is an output or an input of the
        operator if the group has one, else a temporary.
    offsets
        Offset of each temporary in the workspace. Temporaries that share storage share the offset; those that share an
        output's or an input's storage are left out.
    temporaries_bytes
        Size of the workspace in bytes: the end of the last temporary.
    kernel_bytes
        For each node, the most bytes that its kernel allocates beside the arena.
    kernel_offsets, total_bytes
        Offsets of the kernels' memory beside the temporaries alive, and the size of the workspace, if kernels allocated
        in the workspace too.
    kept_bytes
        Bytes that its kernels keep from step to step (a random generator's state): a part of the resident region.
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
    """One variant in which a runtime can run an operator.

    Attributes
    ----------
    name
        Its name in reports.
    workspace
        RAM that it needs beside the operands that are in RAM while it runs.
    streamed_in, streamed_out
        Inputs and outputs of the operator that move between storage and kernel chunk by chunk, and are never whole in
        RAM. A tensor that it updates is among the inputs: old chunks are read, and new ones written over them.
    reads, writes
        Transfers of one run: pairs of bytes and the number of transfers of that size.
    reads_of
        `reads` of each streamed input.
    detail
        Data for the runtime's own code generator.
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
        """Bytes that one run reads from storage."""
        return sum(nbytes * count for nbytes, count in self.reads)

    @property
    def written_bytes(self) -> int:
        """Bytes that one run writes to storage."""
        return sum(nbytes * count for nbytes, count in self.writes)


class NodeKernels(Protocol):
    """The kernels that run an operator node by node.

    Attributes
    ----------
    alignment
        Every buffer in the arena starts at a multiple of this number of bytes.
    """

    alignment: int

    def in_place(self, node: Node) -> tuple[int, ...]:
        """Return the positions of the inputs that the kernel of `node` may overwrite with its output; often none.

        Results must be the same bits as in a separate output. The caller compares sizes: only an input of the output's
        size is overwritten, and only if no later node reads it.
        """
        ...

    def kernel_bytes(self, node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
        """Return the most bytes that the kernel of one node allocates at once, beside the arena.

        Parameters
        ----------
        inputs, outputs
            The operands of the node, and the outputs that are present, in order.
        """
        ...


class Runtime(NodeKernels, Protocol):
    """The RAM that a runtime needs, and the operands that its kernels may overwrite.

    Attributes
    ----------
    name
        Its name in device files.
    rows_of_parts
        Whether the rows that all parts of a batch use are known before the first part.
    """

    name: str
    rows_of_parts: bool = True

    @property
    def version(self) -> str:
        """Version of the kernels that the answers describe."""
        ...

    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        """Return where the temporaries of an operator lie while it runs.

        If an operator runs node by node, this is `poetopt.ops.runtimes.workspace.node_by_node`.

        Parameters
        ----------
        tensors
            All tensors of the graph by name, with the operator's temporaries.
        alignment
            Every offset is a multiple of it; by default the runtime's own.

        Raises
        ------
        ModelError
            A node names a tensor that `tensors` lacks.
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
        """Yield the variants of an operator. The first is plain: it streams nothing; its workspace is `workspace`.

        The list is short, and the same for each storage with such blocks: a plan names a variant by its position.

        Parameters
        ----------
        movable
            Operands that may be on storage, by the operator's names; nothing else is streamed.
        listed
            Tables kept by rows that may be on storage, too. Their rows are scattered, so that each is one transfer.
        values
            Known constants by name.
        block_bytes
            Size of a block of the storage in bytes.
        """
        ...

    def reserve_bytes(self, kernels: int) -> int:
        """Return the bytes to reserve beside the arena for the step, if no kernel allocates more than `kernels`."""
        ...

    def notes(self, graph: TrainingGraph) -> tuple[str, ...]:
        """Return notes on parts of the network for which the runtime may lack kernels."""
        ...

    # The methods below have defaults for runtimes that keep no data of their own; subclasses inherit them.

    def block_bytes(self, unit: int) -> int:
        """Return the bytes that the runtime moves at once to and from a storage of blocks of `unit` bytes."""
        return 1

    def row_numbers_bytes(self, count: int) -> int:
        """Return the bytes kept of a table by rows, of which a batch uses at most `count`."""
        return 0

    def losses_bytes(self, graph: TrainingGraph) -> int:
        """Return the bytes kept for the losses of the parts of a batch that have run."""
        return 0


@runtime_checkable
class TakesOver(Protocol):
    """A runtime that can write an output over an input that no later operator reads."""

    def taking(
        self,
        operator: Operator,
        tensors: Mapping[str, Tensor],
        alignment: int | None = None,
        *,
        takes: tuple[str, str],
        values: Mapping[str, Array] | None = None,
    ) -> RuntimeVariant | None:
        """Return the variant of an operator that writes an output over an input; None if there is none.

        Parameters
        ----------
        takes
            Names of the input and the output, which have the same size. The input is gone afterwards. Results are the
            bits of the plain operator.
        values
            Known constants by name.
        """
        ...
