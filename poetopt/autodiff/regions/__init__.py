"""Composite regions: nodes that an exporter wrote in place of one op become one operator with one gradient rule.

The nodes stay as they are, so that the forward result keeps its bits. What they pass to one another becomes
temporaries of the operator, and the rule of the op that they amount to reads its input, where the rules of the single
nodes would keep each intermediate result until the backward pass. An operator's `meaning` says what it amounts to.

A region is taken only where nobody else reads what is inside it, and where a gradient flows through it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from poetopt.autodiff.regions.match import DOMAIN, CompositeRegion, Surroundings
from poetopt.autodiff.regions.matchers import function_of, guarded_softmax, normalization
from poetopt.autodiff.registry import downstream
from poetopt.graph import Graph, Operator

_MATCHERS = (normalization, function_of, guarded_softmax)


def compose(graph: Graph) -> Graph:
    """`graph` with its composite regions as operators, and a note of how many of each there are.

    Regions are looked for from the end, so that the largest that ends in an operator is found first.
    """
    around = Surroundings(graph)
    live = downstream(graph.tensors, graph.operators, graph.trained)
    inside: dict[str, CompositeRegion] = {}
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
    counts = Counter(operator.kind for operator in composed if _is_region(operator))
    what = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    note = f"composite regions that train as one operator: {what}"
    return replace(graph, operators=composed, notes=(*graph.notes, note))


def _is_region(operator: Operator) -> bool:
    return operator.meaning is not None and operator.meaning.domain == DOMAIN


def _composed(operators: Sequence[Operator], inside: dict[str, CompositeRegion]) -> Iterator[Operator]:
    """Each region in the place of its last operator, the others as they are."""
    for operator in operators:
        region = inside.get(operator.name)
        if region is None:
            yield operator
        elif operator.name == region.last.name:
            yield region.operator()
