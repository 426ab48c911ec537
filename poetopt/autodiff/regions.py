"""Composite regions: nodes that an exporter wrote in place of one op become one operator with one gradient rule.

The nodes stay as they are, so that the forward result keeps its bits. The tensors between them become temporaries of
the operator. The rule of the fused op reads the region's input, where the rules of the single nodes would keep each
intermediate result until the backward pass. An operator's `meaning` is its fused op.

A region becomes an operator only if no operator outside reads its intermediate tensors and a gradient flows through it.

Recognised regions: norms and activations written out, and Softmax with a guard against rows of NaN.

    LayerNormalization   y = d / s scale + bias,   d = x - mean(x),  s = sqrt(mean(d^2) + epsilon)
    RMSNormalization     y = x / s scale,          s = sqrt(mean(x^2) + epsilon)

over the last axes. The quotient may be a product with the reciprocal of s, the square a product or a power; scale
and bias are optional. The region also writes mean and s, a number a row each, so that the rule needn't recompute them.

There are many spellings of Gelu, Swish and Mish (x / sqrt(2) or x * 0.7071, the half in front or behind, x^3 or x x x).
All are element-wise functions of one tensor with scalar constants. They are therefore evaluated at 55 points in
float64 and compared with the function itself. Such a region consists of ops that
declare a `value`.
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
"""Domain of the fused ops of regions, in which their rules are registered."""


@dataclass(frozen=True)
class _CompositeRegion:
    """Operators, in the graph's order, that compute one fused op; the last operator writes the result."""

    operators: tuple[Operator, ...]
    meaning: Node

    @property
    def last(self) -> Operator:
        """The operator that writes the result."""
        return self.operators[-1]

    def operator(self) -> Operator:
        """Return all nodes as one operator; tensors that are no outputs of the fused op are temporary."""
        nodes = tuple(node for operator in self.operators for node in operator.nodes)
        written = {name for node in nodes for name in node.outputs}
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in written)
        outputs = tuple(name for name in self.meaning.outputs if name)
        return Operator(
            self.last.name, self.meaning.op_type, nodes, tuple(read), outputs, meaning=self.meaning
        )  # fmt: skip


