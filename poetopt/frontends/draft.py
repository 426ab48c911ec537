"""A graph on its way from a file: nodes with static types, the constants known so far, and what folding may cost.

The budget is in bytes and work of one node, and of all of a file, told before anything is computed: a file of a
kilobyte can ask for a constant of a gigabyte, or for a pooling that takes minutes. What is over it stays an operator,
which is scheduled like any other. Weights that the file stores raise the budget in proportion: transposing or
dequantizing them is what folding is for.
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
"""That many bytes one node may write, and all together may hold at once."""
NODE_WORK, TOTAL_WORK = 2**28, 2**31
"""Elements that are read, written or multiplied: a thousand million take about a second."""
PER_BYTE_READ = 4
"""So many bytes more a node may write for each that it reads, and all for each that the file stores: a byte becomes a
float. Work is allowed four times that."""


def work(node: NodeProto, read: Sequence[tuple[int, ...]], written: Sequence[tuple[int, ...]]) -> int | None:
    """Elements that are read, written or computed with, at most; None where that can't be told.

    read, written
        Shapes of the inputs and outputs that the node has.
    """
    kind = op_of(node.op_type).steps
    if kind is Steps.UNKNOWN:
        return None
    plain = sum(map(math.prod, read)) + sum(map(math.prod, written))
    if kind is Steps.PLAIN:
        return plain
    if kind is Steps.COUNTED:
        try:
            return plain + node_flops(from_node_proto(node), read, written)
        except (ValueError, LookupError):
            return None
    if node.op_type == "DFT":
        return plain * max((max(shape, default=1) for shape in (*read, *written)), default=1)
    if node.op_type == "RoiAlign":
        ratio = attribute_int(node, "sampling_ratio", 0)
        # steps of one sample between four neighbours
        return plain * ratio**2 * 16 if ratio > 0 else None
    # steps an element of what is neither plain nor counted: interpolation, sorting, scattering
    return plain * 64


def most_elements(node: NodeProto, read: Sequence[Array]) -> int | None:
    """The most elements of each output whose shape depends on values; None where that can't be told."""
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
    """Holds what is left of it. `stored_bytes` is what the file stores."""

    stored_bytes: int = 0
    held_bytes: int = 0
    spent: int = 0

    def excess(self, nbytes: int, read_bytes: int, steps: int | None) -> str:
        """Says why a node can't be folded, in a few words; empty where it can."""
        if steps is None:
            return "its work can't be told"
        one, all_ = NODE_BYTES + PER_BYTE_READ * read_bytes, TOTAL_BYTES + PER_BYTE_READ * self.stored_bytes
        if nbytes > one:
            return f"it would write {show_bytes(nbytes)}, and {show_bytes(one)} are allowed"
        if self.held_bytes + nbytes > all_:
            return f"constants would take more than {show_bytes(all_)}"
        if steps > NODE_WORK + 4 * PER_BYTE_READ * read_bytes:
            return f"it would take {steps:.1e} steps, and {NODE_WORK:.1e} are allowed"
        if self.spent + steps > TOTAL_WORK + 4 * PER_BYTE_READ * self.stored_bytes:
            return f"constants would take more than {TOTAL_WORK:.1e} steps"
        return ""

    def take(self, nbytes: int, steps: int) -> None:
        """Count a node that is folded."""
        self.held_bytes += nbytes
        # work of beginning a node at all
        self.spent += steps + 2**12

    def give_back(self, nbytes: int) -> None:
        """Count a constant that nothing reads any more."""
        self.held_bytes -= nbytes


def released(left: dict[str, int], node: NodeProto, kept: Collection[str]) -> list[str]:
    """The operands of `node` that no later node reads: `left` counts readers, and is counted down."""
    gone = []
    for name, times in Counter(filter(None, node.input)).items():
        left[name] = left.get(name, 0) - times
        if left[name] <= 0 and name not in kept:
            gone.append(name)
    return gone


def readers(nodes: Sequence[NodeProto]) -> dict[str, int]:
    """Says how often each tensor is read."""
    found: dict[str, int] = {}
    for node in nodes:
        for name in filter(None, node.input):
            found[name] = found.get(name, 0) + 1
    return found


Type = tuple[int, Shape]
"""ONNX element type and static shape."""


@dataclass(frozen=True)
class Rebatch:
    """Baked-in shapes to rewrite for another batch: types of all tensors before, old batch, new batch."""

    before: Mapping[str, Type]
    old: int
    new: int


@dataclass
class Draft:
    """A graph on its way: nodes with static types, constants evaluated.

    nodes
        In topological order, folded ones left out, Dropout in evaluation mode turned into Identity.
    types
        Of every tensor, folded ones included.
    constants
        Untrained weights and folded tensors.
    folded
        How many nodes were folded.
    gone
        Constants that were folded into others, and are kept no longer.
    unfolded
        What is constant but over the budget of folding, or depends on that, and why.
    repeated
        First states of recurrent layers that were for another batch, and the batch that they are repeated for.
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
        """Says where `node` is, as messages say it."""
        return describe(self.where, node, self.opset)

    def put(self, name: str, array: Array) -> None:
        """Have `array`, read-only from here on, as the constant `name`."""
        array.setflags(write=False)
        self.constants[name] = array
        self.types[name] = (elem_type(array.dtype.name), array.shape)

    def put_beside(self, name: str, array: Array) -> str:
        """Have `array` as a constant of a name that nothing has: `name`, or with underscores behind it."""
        while name in self.types:
            name += "_"
        self.put(name, array)
        return name
