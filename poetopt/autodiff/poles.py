"""Operators whose derivative may be infinite at finite operands: what flows back through them may be inf."""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.behind import Behind
from poetopt.autodiff.ranges import bounds
from poetopt.graph import Node

_AT_ZERO = {"Div": 1, "Log": 0, "Pow": 0, "Reciprocal": 0, "ReduceLogSum": 0, "Sqrt": 0}
"""Ops with a pole where the operand at this position is 0."""
_ELSEWHERE = frozenset({"Acos", "Acosh", "Asin", "Atanh"})


def has_pole(node: Node, behind: Behind) -> bool:
    """Whether a derivative of `node` may be infinite, as far as the ranges of its operands tell."""
    place = _AT_ZERO.get(node.op_type)
    if place is None or node.domain not in {"", "ai.onnx"}:
        return node.op_type in _ELSEWHERE
    if node.op_type == "Pow":
        exponent = behind.constant(node.inputs[1])
        if exponent is not None and bool(np.all(np.asarray(exponent, np.float64) >= 1)):
            return False
    stored = behind.constant(node.inputs[place])
    low, high = bounds(node.inputs[place], behind)
    return low <= 0 <= high and (stored is None or not np.all(stored))
