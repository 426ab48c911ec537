"""Where a program is cut into the parts that are checkpointed, and what is saved of each.

A part runs again as a whole, when the backward pass first needs something of it. Cut where only what the plan keeps
crosses, what the plan recomputes together comes back together. A residual that the plan recomputes makes such a part
long; cut there, it has to be kept. Which is better is measured: `cuttings` gives the choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from poetopt.torch.counterparts import Call
from poetopt.torch.fates import Fate
from poetopt.torch.tracing import Trace

UNREAD = frozenset({"add", "addmm", "bmm", "convolution", "mm", "sub"})
"""Functions whose gradients don't read what they returned: at a part's end no rerun gets to them."""
CHOICES = 8
"""How many cuttings of either kind are given at most."""


@dataclass(frozen=True)
class Part:
    """Some nodes of a program, one after another.

    first, last
        Numbers of its nodes.
    saved
        For each call of its nodes: the function, and whether what it returns is saved.
    """

    first: int
    last: int
    saved: tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class Cutting:
    """Parts in their order, and which operators are kept though the plan recomputes them, as a cut needs them."""

    parts: tuple[Part, ...]
    kept_instead: tuple[str, ...]


@dataclass(frozen=True)
class _Span:
    """A value that isn't kept: cuts from `first` to `last` would cross it, and it takes `nbytes`."""

    first: int
    last: int
    nbytes: int

    def crosses(self, cut: int) -> bool:
        return self.first <= cut <= self.last


def cuttings(program: Any, trace: Trace, operators: Mapping[int, str], fates: Mapping[str, Fate]) -> list[Cutting]:
    """Ways to cut a program: where so many bytes that the plan doesn't keep cross at most, from none on; and from none
    on the heaviest part in two, again and again.

    operators
        By the index of a call: the operator whose output it returns.
    fates
        The plan's, by operator.
    """
    spans = _spans(program, trace, operators, fates)
    end = len(program.graph.nodes)
    crossing = [sum(span.nbytes for span in spans.values() if span.crosses(place)) for place in range(end + 1)]
    ways = [[place for place in range(end + 1) if crossing[place] <= most] for most in _spread(sorted(set(crossing)))]
    cuts = list(ways[0])
    for _ in range(CHOICES):
        kept = _crossing(spans, cuts)
        place = _best_cut({name: span for name, span in spans.items() if name not in kept}, cuts)
        if place is None:
            break
        cuts = sorted([*cuts, place])
        ways.append(cuts)
    found = [_cutting(trace, operators, fates, way, _crossing(spans, way)) for way in ways]
    return [cutting for place, cutting in enumerate(found) if cutting.parts and cutting not in found[:place]]


def _crossing(spans: Mapping[str, _Span], cuts: Sequence[int]) -> set[str]:
    return {name for name, span in spans.items() if any(span.crosses(cut) for cut in cuts)}


def _spread(limits: Sequence[int]) -> list[int]:
    """At most `CHOICES` of them, the ends among them."""
    if len(limits) <= CHOICES:
        return list(limits)
    return [limits[place * (len(limits) - 1) // (CHOICES - 1)] for place in range(CHOICES)]


def _spans(program: Any, trace: Trace, operators: Mapping[int, str], fates: Mapping[str, Fate]) -> dict[str, _Span]:
    """By operator, for what the plan doesn't keep: from its node to the last one that reads its bytes."""
    nodes = list(program.graph.nodes)
    number = {node: index for index, node in enumerate(nodes)}
    of_node = {trace.calls[index].node: name for index, name in operators.items()}  # its last call has the last word
    spans: dict[str, _Span] = {}
    for node in nodes:
        name = _source(node, of_node, number)
        if name is None or fates[name] is Fate.KEPT:
            continue
        last = max((number[user] for user in node.users if user.op != "output"), default=number[node])
        before = spans.get(name, _Span(number[node] + 1, last, trace.nbytes[number[node]]))
        spans[name] = replace(before, last=max(before.last, last))
    return spans


def _best_cut(spans: Mapping[str, _Span], cuts: Sequence[int]) -> int | None:
    """Where to cut the part that holds most: so that the heavier half, with what is kept then, is lightest."""
    heaviest, first, end = 0, 0, 0
    for begin, stop in pairwise(cuts):
        weight = sum(span.nbytes for span in spans.values() if begin < span.first <= stop)
        if weight > heaviest and stop - begin > 1:
            heaviest, first, end = weight, begin, stop
    best: tuple[int, int] | None = None
    for place in range(first + 1, end):
        inside = [span for span in spans.values() if first < span.first <= end]
        kept = sum(span.nbytes for span in inside if span.crosses(place))
        left = sum(span.nbytes for span in inside if span.first <= place and not span.crosses(place))
        right = sum(span.nbytes for span in inside if span.first > place)
        cost = max(left, right) + kept
        if best is None or cost < best[0]:
            best = cost, place
    return best[1] if best is not None else None


def _cutting(
    trace: Trace, operators: Mapping[int, str], fates: Mapping[str, Fate], cuts: Sequence[int], kept: set[str]
) -> Cutting:
    """The parts between the cuts that recompute something, where what crosses is kept."""
    by_call = {index: Fate.KEPT if name in kept else fates[name] for index, name in operators.items()}
    parts = []
    for first, end in pairwise(cuts):
        inside = [index for index, call in enumerate(trace.calls) if first <= call.node < end]
        if any(by_call.get(index) is Fate.RECOMPUTED for index in inside):
            parts.append(Part(first, end - 1, _saved(trace.calls, by_call, inside)))
    instead = tuple(name for name, fate in fates.items() if name in kept and fate is Fate.RECOMPUTED)
    return Cutting(tuple(parts), instead)


def _source(node: Any, of_node: Mapping[int, str], number: Mapping[Any, int]) -> str | None:
    """The operator that made a node's bytes, which it may only look at; None for what the program is given."""
    while number[node] not in of_node:
        if not node.all_input_nodes or node.op == "output":
            return None
        node = node.all_input_nodes[0]
    return of_node[number[node]]


def _saved(calls: Sequence[Call], fates: Mapping[int, Fate], inside: Sequence[int]) -> tuple[tuple[str, bool], ...]:
    """What is saved of a part's calls: what is kept, and a rerun would get to."""
    saved = [fates.get(index) is Fate.KEPT for index in inside]
    for place in reversed(range(len(inside))):
        if saved[place] and calls[inside[place]].name in UNREAD:
            saved[place] = False
        elif inside[place] in fates:
            break
    return tuple((calls[index].name, keep) for index, keep in zip(inside, saved, strict=True))
