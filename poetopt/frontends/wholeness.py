"""Whether a graph that another package's frontend made hangs together: what is named exists, before it is read."""

from __future__ import annotations

from poetopt.graph import Graph


def gap(graph: Graph) -> str | None:
    """What is missing, in words; None where nothing is."""
    declared = set(graph.tensors)
    for what, names in (("input", graph.inputs), ("initializer", graph.values)):
        for name in names:
            if name not in declared:
                return f"its {what} '{name}' is none of its tensors"
    there = {*graph.inputs, *graph.values}
    seen: set[str] = set()
    for operator in graph.operators:
        if operator.name in seen:
            return f"two operators are called '{operator.name}'"
        seen.add(operator.name)
        for name in filter(None, operator.inputs):
            if name not in there:
                return f"operator '{operator.name}' reads '{name}': no input, no initializer, and not written before"
        for name in filter(None, operator.outputs):
            if name not in declared:
                return f"operator '{operator.name}' writes '{name}', which is none of its tensors"
            if name in there:
                return f"operator '{operator.name}' writes '{name}', which is there already"
            there.add(name)
    for name in graph.outputs:
        if name not in there:
            return f"its output '{name}' is written by no operator"
    for name in graph.trained:
        if name not in graph.values:
            return f"it trains '{name}', which is no initializer"
    return None
