"""Composite regions: nodes that an exporter wrote in place of one op become one operator with one gradient rule.

The nodes stay as they are, so that the forward result keeps its bits. What they pass to one another becomes
temporaries of the operator, and the rule of the op that they amount to reads its input, where the rules of the single
nodes would keep each intermediate result until the backward pass. An operator's `meaning` says what it amounts to.

A region is taken only where nobody else reads what is inside it, and where a gradient flows through it.

Regions that are recognised: norms and activations written out, and Softmax with a guard against rows of NaN.

    LayerNormalization   y = d / s scale + bias,   d = x - mean(x),  s = sqrt(mean(d^2) + epsilon)
    RMSNormalization     y = x / s scale,          s = sqrt(mean(x^2) + epsilon)

over the last axes; the quotient may be a product with the reciprocal of s, the square a product or a power, and scale
and bias are optional. The region writes mean and s as well, a number a row each, which the rule would otherwise have to
compute again.

There are many spellings of Gelu, Swish or Mish (x / sqrt(2) or x * 0.7071, the half in front or behind, x^3 or x x x).
All are element-wise functions of one tensor with scalar constants, so they are evaluated at some fifty points in
float64 and compared with the function itself. Ops of which a region is made have a `value` in their
declarations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.registry import downstream
from poetopt.graph import Graph, Node, Operator, Tensor
from poetopt.ops.op import op_of

DOMAIN = "poetopt.region"
"""Of the ops that regions amount to; their rules are registered in it."""


@dataclass(frozen=True)
class _CompositeRegion:
    """Operators that amount to one node.

    operators
        In the graph's order; the last one writes the result.
    meaning
        The node that they amount to.
    """

    operators: tuple[Operator, ...]
    meaning: Node

    @property
    def last(self) -> Operator:
        """The operator that writes the result."""
        return self.operators[-1]

    def operator(self) -> Operator:
        """All nodes as one operator; what the meaning doesn't name as an output is temporary."""
        nodes = tuple(node for operator in self.operators for node in operator.nodes)
        written = {name for node in nodes for name in node.outputs}
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in written)
        outputs = tuple(name for name in self.meaning.outputs if name)
        return Operator(
            self.last.name, self.meaning.op_type, nodes, tuple(read), outputs, meaning=self.meaning
        )  # fmt: skip


