"""What says of an operator by which ways it can stream, whatever its tensors are called: layers repeat in a network."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from poetopt.graph import Node, Operator, Tensor

if TYPE_CHECKING:
    from poetopt.graph import Array

LARGEST = 4096
"""Bytes of a constant that kernels may look at: axes, shapes, pads."""


def names_of(operator: Operator) -> tuple[str, ...]:
    """All tensors of an operator, each once, in the order in which it names them."""
    found = dict.fromkeys((*operator.inputs, *operator.outputs, *(n for pair in operator.updates for n in pair)))
    for node in (*operator.nodes, *(whole.node for whole in operator.whole)):
        found.update(dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name))
    return tuple(found)


def outline(
    operator: Operator, tensors: Mapping[str, Tensor], values: Mapping[str, Array] | None, *marked: Collection[str]
) -> Hashable:
    """Equal for operators that are alike but for names, with the same of these in each of `marked`."""
    names = names_of(operator)
    place = {name: k for k, name in enumerate(names)}

    def places(of: Collection[str]) -> Hashable:
        return tuple(place[name] if name else -1 for name in of)

    def node_outline(node: Node) -> Hashable:
        attributes = tuple((name, _frozen(value)) for name, value in sorted(node.attributes.items()))
        return node.domain, node.op_type, places(node.inputs), places(node.outputs), attributes

    def tensor_outline(name: str) -> Hashable:
        tensor = tensors.get(name)
        value = (values or {}).get(name)
        known = None if value is None or value.nbytes > LARGEST else _frozen(value)
        shape = None if tensor is None else (tensor.shape, tensor.dtype, tensor.role)
        return shape, *(name in names for names in marked), value is None, known

    return (
        operator.view,
        operator.over in place,
        places(operator.inputs),
        places(operator.outputs),
        tuple(places(pair) for pair in operator.updates),
        tuple(map(node_outline, operator.nodes)),
        tuple((whole.first, whole.count, node_outline(whole.node)) for whole in operator.whole),
        tuple(map(tensor_outline, names)),
    )


def _frozen(value: object) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return value if isinstance(value, Hashable) else repr(value)
