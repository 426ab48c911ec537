"""What a node inside an operator reads, writes and moves."""

from __future__ import annotations

from collections.abc import Mapping

from poetopt.errors import ModelError
from poetopt.graph import VIEW_OPS, Node, Operator, Tensor


def find(operator: Operator, node: Node, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """The tensor that a node names, or a `ModelError` that says which node of which operator does."""
    try:
        return tensors[name]
    except KeyError:
        raise ModelError(
            f"operator {operator.name!r}, node {node.name or node.op_type!r} ({node.op_type}): the tensor {name!r} is "
            "not in the graph; its shape must be known before it can be costed"
        ) from None


def is_inner_view(node: Node, group: Mapping[str, str]) -> bool:
    """Whether a node inside an operator moves no bytes, by the groups of `inner_storage`.

    Either what it writes is in a group, or what it writes names the group that what it reads is in.
    """
    if node.op_type not in VIEW_OPS or node.domain:
        return False
    written, source = node.outputs[0], node.inputs[0]
    return group.get(written, written) == group.get(source, source)