class _Surroundings:
    """A graph, asked about the nodes around a tensor."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._trained = frozenset(graph.trained)
        self._outputs = frozenset(graph.outputs)

    @cached_property
    def places(self) -> dict[str, int]:
        """Says where each operator stands, by name."""
        return {operator.name: place for place, operator in enumerate(self.graph.operators)}

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name."""
        return self.graph.tensors[name]

    def writer(self, name: str, *kinds: str) -> Operator | None:
        """The operator of one ONNX node, of one of these kinds if any are given, that writes just this tensor."""
        operator = self.graph.producers.get(name)
        if operator is None or len(operator.nodes) != 1 or len(operator.outputs) != 1 or operator.nodes[0].domain:
            return None
        return operator if not kinds or operator.kind in kinds else None

    def scalar(self, name: str) -> float | None:
        """The value of a constant of one element that is not trained."""
        array = None if name in self._trained else self.graph.values.get(name)
        return float(np.asarray(array, np.float64).reshape(())) if array is not None and array.size == 1 else None

    def constant(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
        """The value of a constant that is not trained."""
        return None if name in self._trained else self.graph.values.get(name)

    def enclosed(self, members: list[Operator], result: str) -> tuple[Operator, ...] | None:
        """`members` in order, if nobody outside reads what they write but for `result`."""
        names = {member.name for member in members}
        for member in members:
            for output in member.outputs:
                if output == result:
                    continue
                if output in self._outputs or any(r.name not in names for r in self.graph.readers.get(output, ())):
                    return None
        return tuple(sorted({m.name: m for m in members}.values(), key=lambda m: self.places[m.name]))


def _normalization(around: _Surroundings, end: Operator) -> _CompositeRegion | None:
    """The region that ends in `end`: in its shift, its scale, or the bare quotient."""
    if end.kind not in {"Add", "Mul", "Div"} or around.writer(end.outputs[0]) is None:
        return None
    for shifted, scaled in ((True, True), (False, True), (False, False)):
        members: list[Operator] = []
        name, scale, bias = end.outputs[0], "", ""
        if shifted and (found := _weighed(around, members, name, "Add")):
            name, bias = found
        if scaled and (found := _weighed(around, members, name, "Mul")):
            name, scale = found
        if bool(bias) == shifted and bool(scale) == scaled:
            region = _quotient(around, members, name, end.outputs[0], scale, bias)
            if region is not None:
                return region
    return None


def _weighed(around: _Surroundings, members: list[Operator], name: str, kind: str) -> tuple[str, str] | None:
    """Gives what is weighed, and with which vector, where `name` is the sum or product of the two."""
    operator = around.writer(name, kind)
    if operator is None:
        return None
    first, second = operator.nodes[0].inputs
    shape = around.tensor(name).shape
    for x, vector in ((first, second), (second, first)):
        known = vector in around.graph.values and around.tensor(vector).size > 1
        if known and around.tensor(x).shape == shape and around.tensor(vector).shape == shape[-_rank(around, vector) :]:
            members.append(operator)
            return x, vector
    return None


def _rank(around: _Surroundings, name: str) -> int:
    return len(around.tensor(name).shape)


def _quotient(
    around: _Surroundings, members: list[Operator], name: str, result: str, scale: str, bias: str
) -> _CompositeRegion | None:
    """The region whose normalized rows are `name`."""
    divided = _divided(around, name)
    if divided is None:
        return None
    top, root, inner = divided
    members = [*members, *inner]
    spread = _mean_square(around, root, top)
    if spread is None:
        return None
    epsilon, axis, inner = spread
    members += inner
    centred = _centred(around, top, axis)
    x, mean = top, ""
    if centred is not None:
        x, mean, inner = centred
        members += inner
    inside = around.tensor(x).shape[axis:]
    ordered = around.enclosed(members, result)
    if ordered is None or any(w and around.tensor(w).shape != inside for w in (scale, bias)) or (bias and not mean):
        return None
    attributes: dict[str, object] = {"axis": axis, "epsilon": epsilon}
    outputs = (result, mean, root) if mean else (result, root)
    op_type = "LayerNormalization" if mean else "RMSNormalization"
    inputs = (x, scale, bias) if bias else (x, scale) if scale else (x,)
    return _CompositeRegion(ordered, Node(op_type, inputs, outputs, attributes, DOMAIN))


def _divided(around: _Surroundings, name: str) -> tuple[str, str, list[Operator]] | None:
    """Numerator, denominator and operators of a quotient, or of a product with a reciprocal."""
    operator = around.writer(name, "Div", "Mul")
    if operator is None:
        return None
    first, second = operator.nodes[0].inputs
    if operator.kind == "Div":
        return first, second, [operator]
    for top, factor in ((first, second), (second, first)):
        inverse = around.writer(factor, "Reciprocal", "Div")
        if inverse is None:
            continue
        if inverse.kind == "Reciprocal":
            return top, inverse.nodes[0].inputs[0], [operator, inverse]
        if around.scalar(inverse.nodes[0].inputs[0]) == 1.0:
            return top, inverse.nodes[0].inputs[1], [operator, inverse]
    return None


def _mean_square(around: _Surroundings, root: str, top: str) -> tuple[float, int, list[Operator]] | None:
    """Epsilon, first axis and operators, where `root` is sqrt(mean(top^2) + epsilon)."""
    taken = around.writer(root, "Sqrt")
    plus = around.writer(taken.inputs[0], "Add") if taken is not None else None
    if taken is None or plus is None:
        return None
    first, second = plus.nodes[0].inputs
    for mean, epsilon in ((first, around.scalar(second)), (second, around.scalar(first))):
        axis = _row_mean(around, mean)
        averaged = around.writer(mean, "ReduceMean")
        if epsilon is None or axis is None or averaged is None:
            continue
        square = around.writer(averaged.nodes[0].inputs[0], "Pow", "Mul")
        if square is None:
            return None
        a, b = square.nodes[0].inputs
        if a == top and (b == top if square.kind == "Mul" else around.scalar(b) == 2.0):
            return epsilon, axis, [taken, plus, averaged, square]
    return None


def _row_mean(around: _Surroundings, name: str) -> int | None:
    """The first axis of a mean over the last axes that keeps them; None where `name` is none."""
    operator = around.writer(name, "ReduceMean")
    if operator is None:
        return None
    node = operator.nodes[0]
    rank = _rank(around, node.inputs[0])
    axes = node.attributes.get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        axes = around.constant(node.inputs[1])
    if axes is None or node.attributes.get("keepdims", 1) != 1:
        return None
    found = sorted({int(axis) % rank for axis in np.asarray(axes, np.int64).reshape(-1)})
    return found[0] if found and found == list(range(found[0], rank)) else None


def _centred(around: _Surroundings, name: str, axis: int) -> tuple[str, str, list[Operator]] | None:
    """x, its mean and the operators, where `name` is x less its mean from `axis` on."""
    operator = around.writer(name, "Sub")
    if operator is None:
        return None
    x, mean = operator.nodes[0].inputs
    averaged = around.writer(mean, "ReduceMean")
    if averaged is None or averaged.nodes[0].inputs[0] != x or _row_mean(around, mean) != axis:
        return None
    return x, mean, [operator, averaged]


Values = NDArray[np.float64]

_POINTS = np.concatenate([np.linspace(-7.3, 7.1, 49), [-1e4, -90.0, -25.0, 25.0, 90.0, 1e4]])


def _value(op_type: str, *operands: Values | float | None, **attributes: object) -> Values:
    function = op_of(op_type).value
    assert function is not None
    return np.asarray(function(*operands, **attributes), np.float64)


_CURVED = frozenset({"Exp", "Erf", "Tanh", "Sigmoid", "Softplus", "HardSigmoid", "Clip"})
"""A region without one of these is no function that we know."""


def _known(values: Values) -> Iterator[tuple[str, dict[str, object], Values]]:
    """Functions to compare with: op, attributes, values at the points."""
    x = _POINTS
    yield "Gelu", {}, 0.5 * x * (1.0 + _value("Erf", x / math.sqrt(2.0)))
    cubic = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    yield "Gelu", {"approximate": "tanh"}, 0.5 * x * (1.0 + np.tanh(cubic))
    yield "Mish", {}, x * np.tanh(_value("Softplus", x))
    yield "HardSwish", {}, x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)
    yield "Sigmoid", {}, _value("Sigmoid", x)
    at = int(np.argmin(np.abs(x - 1.0)))
    share = float(values[at] / x[at])
    if 0.0 < share < 1.0:
        alpha = round(math.log(share / (1.0 - share)) / float(x[at]), 6)
        yield "Swish", {"alpha": alpha}, x * _value("Sigmoid", alpha * x)


