"""Masks of attention that a file stores beside its weights: PyTorch's older exporter doesn't tell them from parameters.

Such a tensor (the shifted windows of a Swin, the causal mask of a Transformer) is added to what a Softmax reads, and
has only zeros and numbers so low that the exponential of them is lost beside 1. No learned bias has only those: what
training moves is neither exactly zero nor so far off everywhere else, and fresh biases are small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poetopt.frontends.operands import FLOATS
from poetopt.frontends.read import Document, array_of
from poetopt.frontends.views import SAME_NUMBERS

_LOST = -16.64
"""Below it, exp is less than half of float32's rounding of 1 (2^-24)."""


def additive_masks(document: Document) -> tuple[str, ...]:
    """Names of the weights that nothing reads but sums before a Softmax, and whose values are those of a mask."""
    nodes = document.proto.graph.node
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    readers: dict[str, set[int]] = {}
    for index, node in enumerate(nodes):
        for name in node.input:
            readers.setdefault(name, set()).add(index)
    todo = [node.input[0] for node in nodes if node.op_type in ("Softmax", "LogSoftmax") and node.input]
    before: set[int] = set()
    reached: dict[str, None] = {}
    while todo:
        name = todo.pop()
        if name in document.weights:
            reached[name] = None
            continue
        index = producer.get(name, -1)
        if index < 0 or index in before:
            continue
        node = nodes[index]
        if node.op_type in ("Add", "Sum", "Concat"):
            todo.extend(node.input)
        elif node.op_type in SAME_NUMBERS:
            todo.append(node.input[0])
        else:
            continue
        before.add(index)
    return tuple(name for name in reached if readers[name] <= before and _is_mask(document, name))


def note(masks: Sequence[str]) -> list[str]:
    """What to say of masks that are not trained."""
    if not masks:
        return []
    shown = ", ".join(masks[:3]) + (", ..." if len(masks) > 3 else "")
    return [f"masks added before a Softmax are data ({shown}); --train names them where they are parameters"]


def _is_mask(document: Document, name: str) -> bool:
    if document.weights[name].data_type not in FLOATS or name in document.fills:
        return False
    array = np.asarray(array_of(document, name), np.float64)
    low = array < _LOST
    return bool(low.any()) and bool(((array == 0) | low).all()) and not bool(low.all())
