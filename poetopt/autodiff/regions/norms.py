"""LayerNormalization and RMSNormalization written out.

    LayerNormalization   y = d / s scale + bias,   d = x - mean(x),  s = sqrt(mean(d^2) + epsilon)
    RMSNormalization     y = x / s scale,          s = sqrt(mean(x^2) + epsilon)

over the last axes; the quotient may be a product with the reciprocal of s, the square a product or a power, and scale
and bias are optional. The region writes mean and s as well, a number a row each, which the rule would otherwise have to
compute again.
"""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.regions.match import DOMAIN, CompositeRegion, Surroundings
from poetopt.graph import Node, Operator


def normalization(around: Surroundings, end: Operator) -> CompositeRegion | None:
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


def _weighed(around: Surroundings, members: list[Operator], name: str, kind: str) -> tuple[str, str] | None:
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


def _rank(around: Surroundings, name: str) -> int:
    return len(around.tensor(name).shape)


def _quotient(
    around: Surroundings, members: list[Operator], name: str, result: str, scale: str, bias: str
) -> CompositeRegion | None:
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
    return CompositeRegion(ordered, Node(op_type, inputs, outputs, attributes, DOMAIN))


def _divided(around: Surroundings, name: str) -> tuple[str, str, list[Operator]] | None:
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


def _mean_square(around: Surroundings, root: str, top: str) -> tuple[float, int, list[Operator]] | None:
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


def _row_mean(around: Surroundings, name: str) -> int | None:
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


def _centred(around: Surroundings, name: str, axis: int) -> tuple[str, str, list[Operator]] | None:
    """x, its mean and the operators, where `name` is x less its mean from `axis` on."""
    operator = around.writer(name, "Sub")
    if operator is None:
        return None
    x, mean = operator.nodes[0].inputs
    averaged = around.writer(mean, "ReduceMean")
    if averaged is None or averaged.nodes[0].inputs[0] != x or _row_mean(around, mean) != axis:
        return None
    return x, mean, [operator, averaged]
