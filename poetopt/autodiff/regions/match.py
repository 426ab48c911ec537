"""Surroundings of a region in a graph, asked about as it is recognised, and a region found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from poetopt.graph import Graph, Node, Operator, Tensor

DOMAIN = "poetopt.region"
"""Of the ops that regions amount to; their rules are registered in it."""


@dataclass(frozen=True)
class CompositeRegion:
    """Operators that amount to one node.

    operators
        In the graph's order; the last one writes the result.
    meaning
        The node that they amount to.
    """

    operators: tuple[Operator, ...]
    meaning: Node

    @property
    def last(self) -> Operator:
        """The operator that writes the result."""
        return self.operators[-1]

    def operator(self) -> Operator:
        """All nodes as one operator; what the meaning doesn't name as an output is temporary."""
        nodes = tuple(node for operator in self.operators for node in operator.nodes)
        written = {name for node in nodes for name in node.outputs}
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in written)
        outputs = tuple(name for name in self.meaning.outputs if name)
        return Operator(
            self.last.name, self.meaning.op_type, nodes, tuple(read), outputs, meaning=self.meaning
        )  # fmt: skip


class Surroundings:
    """A graph, asked about the nodes around a tensor."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._trained = frozenset(graph.trained)
        self._outputs = frozenset(graph.outputs)

    @cached_property
    def places(self) -> dict[str, int]:
        """Says where each operator stands, by name."""
        return {operator.name: place for place, operator in enumerate(self.graph.operators)}

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name."""
        return self.graph.tensors[name]

    def writer(self, name: str, *kinds: str) -> Operator | None:
        """The operator of one ONNX node, of one of these kinds if any are given, that writes just this tensor."""
        operator = self.graph.producers.get(name)
        if operator is None or len(operator.nodes) != 1 or len(operator.outputs) != 1 or operator.nodes[0].domain:
            return None
        return operator if not kinds or operator.kind in kinds else None

    def scalar(self, name: str) -> float | None:
        """The value of a constant of one element that is not trained."""
        array = None if name in self._trained else self.graph.values.get(name)
        return float(np.asarray(array, np.float64).reshape(())) if array is not None and array.size == 1 else None

    def constant(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
        """The value of a constant that is not trained."""
        return None if name in self._trained else self.graph.values.get(name)

    def enclosed(self, members: list[Operator], result: str) -> tuple[Operator, ...] | None:
        """`members` in order, if nobody outside reads what they write but for `result`."""
        names = {member.name for member in members}
        for member in members:
            for output in member.outputs:
                if output == result:
                    continue
                if output in self._outputs or any(r.name not in names for r in self.graph.readers.get(output, ())):
                    return None
        return tuple(sorted({m.name: m for m in members}.values(), key=lambda m: self.places[m.name]))
