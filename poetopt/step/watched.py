"""Tensors that a step computes on its way, copied out before the plan gives their bytes to others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from poetopt.closest import closest
from poetopt.errors import ModelError
from poetopt.graph import VIEW_OPS, Node, TrainingGraph
from poetopt.step.memory import numpy_dtype

if TYPE_CHECKING:
    from poetopt.graph import Array


class Watched:
    """Room of their own for tensors of a step, beside the arena.

    copies
        By name: what the last step computed.

    Raises `ModelError` for a tensor that no kernel of the step computes.
    """

    def __init__(self, graph: TrainingGraph, names: Collection[str] = ()) -> None:
        nodes = {name: node for operator in graph.operators for node in operator.nodes for name in node.outputs}
        self.copies: dict[str, Array] = {}
        self._of: dict[str, list[str]] = {}
        for name in names:
            made = _computed(nodes, name)
            if made not in nodes:
                raise ModelError(
                    f"the step of {graph.name!r} computes no tensor {name!r}{closest(name, nodes)}; "
                    f"its outputs are {', '.join(map(repr, graph.outputs))}"
                )
            tensor = graph.tensors[name]
            self.copies[name] = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
            self._of.setdefault(made, []).append(name)

    def of(self, node: Node) -> tuple[tuple[str, Array], ...]:
        """What is to be copied once `node` has run: the tensor that it wrote, and where to."""
        return tuple((made, self.copies[name]) for made in node.outputs for name in self._of.get(made, ()))


def _computed(nodes: Mapping[str, Node], name: str) -> str:
    """The tensor whose bytes `name` has, as a kernel writes them: views move none."""
    while name in nodes and nodes[name].op_type in VIEW_OPS and not nodes[name].domain:
        name = nodes[name].inputs[0]
    return name
