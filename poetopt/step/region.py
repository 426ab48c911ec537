"""The resident region of a step, in the memory of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.graph import TrainingGraph
from poetopt.operators.resident import resident_storages
from poetopt.step.memory import Block, aligned_copy, pack_apart

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True)
class Region:
    """The resident region of a step.

    given
        Parameters and constants by name: what the step reads. Read-only.
    written
        Gradients, statistics and the loss by name of their storage: what the step leaves behind.
    block
        The memory of `written`.
    """

    given: Mapping[str, Array]
    written: Mapping[str, Array]
    block: Block

    @classmethod
    def of(cls, graph: TrainingGraph) -> Region:
        """The region of `graph`; what is given is copied only where it isn't aligned."""
        roots = resident_storages(graph)
        given = {name: aligned_copy(graph.values[name]) for name in roots if name in graph.values}
        written, block = pack_apart(graph.tensors[name] for name in roots if name not in given)
        return cls(given, written, block)

    def address(self, root: str) -> int:
        """Where the storage `root` starts."""
        array = self.given[root] if root in self.given else self.written[root]
        return int(array.ctypes.data)

    def value(self, graph: TrainingGraph, name: str) -> Array:
        """A resident tensor that the step has written, a view of its storage, without a copy."""
        return self.written[graph.root(name)].reshape(graph.tensors[name].shape)
