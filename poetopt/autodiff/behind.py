"""Writers of tensors and the constants that they read, for looking backwards from an output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from poetopt.autodiff.registry import is_float
from poetopt.graph import Node, Operator, Role, Tensor

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

    def near(self, name: str, value: float, tolerance: float = 0.0) -> bool:
        """Says whether `name` is a constant, each element of which is `value`, give or take `tolerance`."""
        array = self.constant(name)
        if array is None or not array.size or array.dtype.kind not in "fiu":
            return False
        return bool(np.all(np.abs(np.asarray(array, np.float64) - value) <= tolerance))

    def operands(self, node: Node) -> list[str]:
        """Gives what `node` reads that isn't stored, of floats."""
        return [name for name in node.inputs if name and self.constant(name) is None and is_float(self.tensors[name])]
