"""Graphs of operators and tensors, scheduling problems made from them, and arena layouts of their buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.graph.graph import (
    DTYPE_BYTES,
    FORWARD_ONLY,
    OWN_DOMAIN,
    PACKED,
    TOGETHER,
    VIEW_OPS,
    Graph,
    LabelRule,
    Node,
    Operator,
    Residence,
    Role,
    TableRows,
    Tensor,
    TrainingGraph,
    Whole,
    bytes_of_elements,
    inner_storage,
    residence,
)

__all__ = [
    "DTYPE_BYTES",
    "FORWARD_ONLY",
    "OWN_DOMAIN",
    "PACKED",
    "TOGETHER",
    "VIEW_OPS",
    "Graph",
    "LabelRule",
    "Node",
    "Operator",
    "Residence",
    "Role",
    "TableRows",
    "Tensor",
    "TrainingGraph",
    "Whole",
    "bytes_of_elements",
    "inner_storage",
    "residence",
]

if TYPE_CHECKING:
    from poetopt.graph.graph import Array as Array
