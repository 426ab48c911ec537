"""The values of a graph that no training changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from poetopt.graph import Role, TrainingGraph

if TYPE_CHECKING:
    from poetopt.graph import Array


def constants_of(graph: TrainingGraph) -> Mapping[str, Array]:
    """Constants by name: what kernels may have written into their code."""
    states = set(graph.states)
    return {
        name: value
        for name, value in graph.values.items()
        if graph.tensors[name].role is Role.CONSTANT and name not in states
    }
