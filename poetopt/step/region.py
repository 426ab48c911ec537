"""The resident region of a step, in the memory of this machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from poetopt.graph import TrainingGraph
from poetopt.operators.resident import resident_storages
from poetopt.step.memory import Block, aligned_copy, pack_apart, writable_copy

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True)
class Region:
    """The resident region of a step.

    given
        Parameters and constants by name: what the step reads. Read-only, but for what it updates.
    written
        Gradients, statistics and the loss by name of their storage: what the step leaves behind.
    block
        The memory of `written`.
    first
        What the step updates in place, as it was before the first step.
    """

    given: Mapping[str, Array]
    written: Mapping[str, Array]
    block: Block
    first: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: TrainingGraph, scheduled: Collection[str] = ()) -> Region:
        """The region of `graph`; what is given is copied only where it isn't aligned.

        scheduled
            Names of the tensors that a plan schedules: they have no place here.
        """
        roots = [root for root in resident_storages(graph) if root not in scheduled]
        first = {name: aligned_copy(graph.values[name]) for name in graph.updaters if graph.root(name) in roots}
        given = {
            name: writable_copy(first[name]) if name in first else aligned_copy(graph.values[name])
            for name in roots
            if name in graph.values
        }
        written, block = pack_apart(graph.tensors[name] for name in roots if name not in given)
        return cls(given, written, block, first)

    @property
    def begun(self) -> Mapping[str, Array]:
        """What the first step reads, whatever steps have updated since. Read-only."""
        return {**self.given, **self.first}

    def reset(self) -> None:
        """Undo all updates in place."""
        for name, array in self.first.items():
            np.copyto(self.given[name], array)

    def address(self, root: str) -> int:
        """Where the storage `root` starts."""
        array = self.given[root] if root in self.given else self.written[root]
        return int(array.ctypes.data)

    def value(self, graph: TrainingGraph, name: str) -> Array:
        """A resident tensor that the step has written, a view of its storage, without a copy."""
        root = graph.root(name)
        return (self.written if root in self.written else self.given)[root].reshape(graph.tensors[name].shape)
