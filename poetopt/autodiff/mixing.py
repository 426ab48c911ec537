"""Sums that an op makes of its operands' elements: those with fixed weights of one sign, and those that are layers.

A layer's results may be anything, whatever it reads; an average of probabilities is still one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from poetopt.autodiff.behind import Behind
from poetopt.autodiff.normalizers import reciprocal_of
from poetopt.autodiff.ranges import bounds
from poetopt.graph import VIEW_OPS, Node, Role

CONTRACTIONS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
"""Ops that sum products of their operands' elements."""
_BIASED = CONTRACTIONS - {"Einsum", "MatMul"}
_TOTALS = frozenset({"ReduceL1", "ReduceMean", "ReduceSum", "GlobalAveragePool"}) | CONTRACTIONS
_AROUND = VIEW_OPS | {"Add", "Cast", "Clip", "Div", "Expand", "Max", "Mul", "Pow", "Reciprocal", "Tile", "Transpose"}
"""Ops between a sum and what is divided by it."""


def factors(node: Node) -> list[str]:
    """What a contraction multiplies, without its bias."""
    return [name for name in (node.inputs[:2] if node.op_type in _BIASED else node.inputs) if name]


def weighs(name: str, behind: Behind) -> bool:
    """Whether `name` is stored and no layer's weight: fixed and nowhere negative, or a table of zeros and ones."""
    if behind.node(name) is not None or (array := behind.values.get(name)) is None or not array.size:
        return False
    if behind.tensors[name].role is Role.PARAMETER:
        if array.flat[0] not in (0, 1):  # a fill of gigabytes takes no memory
            return False
        return bool(np.all((array == 0) | (array == 1)) and np.any(array) and not np.all(array))
    return _unsigned(name, behind)


def _unsigned(name: str, behind: Behind) -> bool:
    """Whether `name` is stored, and nowhere negative."""
    array = behind.values.get(name)
    return array is not None and array.size > 0 and array.dtype.kind in "fiu" and float(np.min(array)) >= 0


def weighed_sum(node: Node, behind: Behind) -> bool:
    """Whether `node` sums products with a trained tensor: a dense layer in two ops."""
    name = node.inputs[0]
    while (writer := behind.node(name)) is not None and writer.op_type in VIEW_OPS:
        name = writer.inputs[0]
    if writer is None or writer.op_type != "Mul":
        return False
    trained = [n for n in writer.inputs if behind.tensors[n].role is Role.PARAMETER and behind.tensors[n].size > 1]
    return any(not weighs(n, behind) for n in trained)


def over_own_total(node: Node, behind: Behind) -> bool:
    """Whether `node` divides what isn't negative by a sum, mean or weighted sum of itself and nothing else."""
    if node.op_type == "Div":
        pairs: Iterable[tuple[str, str]] = [(node.inputs[0], node.inputs[1])]
    elif node.op_type == "Mul":
        sides = (node.inputs, node.inputs[::-1])
        pairs = [(part, below) for part, other in sides if (below := reciprocal_of(other, behind))]
    else:
        return False
    return any(_totals(total, part, behind) and bounds(part, behind)[0] >= 0 for part, total in pairs)


def _totals(total: str, part: str, behind: Behind) -> bool:
    summed = False
    while total != part or not summed:
        node = behind.node(total)
        if node is None or node.op_type not in _TOTALS | _AROUND:
            return False
        operands = behind.operands(node)
        rest = [name for name in factors(node) if behind.node(name) is None] if node.op_type in CONTRACTIONS else []
        operands = [name for name in operands if name not in behind.values]
        if len(operands) != 1 or any(not _unsigned(name, behind) for name in rest):
            return False
        if node.op_type == "Pow" and not behind.near(node.inputs[1], -1.0):
            return False
        summed = summed or node.op_type in _TOTALS
        total = operands[0]
    return True