class _GraphQuery:
    """Queries of a graph by the matchers of regions."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._trained = frozenset(graph.trained)
        self._outputs = frozenset(graph.outputs)

    @cached_property
    def places(self) -> dict[str, int]:
        """Position of each operator in the graph, by name."""
        return {operator.name: place for place, operator in enumerate(self.graph.operators)}

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name."""
        return self.graph.tensors[name]

    def writer(self, name: str, *kinds: str) -> Operator | None:
        """Return the operator of one ONNX node, of one of `kinds` if any, whose only output is `name`."""
        operator = self.graph.producers.get(name)
        if operator is None or len(operator.nodes) != 1 or len(operator.outputs) != 1 or operator.nodes[0].domain:
            return None
        return operator if not kinds or operator.kind in kinds else None

    def scalar(self, name: str) -> float | None:
        """Return the value of an untrained constant of one element, else None."""
        array = None if name in self._trained else self.graph.values.get(name)
        return float(np.asarray(array, np.float64).reshape(())) if array is not None and array.size == 1 else None

    def constant(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
        """Return the value of an untrained constant, else None."""
        return None if name in self._trained else self.graph.values.get(name)

    def enclosed(self, members: list[Operator], result: str) -> tuple[Operator, ...] | None:
        """Return `members` in graph order if only `result` is read outside of them, else None."""
        names = {member.name for member in members}
        for member in members:
            for output in member.outputs:
                if output == result:
                    continue
                if output in self._outputs or any(r.name not in names for r in self.graph.readers.get(output, ())):
                    return None
        return tuple(sorted({m.name: m for m in members}.values(), key=lambda m: self.places[m.name]))


def _normalization(query: _GraphQuery, end: Operator) -> _CompositeRegion | None:
    """Return the norm whose shift, scale or bare quotient is `end`, or None."""
    if end.kind not in {"Add", "Mul", "Div"} or query.writer(end.outputs[0]) is None:
        return None
    for shifted, scaled in ((True, True), (False, True), (False, False)):
        members: list[Operator] = []
        name, scale, bias = end.outputs[0], "", ""
        if shifted and (weighted := _weighted(query, members, name, "Add")):
            name, bias = weighted
        if scaled and (weighted := _weighted(query, members, name, "Mul")):
            name, scale = weighted
        if bool(bias) == shifted and bool(scale) == scaled:
            region = _normalized_region(query, members, name, end.outputs[0], scale, bias)
            if region is not None:
                return region
    return None


def _weighted(query: _GraphQuery, members: list[Operator], name: str, kind: str) -> tuple[str, str] | None:
    """Return tensor and stored vector of which `name` is the sum or product; append that operator to `members`."""
    operator = query.writer(name, kind)
    if operator is None:
        return None
    first, second = operator.nodes[0].inputs
    shape = query.tensor(name).shape
    for x, vector in ((first, second), (second, first)):
        is_vector = vector in query.graph.values and query.tensor(vector).size > 1
        if (
            is_vector
            and query.tensor(x).shape == shape
            and query.tensor(vector).shape == shape[-_rank(query, vector) :]
        ):
            members.append(operator)
            return x, vector
    return None


def _rank(query: _GraphQuery, name: str) -> int:
    return len(query.tensor(name).shape)


def _normalized_region(
    query: _GraphQuery, members: list[Operator], name: str, result: str, scale: str, bias: str
) -> _CompositeRegion | None:
    """Return the region whose normalized rows are `name`, or None."""
    divided = _quotient_operands(query, name)
    if divided is None:
        return None
    top, root, inner = divided
    members = [*members, *inner]
    spread = _mean_square(query, root, top)
    if spread is None:
        return None
    epsilon, axis, inner = spread
    members += inner
    centred = _centered(query, top, axis)
    x, mean = top, ""
    if centred is not None:
        x, mean, inner = centred
        members += inner
    inside = query.tensor(x).shape[axis:]
    ordered = query.enclosed(members, result)
    if ordered is None or any(w and query.tensor(w).shape != inside for w in (scale, bias)) or (bias and not mean):
        return None
    attributes: dict[str, object] = {"axis": axis, "epsilon": epsilon}
    outputs = (result, mean, root) if mean else (result, root)
    op_type = "LayerNormalization" if mean else "RMSNormalization"
    inputs = (x, scale, bias) if bias else (x, scale) if scale else (x,)
    return _CompositeRegion(ordered, Node(op_type, inputs, outputs, attributes, DOMAIN))


def _quotient_operands(query: _GraphQuery, name: str) -> tuple[str, str, list[Operator]] | None:
    """Return numerator, denominator and operators of a quotient, or of a product with a reciprocal."""
    operator = query.writer(name, "Div", "Mul")
    if operator is None:
        return None
    first, second = operator.nodes[0].inputs
    if operator.kind == "Div":
        return first, second, [operator]
    for top, factor in ((first, second), (second, first)):
        inverse = query.writer(factor, "Reciprocal", "Div")
        if inverse is None:
            continue
        if inverse.kind == "Reciprocal":
            return top, inverse.nodes[0].inputs[0], [operator, inverse]
        if query.scalar(inverse.nodes[0].inputs[0]) == 1.0:
            return top, inverse.nodes[0].inputs[1], [operator, inverse]
    return None


def _mean_square(query: _GraphQuery, root: str, top: str) -> tuple[float, int, list[Operator]] | None:
    """Return epsilon, first axis and operators where `root` is sqrt(mean(top^2) + epsilon), else None."""
    square_root = query.writer(root, "Sqrt")
    shifted = query.writer(square_root.inputs[0], "Add") if square_root is not None else None
    if square_root is None or shifted is None:
        return None
    first, second = shifted.nodes[0].inputs
    for mean, epsilon in ((first, query.scalar(second)), (second, query.scalar(first))):
        axis = _row_mean(query, mean)
        averaged = query.writer(mean, "ReduceMean")
        if epsilon is None or axis is None or averaged is None:
            continue
        square = query.writer(averaged.nodes[0].inputs[0], "Pow", "Mul")
        if square is None:
            return None
        a, b = square.nodes[0].inputs
        if a == top and (b == top if square.kind == "Mul" else query.scalar(b) == 2.0):
            return epsilon, axis, [square_root, shifted, averaged, square]
    return None


def _row_mean(query: _GraphQuery, name: str) -> int | None:
    """Return the first axis where `name` is a mean over the last axes that keeps them, else None."""
    operator = query.writer(name, "ReduceMean")
    if operator is None:
        return None
    node = operator.nodes[0]
    rank = _rank(query, node.inputs[0])
    axes = node.attributes.get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        axes = query.constant(node.inputs[1])
    if axes is None or node.attributes.get("keepdims", 1) != 1:
        return None
    sorted_axes = sorted({int(axis) % rank for axis in np.asarray(axes, np.int64).reshape(-1)})
    return sorted_axes[0] if sorted_axes and sorted_axes == list(range(sorted_axes[0], rank)) else None


def _centered(query: _GraphQuery, name: str, axis: int) -> tuple[str, str, list[Operator]] | None:
    """Return x, its mean and the operators where `name` is x minus its mean over the axes from `axis` on, else None."""
    operator = query.writer(name, "Sub")
    if operator is None:
        return None
    x, mean = operator.nodes[0].inputs
    averaged = query.writer(mean, "ReduceMean")
    if averaged is None or averaged.nodes[0].inputs[0] != x or _row_mean(query, mean) != axis:
        return None
    return x, mean, [operator, averaged]


Values = NDArray[np.float64]

_SAMPLE_POINTS = np.concatenate([np.linspace(-7.3, 7.1, 49), [-1e4, -90.0, -25.0, 25.0, 90.0, 1e4]])


def _value(op_type: str, *operands: Values | float | None, **attributes: object) -> Values:
    function = op_of(op_type).value
    assert function is not None
    return np.asarray(function(*operands, **attributes), np.float64)


_NONLINEAR = frozenset({"Exp", "Erf", "Tanh", "Sigmoid", "Softplus", "HardSigmoid", "Clip"})
"""Every known function has at least one of these ops."""


def _known_functions(values: Values) -> Iterator[tuple[str, dict[str, object], Values]]:
    """Yield op, attributes and values at the points of each function to compare with."""
    x = _SAMPLE_POINTS
    yield "Gelu", {}, 0.5 * x * (1.0 + _value("Erf", x / math.sqrt(2.0)))
    cubic = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    yield "Gelu", {"approximate": "tanh"}, 0.5 * x * (1.0 + np.tanh(cubic))
    yield "Mish", {}, x * np.tanh(_value("Softplus", x))
    yield "HardSwish", {}, x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)
    yield "Sigmoid", {}, _value("Sigmoid", x)
    nearest_one = int(np.argmin(np.abs(x - 1.0)))
    ratio = float(values[nearest_one] / x[nearest_one])
    if 0.0 < ratio < 1.0:
        alpha = round(math.log(ratio / (1.0 - ratio)) / float(x[nearest_one]), 6)
        yield "Swish", {"alpha": alpha}, x * _value("Sigmoid", alpha * x)


