"""Activations written out: what a chain of element-wise nodes computes is told by its values.

There are many spellings of Gelu, Swish or Mish (x / sqrt(2) or x * 0.7071, the half in front or behind, x^3 or x x x).
All are element-wise functions of one tensor with scalar constants, so they are evaluated at some fifty points in
float64 and compared with the function itself. Ops of which a region is made are those of `_EVALUATE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.regions.match import DOMAIN, CompositeRegion, Surroundings
from poetopt.graph import Node, Operator

Values = NDArray[np.float64]

_POINTS = np.concatenate([np.linspace(-7.3, 7.1, 49), [-1e4, -90.0, -25.0, 25.0, 90.0, 1e4]])
_TOLERANCE = 2e-6
_LARGEST = 14
"""Operators of a region at most."""

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Values) -> Values:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def _softplus(x: Values) -> Values:
    return np.asarray(np.logaddexp(0.0, x))


def _clip(node: Node, x: Values, *bounds: Values) -> Values:
    if len(node.inputs) != 1 + len(bounds):
        return np.full_like(x, np.nan)
    found = np.maximum(x, bounds[0]) if bounds else x
    return np.asarray(np.minimum(found, bounds[1]) if len(bounds) > 1 else found)


def _hard_sigmoid(node: Node, x: Values) -> Values:
    alpha, beta = (_number(node, name, default) for name, default in (("alpha", 0.2), ("beta", 0.5)))
    return np.asarray(np.clip(alpha * x + beta, 0.0, 1.0))


def _number(node: Node, name: str, default: float) -> float:
    found = node.attributes.get(name, default)
    return float(found) if isinstance(found, (int, float)) else default


_EVALUATE: Mapping[str, Callable[..., Any]] = {
    "Add": lambda node, a, b: a + b,
    "Sub": lambda node, a, b: a - b,
    "Mul": lambda node, a, b: a * b,
    "Div": lambda node, a, b: a / b,
    "Pow": lambda node, a, b: a**b,
    "Neg": lambda node, a: -a,
    "Abs": lambda node, a: np.abs(a),
    "Reciprocal": lambda node, a: 1.0 / a,
    "Exp": lambda node, a: np.exp(a),
    "Log": lambda node, a: np.log(a),
    "Erf": lambda node, a: _erf(a),
    "Tanh": lambda node, a: np.tanh(a),
    "Sigmoid": lambda node, a: _sigmoid(a),
    "Softplus": lambda node, a: _softplus(a),
    "Relu": lambda node, a: np.maximum(a, 0.0),
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
}

_CURVED = frozenset({"Exp", "Erf", "Tanh", "Sigmoid", "Softplus", "HardSigmoid", "Clip"})
"""A region without one of these is no function that we know."""


def _known(values: Values) -> Iterator[tuple[str, dict[str, object], Values]]:
    """Functions to compare with: op, attributes, values at the points."""
    x = _POINTS
    yield "Gelu", {}, 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))
    cubic = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    yield "Gelu", {"approximate": "tanh"}, 0.5 * x * (1.0 + np.tanh(cubic))
    yield "Mish", {}, x * np.tanh(_softplus(x))
    yield "HardSwish", {}, x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)
    yield "Sigmoid", {}, _sigmoid(x)
    at = int(np.argmin(np.abs(x - 1.0)))
    share = float(values[at] / x[at])
    if 0.0 < share < 1.0:
        alpha = round(math.log(share / (1.0 - share)) / float(x[at]), 6)
        yield "Swish", {"alpha": alpha}, x * _sigmoid(alpha * x)


def function_of(around: Surroundings, end: Operator) -> CompositeRegion | None:
    """The smallest region that ends in `end`, reads one tensor, and computes a known function of it."""
    if end.kind not in {"Mul", "Div", "Add", "Reciprocal"} or around.writer(end.outputs[0]) is None:
        return None
    (result,) = end.outputs
    members = [end]
    while len(members) <= _LARGEST:
        leaves = _leaves(around, members)
        if len(members) > 1 and len(leaves) == 1 and (region := _identify(around, members, leaves[0], result)):
            return region
        writers = [w for name in leaves if (w := around.writer(name, *_EVALUATE)) is not None]
        if not writers:
            return None
        members.append(max(writers, key=lambda writer: around.places[writer.name]))
        if around.enclosed(members, result) is None:
            return None
    return None


def _leaves(around: Surroundings, members: list[Operator]) -> list[str]:
    """Gives what the members read from outside but for scalar constants."""
    written = {member.outputs[0] for member in members}
    read = dict.fromkeys(name for member in members for name in member.inputs if name not in written)
    return [name for name in read if around.scalar(name) is None]


def _identify(around: Surroundings, members: list[Operator], x: str, result: str) -> CompositeRegion | None:
    """The region of these members, if it has a meaning."""
    ordered = around.enclosed(members, result)
    shape = around.tensor(x).shape
    if ordered is None or not _CURVED.intersection(member.kind for member in members):
        return None
    if any(around.tensor(member.outputs[0]).shape != shape for member in members):
        return None
    values: dict[str, Values] = {x: _POINTS}
    with np.errstate(all="ignore"):
        for member in ordered:
            node = member.nodes[0]
            operands = [values[n] if n in values else np.full_like(_POINTS, around.scalar(n)) for n in node.inputs if n]
            values[node.outputs[0]] = np.asarray(_EVALUATE[node.op_type](node, *operands), np.float64)
        found = values[result]
        for op_type, attributes, known in _known(found):
            if bool(np.all(np.abs(found - known) <= _TOLERANCE * (1.0 + np.abs(known)))):
                return CompositeRegion(ordered, Node(op_type, (x,), (result,), attributes, DOMAIN))
    return None
