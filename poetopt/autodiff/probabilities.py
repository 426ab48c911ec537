"""Outputs that are no logits though nobody can read logits behind them: of these, a Softmax would be a second one.

A Softmax (or what is divided by its own sum) that reaches the output through ops which keep elements apart, such as
Slice, Concat or a mean, and any output whose values lie between 0 and 1 whatever goes in.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from poetopt.autodiff.behind import Behind
from poetopt.autodiff.normalizers import normalizer, shares
from poetopt.autodiff.ranges import PARTS, bounds


class Values(StrEnum):
    """What an output holds, as far as the ops behind it tell."""

    SHARES = "shares"
    """Of a Softmax, or of what is divided by its sum."""
    SIGMOIDS = "sigmoids"
    """Of Sigmoids."""
    UNIT = "between 0 and 1"
    """By the range of the ops behind them."""
    MIXED = "mixed"
    """Some are probabilities, others aren't."""
    OTHER = "other"


_FIRST = PARTS | {"AveragePool", "Pad", "Pow", "ReduceL1", "ReduceSum", "Resize", "Round", "Sqrt", "Clip"}
"""Ops that pass on, or merge, elements of their first input alone."""
_SEVERAL = frozenset({"Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum", "Where"})
"""Ops of several operands, all of which have to be probabilities."""
_DEEPEST = 60


def values_of(name: str, behind: Behind) -> Values:
    """What `name` holds."""
    known: dict[str, Values] = {}

    def ask(name: str, left: int) -> Values:
        if name not in known:
            known[name] = Values.OTHER
            known[name] = _values(name, behind, lambda operand: ask(operand, left - 1)) if left else Values.OTHER
        return known[name]

    found = ask(name, _DEEPEST)
    if found is Values.OTHER:
        low, high = bounds(name, behind)
        return Values.UNIT if low >= 0.0 and high <= 1.0 else found
    return found


def _values(name: str, behind: Behind, ask: Callable[[str], Values]) -> Values:
    found, node = normalizer(name, behind), behind.node(name)
    if found is not None:
        return {"Softmax": Values.SHARES, "Sigmoid": Values.SIGMOIDS}.get(found.kind, Values.OTHER)
    if node is None:
        return Values.OTHER
    if shares(node, behind) is not None or (node.op_type == "LpNormalization" and node.attributes.get("p", 2) == 1):
        return Values.SHARES
    if node.op_type in _FIRST:
        return ask(node.inputs[0])
    read = node.inputs[1:] if node.op_type == "Where" else behind.operands(node)
    parts = {ask(operand) for operand in read if behind.constant(operand) is None}
    if node.op_type == "Concat":
        return parts.pop() if len(parts) == 1 else Values.MIXED if parts else Values.OTHER
    if node.op_type not in _SEVERAL or not parts or parts & {Values.OTHER, Values.MIXED}:
        return Values.OTHER
    return Values.SHARES if Values.SHARES in parts else Values.SIGMOIDS
