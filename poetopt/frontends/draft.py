"""A graph on its way from a file: nodes with static types, and the constants known so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnx import NodeProto

from poetopt.frontends.budget import Budget
from poetopt.frontends.proto import elem_type
from poetopt.frontends.sizes import Shape
from poetopt.frontends.structure import describe

if TYPE_CHECKING:
    from poetopt.graph import Array

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
    budget: Budget = field(default_factory=Budget)
    removed_dropouts: int = 0
    repeated: dict[str, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def at(self, node: NodeProto) -> str:
        """Where `node` is, as messages say it."""
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
