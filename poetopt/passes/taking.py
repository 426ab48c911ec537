"""Backward operators that write their output over what they read, where that lowers the RAM that the step needs.

A gradient dX that is as large as dY can be written over dY, where nobody else reads dY. It stays another tensor, which
is kept, paged and freed by itself; the two share a place while the operator runs. The runtime says whether and how its
kernels can do it (`TakesOver.taking`): what they pass to one another is in the way, unless they go slice by slice,
which takes time. So only those operators do it whose working sets would be above all others'.

An operator that takes over an input runs once: the input is gone, and to run again it would need that made anew. No
forward operator does, as these are what is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from poetopt.graph import Operator, TrainingGraph
from poetopt.operators.constants import constants_of
from poetopt.passes.joining import kept_tensors, working_set_bytes
from poetopt.runtimes.contract import Runtime, RuntimeVariant, TakesOver


@dataclass(frozen=True)
class Taking:
    """An operator's output over an input: the two by name, and how the runtime runs it."""

    given: str
    made: str
    way: RuntimeVariant


@dataclass(frozen=True)
class Takings:
    """Those that lower the floor, by the operator's name; and the floor: the largest working set left, in bytes."""

    by_operator: Mapping[str, Taking]
    floor_bytes: int


def takings(graph: TrainingGraph, runtime: Runtime, without: Collection[str] = ()) -> Takings:
    """The operators of `graph` that write over an input.

    without
        Kinds of operators that don't count.
    """
    counted = [o for o in graph.operators if not o.view and o.kind not in without]
    needs = [working_set_bytes(operator, graph, runtime) for operator in counted]
    if not isinstance(runtime, TakesOver):
        return Takings({}, max(needs, default=0))
    asked = _Asked(graph, runtime, runtime)
    found: dict[str, tuple[int, Taking]] = {}
    floor = 0
    for k in sorted(range(len(counted)), key=lambda k: -needs[k]):
        if needs[k] <= floor:
            break
        leaner = asked.best(counted[k], needs[k])
        if leaner is None:
            floor = needs[k]
            break
        floor = max(floor, leaner[0])
        found[counted[k].name] = needs[k], leaner[1]
    return Takings({name: taking for name, (need, taking) in found.items() if need > floor}, floor)


class _Asked:
    """What an operator may take over, and what it needs then."""

    def __init__(self, graph: TrainingGraph, runtime: Runtime, over: TakesOver) -> None:
        self.graph, self.runtime, self.over = graph, runtime, over
        self.kept = kept_tensors(graph)
        self.values = constants_of(graph)
        self.readers: dict[str, list[str]] = {}
        for operator in graph.operators:
            if not operator.view:
                for root in dict.fromkeys(map(graph.root, operator.inputs)):
                    self.readers.setdefault(root, []).append(operator.name)

    def best(self, operator: Operator, need: int) -> tuple[int, Taking] | None:
        """The bytes that it needs at least, and how; None where that isn't less than `need`."""
        graph, tensors = self.graph, self.graph.tensors
        plain = self.runtime.workspace(operator, tensors).temporaries_bytes
        found: list[tuple[int, Taking]] = []
        for given, made in self._pairs(operator):
            way = self.over.taking(operator, tensors, takes=(given, made), values=self.values)
            if way is not None:
                less = plain + tensors[graph.root(given)].nbytes - way.workspace.temporaries_bytes
                found.append((need - less, Taking(given, made, way)))
        least = min(found, key=lambda one: one[0], default=None)
        return least if least is not None and least[0] < need else None

    def _pairs(self, operator: Operator) -> Iterator[tuple[str, str]]:
        """Inputs that nobody else reads, each with an output of its size."""
        graph, tensors = self.graph, self.graph.tensors
        if not operator.backward or operator.over:
            return
        for given in operator.inputs:
            root = graph.root(given)
            if root in self.kept or tensors[root].resident or self.readers[root] != [operator.name]:
                continue
            if root not in graph.producers or sum(graph.root(name) == root for name in operator.inputs) > 1:
                continue
            for made in operator.outputs:
                out = tensors[made]
                if graph.root(made) == made and not out.resident and out.nbytes == tensors[root].nbytes:
                    yield given, made
