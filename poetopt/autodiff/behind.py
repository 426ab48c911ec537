"""Writers of tensors and the constants that they read, for looking backwards from an output."""

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
    """Gives what `answer` says of `name`, of which it may ask the same of operands; each tensor is answered for once.

    unknown
        What is said of a tensor behind more than `deepest` others.
    """
    known: dict[str, _T] = {}

    def ask(name: str, left: int) -> _T:
        if name not in known:
            known[name] = unknown
            known[name] = answer(name, lambda operand: ask(operand, left - 1)) if left else unknown
        return known[name]

    return ask(name, deepest)


class Behind:
    """A graph, asked about what is behind a tensor. A composite region is the node that it amounts to."""

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
        """The node that writes `name`, if it is of one of these ops (of any, where none is named)."""
        node = self._writers.get(name)
        return node if node is not None and (not kinds or node.op_type in kinds) else None

    def constant(self, name: str) -> Array | None:
        """The value of what is stored and not trained."""
        tensor = self.tensors.get(name)
        return None if tensor is None or tensor.role is Role.PARAMETER else self.values.get(name)

    def operands(self, node: Node) -> list[str]:
        """Gives what `node` reads that isn't stored, of floats."""
        return [name for name in node.inputs if name and self.constant(name) is None and is_float(self.tensors[name])]


def has_pole(node: Node, behind: Behind) -> bool:
    """Says whether a derivative of `node` may be infinite, as far as the ranges of its operands tell."""
    place = op_of(node.op_type).pole
    if place == MASKED:
        return _reads_infinity(node.inputs[0], behind)
    if place is None or node.domain not in {"", "ai.onnx"}:
        return False
    if place == ANYWHERE:
        return True
    if node.op_type == "Pow":
        exponent = behind.constant(node.inputs[1])
        if exponent is not None and bool(np.all(np.asarray(exponent, np.float64) >= 1)):
            return False
    stored = behind.constant(node.inputs[place])
    low, high = _bounds(node.inputs[place], behind)
    return low <= 0 <= high and (stored is None or not np.all(stored))


def _reads_infinity(name: str, behind: Behind) -> bool:
    """Tell whether a tensor is made with a stored infinity, as masked scores are."""

    def answer(name: str, ask: Callable[[str], bool]) -> bool:
        stored = behind.constant(name)
        if stored is not None:
            return stored.dtype.kind == "f" and bool(np.isinf(np.asarray(stored, np.float64)).any())
        node = behind.node(name)
        if node is None or not (op_of(node.op_type).is_linear or node.op_type in ("Where", "Expand")):
            return False
        return any(ask(operand) for operand in node.inputs if operand)

    return going_back(name, answer, False, _DEEPEST)


_ANY: Range = (-math.inf, math.inf)
_DEEPEST = 30
"""Ops behind one another that are looked at."""


def _bounds(name: str, behind: Behind) -> Range:
    """The least and the greatest value that elements of `name` can have."""
    return going_back(name, lambda n, ask: _range(n, behind, ask), _ANY, _DEEPEST)


def _range(name: str, behind: Behind, ask: Callable[[str], Range]) -> Range:
    node = behind.node(name)
    return _stored(name, behind) if node is None else _of(node, behind, ask)


def _stored(name: str, behind: Behind) -> Range:
    array = behind.constant(name)
    if array is None or not array.size or array.dtype.kind not in "fiu":
        return _ANY
    return float(np.min(array)), float(np.max(array))


def _of(node: Node, behind: Behind, ask: Callable[[str], Range]) -> Range:
    op = op_of(node.op_type)
    if op.numbers is not Origin.OWN:
        return ask(node.inputs[0])
    if isinstance(op.range, tuple):
        return op.range
    if node.op_type == "Mul" and node.inputs[0] == node.inputs[1]:
        return 0.0, math.inf
    return _ANY if op.range is None else op.range([ask(name) if name else _ANY for name in node.inputs])


def clip(operands: Sequence[Range]) -> Range:
    """Range of a value between bounds, where there are any."""
    (low, high), least, most = ([*operands, _ANY, _ANY][k] for k in range(3))
    return min(max(low, least[0]), most[1]), max(min(high, most[1]), least[0])


def hull(operands: Sequence[Range]) -> Range:
    """Range of a value between the least and the greatest of all operands."""
    return min(low for low, _ in operands), max(high for _, high in operands)


def choice(operands: Sequence[Range]) -> Range:
    """Range of one of the operands behind a condition."""
    return hull(operands[1:])


def total(operands: Sequence[Range]) -> Range:
    """Range of a sum of elements."""
    low, high = operands[0]
    return 0.0 if low >= 0 else -math.inf, 0.0 if high <= 0 else math.inf


def negated(operands: Sequence[Range]) -> Range:
    """Range of the negative."""
    return -operands[0][1], -operands[0][0]


def monotone(function: Callable[[float], float]) -> Callable[[Sequence[Range]], Range]:
    """Range of an ascending function's value."""
    return lambda operands: (function(operands[0][0]), function(operands[0][1]))


def exp(x: float) -> float:
    """Exponential; infinite where floats end."""
    return math.exp(x) if x < 700 else math.inf


def power(operands: Sequence[Range]) -> Range:
    """Range of a power, of squares alone."""
    return (0.0, math.inf) if operands[1] == (2.0, 2.0) else _ANY


def pair(function: Callable[[Range, Range], Range]) -> Callable[[Sequence[Range]], Range]:
    """Range by those of two operands; any where there are more."""
    return lambda operands: function(*operands) if len(operands) == 2 else _ANY


def product(a: Range, b: Range) -> Range:
    """Range of a product; infinity times zero is zero."""
    ends = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


def quotient(a: Range, b: Range) -> Range:
    """Range of a quotient."""
    return product(a, (1 / b[1], 1 / b[0])) if b[0] > 0 else _ANY
