"""What an operator does: floating-point operations, and bytes moved, node by node.

Bytes moved are all that a node reads and writes once: a cache's view of perfect reuse. An op that picks some of
its input (`PICKS`) reads as much as it writes. Views move nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.graph import Node, Operator, Tensor, inner_storage
from poetopt.operators.flops import node_flops
from poetopt.operators.nodes import find, is_inner_view

PICKS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Compress"})
"""Ops that read only what they deliver of their first input."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one ONNX node does: floating-point operations, and bytes read and written."""

    flops: int
    nbytes: int


def work(operator: Operator, tensors: Mapping[str, Tensor]) -> tuple[Work, ...]:
    """FLOPs and bytes moved of each node of an operator, in order; a view costs nothing.

    tensors
        All tensors of the graph by name, the temporaries of the operator among them.

    Raises `ModelError` where a node names a tensor that `tensors` lacks.
    """
    if operator.view:
        return tuple(Work(0, 0) for _ in operator.nodes)
    group = inner_storage(operator)
    return tuple(_node_work(operator, node, group, tensors) for node in operator.nodes)


def flops(operator: Operator, tensors: Mapping[str, Tensor]) -> int:
    """FLOPs of an operator: the sum over its nodes."""
    return sum(node.flops for node in work(operator, tensors))


def _node_work(operator: Operator, node: Node, group: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Work:
    inputs = [find(operator, node, name, tensors) if name else None for name in node.inputs]
    outputs = [find(operator, node, name, tensors) for name in node.outputs if name]
    if is_inner_view(node, group):
        return Work(0, 0)
    read = [tensor.nbytes if tensor else 0 for tensor in inputs]
    written = sum(tensor.nbytes for tensor in outputs)
    if node.op_type in PICKS and not node.domain and read:
        read[0] = min(read[0], written)
    elif node.op_type in ("Shape", "Size"):
        read = []
    shapes = [tensor.shape if tensor else () for tensor in inputs]
    return Work(node_flops(node, shapes, [tensor.shape for tensor in outputs]), sum(read) + written)
