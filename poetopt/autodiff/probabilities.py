"""Outputs that are no logits though nobody can read logits behind them: of these, a Softmax would be a second one.

Going back from the output, a Softmax, a Sigmoid or what is divided by its own sum is met on every way before a layer:
before an op that sums with trained weights, or with fixed ones of both signs. Scales, shifts, normalizations, orders,
averages and sums with fixed weights, and roundings to a grid make no logits of probabilities. Nor is an output made of
logits whose values lie between 0 and 1 whatever goes in, or which is minus the logarithm of a probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np

from poetopt.autodiff.behind import Behind, going_back
from poetopt.autodiff.mixing import CONTRACTIONS, factors, over_own_total, weighed_sum, weighs
from poetopt.autodiff.normalizers import normalizer, shares
from poetopt.autodiff.ranges import PARTS, bounds
from poetopt.autodiff.registry import is_float
from poetopt.graph import Node, Role


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
    LOGARITHMS = "logarithms"
    """Of probabilities: logits, which a Softmax leaves as they are where the probabilities sum to 1."""
    LOSSES = "losses"
    """Minus the logarithms of probabilities."""
    STORED = "stored"
    """What is made of parameters and constants alone."""
    OTHER = "other"


_FIRST = PARTS | {"AveragePool", "CumSum", "DepthToSpace", "DequantizeLinear", "Dropout", "GridSample", "Identity"}
_FIRST |= {"Pad", "QuantizeLinear", "ReduceL1", "ReduceSum", "Resize", "ReverseSequence", "SpaceToDepth", "Trilu"}
"""Ops that pass on, or merge with the same sign, elements of their first input alone."""
_BESIDE = frozenset({"Concat", "ScatterElements", "ScatterND"})
"""Ops whose results are elements of one operand or of another."""
_LINEAR = frozenset({"Add", "Div", "Max", "Mean", "Min", "Mul", "Neg", "Sub", "Sum", "Where"})
"""Ops that make logarithms of logarithms."""
_LAYERS = frozenset({"Attention", "DeformConv", "GRU", "LSTM", "RNN"})
_PROBABILITIES = (Values.SHARES, Values.SIGMOIDS, Values.UNIT)
_NEGATED = {Values.LOGARITHMS: Values.LOSSES, Values.LOSSES: Values.LOGARITHMS}
_DEEPEST = 60

Ask = Callable[[str], Values]


def values_of(name: str, behind: Behind) -> Values:
    """What `name` holds."""
    found = going_back(name, lambda n, ask: _values(n, behind, ask), Values.OTHER, _DEEPEST)
    if found in {*_PROBABILITIES, Values.MIXED, Values.LOSSES}:
        return found
    low, high = bounds(name, behind)
    return Values.UNIT if low >= 0.0 and high <= 1.0 else Values.OTHER


def _values(name: str, behind: Behind, ask: Ask) -> Values:
    found, node = normalizer(name, behind), behind.node(name)
    if found is not None:
        by_kind = {"Softmax": Values.SHARES, "Sigmoid": Values.SIGMOIDS}
        return by_kind.get(found.kind, Values.LOGARITHMS)
    if node is None:
        stored = behind.tensors[name].role is Role.PARAMETER or name in behind.values
        return Values.STORED if stored else Values.OTHER
    op = node.op_type
    if shares(node, behind) is not None or over_own_total(node, behind):
        return Values.SHARES
    if op == "LpNormalization" and node.attributes.get("p", 2) == 1:
        return Values.SHARES
    if op in CONTRACTIONS:
        return _contracted(node, behind, ask)
    if op in _FIRST:
        return _first(node, behind, ask)
    if op in _LAYERS or node.domain:
        return Values.OTHER
    read = node.inputs[1:] if op == "Where" else node.inputs
    return _combined(node, [name for name in read if name and is_float(behind.tensors[name])], behind, ask)


def _first(node: Node, behind: Behind, ask: Ask) -> Values:
    found = ask(node.inputs[0])
    if node.op_type.startswith("Reduce") and weighed_sum(node, behind):
        return Values.OTHER
    looked_up = any(name and behind.constant(name) is None for name in node.inputs[1:])
    return Values.OTHER if found is Values.STORED and looked_up else found


def _contracted(node: Node, behind: Behind, ask: Ask) -> Values:
    kinds = []
    for name in factors(node):
        if (kind := ask(name)) is not Values.STORED:
            kinds.append(kind)
        elif not weighs(name, behind):
            return Values.OTHER  # a layer
    if len(kinds) == 1:
        return kinds[0]
    # the product of two things is a share where one is; of Sigmoids it is a score
    return Values.SHARES if Values.SHARES in kinds and set(kinds) <= set(_PROBABILITIES) else Values.OTHER


def _combined(node: Node, read: list[str], behind: Behind, ask: Ask) -> Values:
    """Of an op on each element, a normalization, or one that puts operands side by side."""
    op = node.op_type
    given = [kind for name in read if (kind := ask(name)) is not Values.STORED]
    kinds = set(given)
    if op in _BESIDE and any(behind.tensors[name].role is Role.PARAMETER for name in read):
        kinds.add(Values.OTHER)
    if not kinds:
        return Values.STORED if read else Values.OTHER
    probable = next((kind for kind in _PROBABILITIES if kind in kinds), None)
    if op in _BESIDE and len(kinds) > 1:
        return Values.MIXED if probable or Values.MIXED in kinds else Values.OTHER
    if kinds <= set(_PROBABILITIES) and probable:
        return Values.LOGARITHMS if op == "Log" else probable
    if len(kinds) > 1:
        return Values.OTHER
    kind = kinds.pop()
    if kind is Values.MIXED:
        return kind
    if kind not in _NEGATED:
        return Values.OTHER
    if op == "Exp" and kind is Values.LOGARITHMS:
        return Values.UNIT
    if op in _BESIDE:
        return kind
    return _signed(node, kind, given, behind, ask) if op in _LINEAR else Values.OTHER


def _signed(node: Node, kind: Values, given: Sequence[Values], behind: Behind, ask: Ask) -> Values:
    """Logarithms of probabilities, or those negated, behind a linear op."""
    op = node.op_type
    if op == "Neg":
        return _NEGATED[kind]
    if op == "Sub":
        return Values.OTHER if len(given) > 1 else kind if ask(node.inputs[0]) is kind else _NEGATED[kind]
    if op not in {"Mul", "Div"}:
        return kind
    array = behind.constant(node.inputs[1] if ask(node.inputs[0]) is kind else node.inputs[0])
    if len(given) > 1 or array is None or not array.size or (op == "Div" and ask(node.inputs[0]) is not kind):
        return Values.OTHER
    if float(np.min(array)) >= 0:
        return kind
    return _NEGATED[kind] if float(np.max(array)) <= 0 else Values.OTHER
