"""A graph while it is read from a file: nodes with static types, known constants, and the budget of constant folding.

The budget limits bytes and work of one node and of a whole file, and is checked before anything is computed: a file of
a kilobyte can ask for a constant of a gigabyte, or for a pooling that takes minutes. A node over the budget stays an
operator, which is scheduled like any other. Weights that the file stores raise the budget in proportion, because
transposing or dequantizing them is the purpose of folding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnx import NodeProto

from poetopt.frontends.proto import attribute_int, elem_type, from_node_proto
from poetopt.frontends.sizes import Shape
from poetopt.frontends.structure import describe
from poetopt.ops.flops import node_flops
from poetopt.ops.op import Steps, op_of
from poetopt.util.units import show_bytes

if TYPE_CHECKING:
    from poetopt.graph import Array


NODE_BYTES, TOTAL_BYTES = 2**26, 2**28
"""Bytes that one node may write, and that all constants together may hold at once."""
NODE_WORK, TOTAL_WORK = 2**28, 2**31
"""Elements that one node, and all nodes, may read, write or multiply: 10^9 take about a second."""
PER_BYTE_READ = 4
"""Additional bytes that a node may write for each byte that it reads, and all nodes for each byte that the file stores:
a byte becomes a float. The limit of work is four times that."""


def work(node: NodeProto, read: Sequence[tuple[int, ...]], written: Sequence[tuple[int, ...]]) -> int | None:
    """Return the number of elements that a node reads, writes or computes with, at most; None if unknown.

    Parameters
    ----------
    read, written
        Shapes of the inputs and outputs that the node has.
    """
    kind = op_of(node.op_type).steps
    if kind is Steps.UNKNOWN:
        return None
    elements = sum(map(math.prod, read)) + sum(map(math.prod, written))
    if kind is Steps.PLAIN:
        return elements
    if kind is Steps.COUNTED:
        try:
            return elements + node_flops(from_node_proto(node), read, written)
        except (ValueError, LookupError):
            return None
    if node.op_type == "DFT":
        return elements * max((max(shape, default=1) for shape in (*read, *written)), default=1)
    if node.op_type == "RoiAlign":
        ratio = attribute_int(node, "sampling_ratio", 0)
        # steps of one sample between four neighbours
        return elements * ratio**2 * 16 if ratio > 0 else None
    # steps per element of the remaining operators: interpolation, sorting, scattering
    return elements * 64


def most_elements(node: NodeProto, read: Sequence[Array]) -> int | None:
    """Return the largest number of elements of each output whose shape depends on values; None if unknown."""
    if not read:
        return None
    match node.op_type:
        case "NonZero":
            return read[0].ndim * read[0].size
        case "Compress" | "Unique":
            return read[0].size
    return None


@dataclass
class FoldingBudget:
    """Bytes and work that constant folding has used; `stored_bytes` are the bytes of weights in the file."""

    stored_bytes: int = 0
    held_bytes: int = 0
    spent: int = 0

    def excess(self, nbytes: int, read_bytes: int, steps: int | None) -> str:
        """Return the reason, in a few words, why a node is over the budget; empty if it isn't."""
        if steps is None:
            return "its work is unknown"
        limit, total = NODE_BYTES + PER_BYTE_READ * read_bytes, TOTAL_BYTES + PER_BYTE_READ * self.stored_bytes
        if nbytes > limit:
            return f"it would write {show_bytes(nbytes)}, and the limit is {show_bytes(limit)}"
        if self.held_bytes + nbytes > total:
            return f"constants would take more than {show_bytes(total)}"
        if steps > NODE_WORK + 4 * PER_BYTE_READ * read_bytes:
            return f"it would take {steps:.1e} steps, and the limit is {NODE_WORK:.1e}"
        if self.spent + steps > TOTAL_WORK + 4 * PER_BYTE_READ * self.stored_bytes:
            return f"constants would take more than {TOTAL_WORK:.1e} steps"
        return ""

    def take(self, nbytes: int, steps: int) -> None:
        """Charge the budget for a node that is folded."""
        self.held_bytes += nbytes
        # fixed work of each node
        self.spent += steps + 2**12

    def give_back(self, nbytes: int) -> None:
        """Release the bytes of a constant that no node reads any more."""
        self.held_bytes -= nbytes


def released(left: dict[str, int], node: NodeProto, kept: Collection[str]) -> list[str]:
    """Return the operands of `node` that no later node reads, and reduce the counts of readers in `left`."""
    released_names = []
    for name, reads in Counter(filter(None, node.input)).items():
        left[name] = left.get(name, 0) - reads
        if left[name] <= 0 and name not in kept:
            released_names.append(name)
    return released_names


def readers(nodes: Sequence[NodeProto]) -> dict[str, int]:
    """Return the number of reads of each tensor."""
    counts: dict[str, int] = {}
    for node in nodes:
        for name in filter(None, node.input):
            counts[name] = counts.get(name, 0) + 1
    return counts


Type = tuple[int, Shape]
"""ONNX element type and static shape."""


@dataclass(frozen=True)
class Rebatch:
    """A change of batch that stored shapes must follow: previous types of all tensors, old batch, new batch."""

    before: Mapping[str, Type]
    old: int
    new: int


@dataclass
class Draft:
    """A graph while it is read: nodes with static types, and evaluated constants.

    Attributes
    ----------
    nodes
        Nodes that aren't folded, in topological order; Dropout in evaluation mode is an Identity.
    types
        Types of all tensors, folded ones included.
    constants
        Untrained weights and folded tensors.
    folded
        Number of folded nodes.
    gone
        Constants that were folded into others and dropped.
    unfolded
        Constant tensors over the folding budget, and those that depend on them, with the reason.
    repeated
        Initial states of recurrent layers that were for another batch, and the batch that they are repeated for.
    unread
        Outputs of the graph that can't be imported, and why.
    """

    where: str
    opset: int
    nodes: list[NodeProto] = field(default_factory=list)
    types: dict[str, Type] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    folded: int = 0
    gone: set[str] = field(default_factory=set)
    unfolded: dict[str, str] = field(default_factory=dict)
    budget: FoldingBudget = field(default_factory=FoldingBudget)
    removed_dropouts: int = 0
    repeated: dict[str, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def at(self, node: NodeProto) -> str:
        """Return the location of `node` for messages."""
        return describe(self.where, node, self.opset)

    def put(self, name: str, array: Array) -> None:
        """Add `array` as the constant `name`, and make it read-only."""
        array.setflags(write=False)
        self.constants[name] = array
        self.types[name] = (elem_type(array.dtype.name), array.shape)

    def put_beside(self, name: str, array: Array) -> str:
        """Add `array` as a constant under a free name, `name` or that with underscores; return the name."""
        while name in self.types:
            name += "_"
        self.put(name, array)
        return name