def _activation(query: _GraphQuery, end: Operator) -> _CompositeRegion | None:
    """Return the smallest region that ends in `end`, reads one tensor and computes a known function of it, or None."""
    if end.kind not in {"Mul", "Div", "Add", "Reciprocal"} or query.writer(end.outputs[0]) is None:
        return None
    (result,) = end.outputs
    members = [end]
    # the longest spelling of a known function has 14 operators
    while len(members) <= 14:
        leaves = _leaves(query, members)
        if len(members) > 1 and len(leaves) == 1 and (region := _identify_function(query, members, leaves[0], result)):
            return region
        leaf_writers = [query.writer(name) for name in leaves]
        writers = [writer for writer in leaf_writers if writer is not None and op_of(writer.kind).value is not None]
        if not writers:
            return None
        members.append(max(writers, key=lambda writer: query.places[writer.name]))
        if query.enclosed(members, result) is None:
            return None
    return None


def _leaves(query: _GraphQuery, members: list[Operator]) -> list[str]:
    """Return the tensors that the members read from outside, without scalar constants."""
    written = {member.outputs[0] for member in members}
    read = dict.fromkeys(name for member in members for name in member.inputs if name not in written)
    return [name for name in read if query.scalar(name) is None]


def _identify_function(query: _GraphQuery, members: list[Operator], x: str, result: str) -> _CompositeRegion | None:
    """Return the region of these members if it computes a known function, else None."""
    ordered = query.enclosed(members, result)
    shape = query.tensor(x).shape
    if ordered is None or not _NONLINEAR.intersection(member.kind for member in members):
        return None
    if any(query.tensor(member.outputs[0]).shape != shape for member in members):
        return None
    values: dict[str, Values] = {x: _SAMPLE_POINTS}
    with np.errstate(all="ignore"):
        for member in ordered:
            node = member.nodes[0]
            operands = [values[n] if n in values else query.scalar(n) if n else math.nan for n in node.inputs]
            values[node.outputs[0]] = _value(node.op_type, *operands, **node.attributes)
        computed = values[result]
        for op_type, attributes, expected in _known_functions(computed):
            if bool(np.all(np.abs(computed - expected) <= 2e-6 * (1.0 + np.abs(expected)))):
                return _CompositeRegion(ordered, Node(op_type, (x,), (result,), attributes, DOMAIN))
    return None


