"""The contract of a runtime: what it takes of RAM to run operators, and what its kernels may write over.

The planner asks a runtime for nothing else. Passes ask which operands are written over, the cost model for
workspaces and the reserve, a step for the places inside a workspace. A runtime answers from shapes alone: it runs
nothing, and its library need not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from poetopt.graph import Node, Operator, Tensor, TrainingGraph

Operands = Sequence[Tensor | None]
"""The inputs of a node in order, None for an absent one."""


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
class Variant:
    """One way in which a runtime can run an operator.

    name
        What reports call it.
    workspace
        What it takes of RAM beside what is in RAM while it runs.
    streamed_in, streamed_out
        Inputs and outputs of the operator that go between storage and kernel chunk by chunk, and are never whole in
        RAM.
    """

    name: str
    workspace: InnerLayout
    streamed_in: tuple[str, ...] = ()
    streamed_out: tuple[str, ...] = ()


class Runtime(Protocol):
    """What a runtime takes of RAM, and what its kernels may do."""

    @property
    def name(self) -> str:
        """What a device file calls it."""
        ...

    @property
    def version(self) -> str:
        """The version of the kernels that its answers are of."""
        ...

    @property
    def alignment(self) -> int:
        """Bytes that every buffer in the arena starts at a multiple of."""
        ...

    def in_place(self, node: Node) -> tuple[int, ...]:
        """Which inputs of `node` its kernel may write its output over, by position; empty where none.

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

    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        """Where the temporaries of an operator lie while it runs.

        tensors
            All tensors of the graph by name, the operator's temporaries among them.
        alignment
            Every offset is a multiple of it; the runtime's own by default.

        Where an operator runs node by node, this is `poetopt.runtimes.workspace.node_by_node`. Raises `ModelError`
        where a node names a tensor that `tensors` lacks.
        """
        ...

    def variants(
        self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None
    ) -> Sequence[Variant]:
        """The ways to run an operator; the first is plain: it streams nothing, and its workspace is `workspace`."""
        ...

    def reserve_bytes(self, kernels: int) -> int:
        """What is set aside beside the arena for the whole step where no kernel allocates more than `kernels`."""
        ...

    def notes(self, graph: TrainingGraph) -> tuple[str, ...]:
        """What it may have no kernels for, in words."""
        ...
