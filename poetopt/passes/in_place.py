"""Operators that work in place: each joins the operator that writes what it writes over.

Where f is element-wise and nobody but f reads its operand a, f can write its output over a. Then f and the operator P
that writes a become one scheduled operator: P's nodes, then f's. The runtime's workspace lets f's node write over
a inside it, so a lies where f's output does and takes no room of its own; as two operators, both were in RAM while f
ran. Nodes and their order stay, and so do all results.

Nothing is lost. No schedule needs a by itself: to keep, page or recompute f's output instead takes the same bytes, and
spares f. What P writes besides leaves the joined operator as it left P; it must be small, as P alone could make it
again for less. What f reads besides is needed as soon as P runs: so the joined operator may need no more RAM than the
larger of the two by itself, with P's small outputs kept while f runs. `CRUMBS` are let pass, but never more than the
largest working set of the graph, so that the least RAM stays. Backward operators may only read what P reads, as
their operands are often recomputed right before they run.

Not joined: what may run only once, what works in place in the resident region, what a graph's user wants to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poetopt.graph import TOGETHER, Operator, TrainingGraph
from poetopt.passes.joining import SIDE, joined, kept_tensors, working_set_bytes
from poetopt.runtimes.contract import Runtime

CRUMBS = 32
"""Bytes that are let pass: one such part of the operand. BatchNormalization's temporaries are some hundred bytes."""


def in_place(graph: TrainingGraph, runtime: Runtime) -> TrainingGraph:
    """`graph` with every operator that works in place as one with the operator before it, under its own name.

    Chains join as well: of BatchNormalization, Add and Relu one operator is left. Its `kind` is theirs with `+`
    between, its `members` are their names. A graph in which nothing joins is returned as it is.

    Raises `ModelError` where a node names a tensor that the graph lacks.
    """
    found = _Search(graph, runtime)
    groups: list[list[Operator]] = []
    views: list[Operator] = []
    for operator in graph.operators:
        if operator.view:
            views.append(operator)
            continue
        if groups and found.joins(groups[-1], views, operator):
            groups[-1] += [*views, operator]
        else:
            groups += [[view] for view in views]
            groups.append([operator])
        views = []
    groups += [[view] for view in views]
    count = sum(not operator.view for group in groups for operator in group[1:])
    if not count:
        return graph
    note = f"in place: {count} operators write over what the one before them wrote, and are scheduled as one with it"
    operators = tuple(found.one(group) for group in groups)
    return replace(graph, operators=operators, notes=(*graph.notes, note))


class _Search:
    """Which operator joins the group of operators before it."""

    def __init__(self, graph: TrainingGraph, runtime: Runtime) -> None:
        self.graph = graph
        self.runtime = runtime
        self.kept = kept_tensors(graph)
        self.readers: dict[str, list[Operator]] = {}
        for operator in graph.operators:
            for name in dict.fromkeys(map(graph.root, operator.inputs)):
                self.readers.setdefault(name, []).append(operator)
        own = (working_set_bytes(operator, graph, runtime) for operator in graph.operators if not operator.view)
        self.room = max(own, default=0)

    def one(self, group: Sequence[Operator]) -> Operator:
        """The operator that a group is scheduled as."""
        if len(group) == 1:
            return group[0]
        kinds = [operator.kind for operator in group if not operator.view]
        return joined(group, self.graph, self.kept, TOGETHER.join(kinds))

    def joins(self, group: Sequence[Operator], views: Sequence[Operator], operator: Operator) -> bool:
        """Whether `operator` works in place on what `group` wrote; `views` are what stands between them."""
        before = group[-1]
        if before.view or before.backward != operator.backward:
            return False
        if any(not one.recomputable or one.over for one in (before, operator)):
            return False
        graph = self.graph
        between = {view.name for view in views}
        for name in before.outputs:
            readers = [reader.name for reader in self.readers.get(name, ()) if reader.name not in between]
            if readers != [operator.name] or name in self.kept or graph.tensors[name].resident:
                continue
            if all(graph.root(view.inputs[0]) == name for view in views):
                return self._fits(group, views, operator, name)
        return False

    def _fits(self, group: Sequence[Operator], views: Sequence[Operator], operator: Operator, name: str) -> bool:
        """Whether the joined operator has `name` where its output is, and needs no more than its parts."""
        graph, tensors, runtime = self.graph, self.graph.tensors, self.runtime
        writer, both = self.one(group), self.one([*group, *views, operator])
        layout = runtime.workspace(both, tensors)
        written = layout.storage.get(name, "")
        if written not in operator.outputs or tensors[written].nbytes != tensors[name].nbytes:
            return False
        if layout.temporaries_bytes > max(runtime.workspace(o, tensors).temporaries_bytes for o in (writer, operator)):
            return False
        if operator.backward and self._roots(operator) - {name} - self._roots(writer):
            return False
        beside = [n for n in both.outputs if n != written and not tensors[graph.root(n)].resident]
        if any(tensors[n].nbytes * SIDE > tensors[name].nbytes for n in beside):
            return False
        meanwhile = sum(tensors[n].nbytes for n in beside if n not in operator.outputs)
        apart = max(working_set_bytes(writer, graph, runtime), working_set_bytes(operator, graph, runtime) + meanwhile)
        return working_set_bytes(both, graph, runtime) <= min(apart + tensors[name].nbytes // CRUMBS, self.room)

    def _roots(self, operator: Operator) -> set[str]:
        """What an operator reads that is not resident."""
        roots = {self.graph.root(name) for name in operator.inputs}
        return {root for root in roots if not self.graph.tensors[root].resident}
