"""Ops that pass each element of a tensor on, as it is or nearly so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetopt.autodiff.behind import Behind
from poetopt.graph import VIEW_OPS, Node

SMALL = 1e-4
"""By so much Clip, or what is added against log(0), may change a probability; exporters write 1e-6 to 1e-12."""


SAME = VIEW_OPS | {"Expand", "GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"}
"""Ops that only change the shape where they write as many elements as they read."""


MOVED = frozenset({"Transpose", "DepthToSpace", "SpaceToDepth"})
"""Ops that only put elements into another order."""


def passed_on(node: Node, behind: Behind) -> str | None:
    """The operand of which `node` may pass each element on, as it is or nearly so."""
    op = node.op_type
    if op in SAME | MOVED | _ALONE or _takes_all(node, behind):
        operands = [node.inputs[0]] if node.inputs[0] in behind.operands(node) else []
    elif op in {"Max", "Min", "Add", "Mul"}:
        operands = behind.operands(node)
    elif op in {"Sub", "Div", "Pow"}:
        operands = behind.operands(node)
        operands = operands if operands == [node.inputs[0]] else []
    else:
        return None
    if len(operands) != 1:
        return None
    same = behind.tensors[operands[0]].size == behind.tensors[node.outputs[0]].size
    return operands[0] if same else None


_ALONE = frozenset({"Abs", "Cast", "CastLike", "Clip", "Exp", "Log", "Relu"})
"""Ops of each element of their first operand, alone or with bounds and types."""


def _takes_all(node: Node, behind: Behind) -> bool:
    """Whether a Gather takes the one there is along its axis, as `p[:, 0]` does, or a Slice all in their order."""
    shape = behind.tensors[node.inputs[0]].shape if node.inputs else ()
    if node.op_type == "Gather":
        axis = node.attributes.get("axis", 0)
        return isinstance(axis, int) and bool(shape) and shape[axis] == 1
    steps = node.inputs[4] if node.op_type == "Slice" and len(node.inputs) > 4 else ""
    return node.op_type == "Slice" and (not steps or all(step > 0 for step in _numbers([steps], behind)))


def harmless(node: Node, logged: bool, behind: Behind) -> bool:
    """Whether `node` passes probabilities on, or their logarithms, to `SMALL`."""
    op = node.op_type
    if op in SAME | MOVED or op in {"Cast", "CastLike", "Gather", "Slice"}:
        return True
    low, high = (math.log(SMALL), -SMALL) if logged else (SMALL, 1 - SMALL)
    if op in {"Relu", "Abs"}:
        return not logged
    if op == "Clip":
        least, most = (_numbers(node.inputs[k : k + 1], behind) for k in (1, 2))
        return all(v <= low for v in least) and all(v >= high for v in most)
    others = [name for name in node.inputs if name not in behind.operands(node)]
    numbers = _numbers(others, behind)
    if op == "Max":
        return all(v <= low for v in numbers)
    if op == "Min":
        return all(v >= high for v in numbers)
    neutral = 0.0 if op in {"Add", "Sub"} else 1.0
    return op in {"Add", "Sub", "Mul", "Div", "Pow"} and all(abs(v - neutral) <= SMALL for v in numbers)


def _numbers(names: Sequence[str], behind: Behind) -> list[float]:
    """The least and the greatest of each constant; no number where one isn't known."""
    found: list[float] = []
    for name in filter(None, names):
        array = behind.constant(name)
        values = np.asarray(math.nan if array is None or not array.size else array, np.float64)
        found += [float(values.min()), float(values.max())]
    return found