def _function_of(around: _Surroundings, end: Operator) -> _CompositeRegion | None:
    """The smallest region that ends in `end`, reads one tensor, and computes a known function of it."""
    if end.kind not in {"Mul", "Div", "Add", "Reciprocal"} or around.writer(end.outputs[0]) is None:
        return None
    (result,) = end.outputs
    members = [end]
    # operators of a region at most
    while len(members) <= 14:
        leaves = _leaves(around, members)
        if len(members) > 1 and len(leaves) == 1 and (region := _identify(around, members, leaves[0], result)):
            return region
        found = [around.writer(name) for name in leaves]
        writers = [writer for writer in found if writer is not None and op_of(writer.kind).value is not None]
        if not writers:
            return None
        members.append(max(writers, key=lambda writer: around.places[writer.name]))
        if around.enclosed(members, result) is None:
            return None
    return None


def _leaves(around: _Surroundings, members: list[Operator]) -> list[str]:
    """Gives what the members read from outside but for scalar constants."""
    written = {member.outputs[0] for member in members}
    read = dict.fromkeys(name for member in members for name in member.inputs if name not in written)
    return [name for name in read if around.scalar(name) is None]


def _identify(around: _Surroundings, members: list[Operator], x: str, result: str) -> _CompositeRegion | None:
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
            operands = [values[n] if n in values else around.scalar(n) if n else math.nan for n in node.inputs]
            values[node.outputs[0]] = _value(node.op_type, *operands, **node.attributes)
        found = values[result]
        for op_type, attributes, known in _known(found):
            if bool(np.all(np.abs(found - known) <= 2e-6 * (1.0 + np.abs(known)))):
                return _CompositeRegion(ordered, Node(op_type, (x,), (result,), attributes, DOMAIN))
    return None


def _guarded_softmax(around: _Surroundings, end: Operator) -> _CompositeRegion | None:
    """The region that ends in `end`. A row of zeros has the gradient 0, as Softmax's formula gives it."""
    if around.writer(end.outputs[0], "Where") is None:
        return None
    condition, zero, p = end.nodes[0].inputs
    asked, softmax = around.writer(condition, "IsNaN"), around.writer(p, "Softmax")
    if asked is None or softmax is None or asked.inputs != (p,) or around.scalar(zero) != 0.0:
        return None
    if around.tensor(end.outputs[0]).shape != around.tensor(p).shape:
        return None
    ordered = around.enclosed([end, asked, softmax], end.outputs[0])
    if ordered is None:
        return None
    attributes = dict(softmax.nodes[0].attributes)
    return _CompositeRegion(ordered, Node("Softmax", softmax.nodes[0].inputs, end.outputs, attributes, DOMAIN))


_MATCHERS = (_normalization, _function_of, _guarded_softmax)


def compose(graph: Graph) -> Graph:
    """`graph` with its composite regions as operators, and a note of how many of each there are.

    Regions are looked for from the end, so that the largest that ends in an operator is found first.
    """
    around = _Surroundings(graph)
    live = downstream(graph.tensors, graph.operators, graph.trained)
    inside: dict[str, _CompositeRegion] = {}
    for operator in reversed(graph.operators):
        if operator.name in inside or not live.intersection(operator.outputs):
            continue
        for matcher in _MATCHERS:
            region = matcher(around, operator)
            if region is not None and not any(member.name in inside for member in region.operators):
                inside.update((member.name, region) for member in region.operators)
                break
    if not inside:
        return graph
    composed = tuple(_composed(graph.operators, inside))
    counts = Counter(o.kind for o in composed if o.meaning is not None and o.meaning.domain == DOMAIN)
    what = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    note = f"composite regions that train as one operator: {what}"
    return replace(graph, operators=composed, notes=(*graph.notes, note))


def _composed(operators: Sequence[Operator], inside: dict[str, _CompositeRegion]) -> Iterator[Operator]:
    """Each region in the place of its last operator, the others as they are."""
    for operator in operators:
        region = inside.get(operator.name)
        if region is None:
            yield operator
        elif operator.name == region.last.name:
            yield region.operator()
