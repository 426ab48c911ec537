"""Softmax with its guard, `Where(IsNaN(p), 0, p)`: so that a row that is masked whole gives zeros."""

from __future__ import annotations

from poetopt.autodiff.regions.match import DOMAIN, CompositeRegion, Surroundings
from poetopt.graph import Node, Operator


def guarded_softmax(around: Surroundings, end: Operator) -> CompositeRegion | None:
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
    return CompositeRegion(ordered, Node("Softmax", softmax.nodes[0].inputs, end.outputs, attributes, DOMAIN))
