"""Queries of a graph backwards from a tensor: the node that writes it, constants, and ranges of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from poetopt.autodiff.registry import is_float
from poetopt.graph import Node, Operator, Role, Tensor
from poetopt.ops.op import ANYWHERE, MASKED, Origin, Range, op_of

if TYPE_CHECKING:
    from poetopt.graph import Array


_T = TypeVar("_T")


def going_back(name: str, answer: Callable[[str, Callable[[str], _T]], _T], unknown: _T, deepest: int) -> _T:
    """Return `answer` of `name`, a recursive function over operands that is evaluated once a tensor.

    Parameters
    ----------
    answer
        A function of a tensor's name and of a function that returns the answer for an operand.
    unknown
        The answer for a tensor behind more than `deepest` others.
    """
    known: dict[str, _T] = {}

    def visit(name: str, depth_left: int) -> _T:
        if name not in known:
            known[name] = unknown
            known[name] = answer(name, lambda operand: visit(operand, depth_left - 1)) if depth_left else unknown
        return known[name]

    return visit(name, deepest)


class Behind:
    """The node that writes each tensor of a graph; a composite region counts as its fused op."""

    def __init__(
        self, operators: Iterable[Operator], tensors: Mapping[str, Tensor], values: Mapping[str, Array]
    ) -> None:  # fmt: skip
        self.tensors = tensors
        self.values = values
        self._writers: dict[str, Node] = {}
        for operator in operators:
            node = operator.meaning or (operator.nodes[0] if len(operator.nodes) == 1 else None)
            if node is not None:
                self._writers.update((name, node) for name in operator.outputs)

    def node(self, name: str, *kinds: str) -> Node | None:
        """Return the node that writes `name` if its op is one of `kinds` (any op where there are none), else None."""
        node = self._writers.get(name)
        return node if node is not None and (not kinds or node.op_type in kinds) else None

    def constant(self, name: str) -> Array | None:
        """Return the value of a stored tensor that is not trained, else None."""
        tensor = self.tensors.get(name)
        return None if tensor is None or tensor.role is Role.PARAMETER else self.values.get(name)

    def operands(self, node: Node) -> list[str]:
        """Return the floating-point inputs of `node` that are not constants."""
        return [name for name in node.inputs if name and self.constant(name) is None and is_float(self.tensors[name])]


def has_pole(node: Node, behind: Behind) -> bool:
    """Return whether a derivative of `node` may be infinite, by the ranges of its operands."""
    position = op_of(node.op_type).pole
    if position == MASKED:
        return _reads_infinity(node.inputs[0], behind)
    if position is None or node.domain not in {"", "ai.onnx"}:
        return False
    if position == ANYWHERE:
        return True
    if node.op_type == "Pow":
        exponent = behind.constant(node.inputs[1])
        if exponent is not None and bool(np.all(np.asarray(exponent, np.float64) >= 1)):
            return False
    stored = behind.constant(node.inputs[position])
    low, high = _value_range(node.inputs[position], behind)
    return low <= 0 <= high and (stored is None or not np.all(stored))


def _reads_infinity(name: str, behind: Behind) -> bool:
    """Return whether a tensor is computed from a stored infinity, as masked scores are."""

    def answer(name: str, ask: Callable[[str], bool]) -> bool:
        stored = behind.constant(name)
        if stored is not None:
            return stored.dtype.kind == "f" and bool(np.isinf(np.asarray(stored, np.float64)).any())
        node = behind.node(name)
        if node is None or not (op_of(node.op_type).is_linear or node.op_type in ("Where", "Expand")):
            return False
        return any(ask(operand) for operand in node.inputs if operand)

    return going_back(name, answer, False, _MAX_DEPTH)


_ANY: Range = (-math.inf, math.inf)
_MAX_DEPTH = 30
"""Longest chain of ops that is searched."""


def _value_range(name: str, behind: Behind) -> Range:
    """Return the least and the greatest value that elements of `name` can have."""
    return going_back(name, lambda n, ask: _range(n, behind, ask), _ANY, _MAX_DEPTH)


def _range(name: str, behind: Behind, ask: Callable[[str], Range]) -> Range:
    node = behind.node(name)
    return _stored_range(name, behind) if node is None else _computed_range(node, behind, ask)


def _stored_range(name: str, behind: Behind) -> Range:
    array = behind.constant(name)
    if array is None or not array.size or array.dtype.kind not in "fiu":
        return _ANY
    return float(np.min(array)), float(np.max(array))


def _computed_range(node: Node, behind: Behind, ask: Callable[[str], Range]) -> Range:
    op = op_of(node.op_type)
    if op.numbers is not Origin.OWN:
        return ask(node.inputs[0])
    if isinstance(op.range, tuple):
        return op.range
    if node.op_type == "Mul" and node.inputs[0] == node.inputs[1]:
        return 0.0, math.inf
    return _ANY if op.range is None else op.range([ask(name) if name else _ANY for name in node.inputs])


def clip(operands: Sequence[Range]) -> Range:
    """Return the range of a value that is clipped to bounds, either of which may be absent."""
    (low, high), least, most = ([*operands, _ANY, _ANY][k] for k in range(3))
    return min(max(low, least[0]), most[1]), max(min(high, most[1]), least[0])


def hull(operands: Sequence[Range]) -> Range:
    """Return the smallest range that contains those of all operands."""
    return min(low for low, _ in operands), max(high for _, high in operands)


def choice(operands: Sequence[Range]) -> Range:
    """Return the range of one of the operands after the first, which is a condition."""
    return hull(operands[1:])


def total(operands: Sequence[Range]) -> Range:
    """Return the range of a sum of elements."""
    low, high = operands[0]
    return 0.0 if low >= 0 else -math.inf, 0.0 if high <= 0 else math.inf


def negated(operands: Sequence[Range]) -> Range:
    """Return the range of the negative."""
    return -operands[0][1], -operands[0][0]


def monotone(function: Callable[[float], float]) -> Callable[[Sequence[Range]], Range]:
    """Return the range rule of an ascending function."""
    return lambda operands: (function(operands[0][0]), function(operands[0][1]))


def exp(x: float) -> float:
    """Return the exponential of x, infinite where it overflows."""
    return math.exp(x) if x < 700 else math.inf


def power(operands: Sequence[Range]) -> Range:
    """Return the range of a power: that of a square, else any."""
    return (0.0, math.inf) if operands[1] == (2.0, 2.0) else _ANY


def pair(function: Callable[[Range, Range], Range]) -> Callable[[Sequence[Range]], Range]:
    """Return the range rule of a function of two operands; any range where there are more."""
    return lambda operands: function(*operands) if len(operands) == 2 else _ANY


def product(a: Range, b: Range) -> Range:
    """Return the range of a product; infinity times zero is zero."""
    ends = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


def quotient(a: Range, b: Range) -> Range:
    """Return the range of a quotient."""
    return product(a, (1 / b[1], 1 / b[0])) if b[0] > 0 else _ANY
