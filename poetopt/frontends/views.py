"""Tensors that hold a weight's numbers elsewhere, in another shape or of another type, before anything is folded."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto

from poetopt.frontends.read import Document

SAME_NUMBERS = frozenset({
    "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators whose output has no number that their first input lacks (a Concat: its inputs)."""

_MOST = 256
"""So many weights are followed into one tensor."""

Views = Mapping[str, tuple[str, ...]]
"""A tensor's name -> the weights whose numbers it holds."""


def views(document: Document) -> dict[str, tuple[str, ...]]:
    """What has numbers of weights alone. Rows that an index of the input's picks are no view: that is an embedding."""
    found: dict[str, tuple[str, ...]] = {}
    for node in document.proto.graph.node:
        if node.op_type not in SAME_NUMBERS:
            continue
        data = list(node.input) if node.op_type == "Concat" else list(node.input[:1])
        if node.op_type == "Gather" and node.input[1] not in document.weights:
            continue
        if all(name in document.weights or name in found for name in data):
            roots = tuple(dict.fromkeys(root for name in data for root in found.get(name, (name,))))
            if len(roots) <= _MOST:
                found.update((name, roots) for name in node.output if name)
    return found


def roots(document: Document, seen: Views, name: str) -> tuple[str, ...]:
    """The weights whose numbers `name` holds: itself, if it is one; none where it is computed of anything else."""
    return (name,) if name in document.weights else seen.get(name, ())


def reads(document: Document, seen: Views, node: NodeProto) -> list[tuple[int, str]]:
    """Place and name of each weight that `node` reads, directly or as a view."""
    return [(index, root) for index, name in enumerate(node.input) for root in roots(document, seen, name)]
