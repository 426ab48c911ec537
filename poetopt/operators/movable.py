"""Which operands of an operator may be on storage while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from poetopt.graph import Operator, TrainingGraph

if TYPE_CHECKING:
    from poetopt.graph import Array


def movable(operator: Operator, graph: TrainingGraph, scheduled: Container[str]) -> list[str]:
    """Inputs and outputs whose storage (root) is one of `scheduled`, and no other operand's; tables by rows are none.

    What is updated is there once, under its old name.
    """
    return [name for name in _once(operator, graph, scheduled) if graph.root(name) not in graph.rows]


def listed(operator: Operator, graph: TrainingGraph, scheduled: Container[str]) -> list[str]:
    """The same of tables by rows alone."""
    return [name for name in _once(operator, graph, scheduled) if graph.root(name) in graph.rows]


def streamable(
    operator: Operator, graph: TrainingGraph, scheduled: Container[str], constants: Mapping[str, Array]
) -> dict[str, Any]:
    """What `Runtime.variants` is told of an operator that may stream. It hears of `listed` where there are such."""
    rows = listed(operator, graph, scheduled)
    given: dict[str, Any] = {"movable": movable(operator, graph, scheduled), "values": constants}
    return given | ({"listed": rows} if rows else {})


def _once(operator: Operator, graph: TrainingGraph, scheduled: Container[str]) -> list[str]:
    new = {new for _, new in operator.updates}
    names = [name for name in (*operator.inputs, *operator.outputs) if name not in new]
    operands = Counter(map(graph.root, names))
    return [name for name in names if operands[graph.root(name)] == 1 and graph.root(name) in scheduled]
