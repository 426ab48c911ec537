"""Where each storage of the resident region lies on a device: side by side, without a byte between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.graph import DTYPE_BYTES, TrainingGraph
from poetopt.operators.resident import resident_storages


@dataclass(frozen=True, slots=True)
class Span:
    """Storages next to each other whose values are given: where they start, and which they are, in order."""

    offset: int
    nbytes: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resident:
    """The resident region.

    offsets
        Where each storage starts, by name. The widest elements come first, so that each is aligned for its own.
    nbytes
        Size of it all: the sum of the storages' sizes.
    given
        What has a value before the step (parameters, constants), in as few spans as there are.
    """

    offsets: Mapping[str, int]
    nbytes: int
    given: tuple[Span, ...]


def lay_out_resident(graph: TrainingGraph) -> Resident:
    """The resident region of `graph`: by width of the elements, then what is given, then in the graph's order."""
    roots = list(resident_storages(graph))
    roots.sort(key=lambda name: (-DTYPE_BYTES[graph.tensors[name].dtype], name not in graph.values))
    offsets: dict[str, int] = {}
    spans: list[Span] = []
    end = 0
    for name in roots:
        nbytes = graph.tensors[name].nbytes
        offsets[name] = end
        if name in graph.values:
            last = spans[-1] if spans else None
            if last is not None and last.offset + last.nbytes == end:
                spans[-1] = Span(last.offset, last.nbytes + nbytes, (*last.names, name))
            else:
                spans.append(Span(end, nbytes, (name,)))
        end += nbytes
    return Resident(offsets, end, tuple(spans))