def _guarded_softmax(query: _GraphQuery, end: Operator) -> _CompositeRegion | None:
    """Return the guarded Softmax that ends in `end`, or None.

    The gradient of a row that the guard set to zero is 0, by the formula of Softmax's gradient.
    """
    if query.writer(end.outputs[0], "Where") is None:
        return None
    condition, zero, p = end.nodes[0].inputs
    is_nan, softmax = query.writer(condition, "IsNaN"), query.writer(p, "Softmax")
    if is_nan is None or softmax is None or is_nan.inputs != (p,) or query.scalar(zero) != 0.0:
        return None
    if query.tensor(end.outputs[0]).shape != query.tensor(p).shape:
        return None
    ordered = query.enclosed([end, is_nan, softmax], end.outputs[0])
    if ordered is None:
        return None
    attributes = dict(softmax.nodes[0].attributes)
    return _CompositeRegion(ordered, Node("Softmax", softmax.nodes[0].inputs, end.outputs, attributes, DOMAIN))


_MATCHERS = (_normalization, _activation, _guarded_softmax)


def compose(graph: Graph) -> Graph:
    """Return `graph` with its composite regions as operators, and a note that counts them.

    The search runs from the end, so that it finds the largest region that ends in an operator first.
    """
    query = _GraphQuery(graph)
    reached = downstream(graph.tensors, graph.operators, graph.trained)
    inside: dict[str, _CompositeRegion] = {}
    for operator in reversed(graph.operators):
        if operator.name in inside or not reached.intersection(operator.outputs):
            continue
        for matcher in _MATCHERS:
            region = matcher(query, operator)
            if region is not None and not any(member.name in inside for member in region.operators):
                inside.update((member.name, region) for member in region.operators)
                break
    if not inside:
        return graph
    composed = tuple(_replace_regions(graph.operators, inside))
    counts = Counter(o.kind for o in composed if o.meaning is not None and o.meaning.domain == DOMAIN)
    listing = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    note = f"composite regions that train as one operator: {listing}"
    return replace(graph, operators=composed, notes=(*graph.notes, note))


def _replace_regions(operators: Sequence[Operator], inside: dict[str, _CompositeRegion]) -> Iterator[Operator]:
    """Yield each region in the position of its last operator, and all operators outside regions."""
    for operator in operators:
        region = inside.get(operator.name)
        if region is None:
            yield operator
        elif operator.name == region.last.name:
            yield region.operator()
