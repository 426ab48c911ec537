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

Backward operators that write their output over what they read, where that lowers the RAM that the step needs.

A gradient dX that is as large as dY can be written over dY, where nobody else reads dY. It stays another tensor, which
is kept, paged and freed by itself; the two share a place while the operator runs. The runtime says whether and how its
kernels can do it (`TakesOver.taking`): what they pass to one another is in the way, unless they go slice by slice,
which takes time. So only those operators do it whose working sets would be above all others'.

An operator that takes over an input runs once: the input is gone, and to run again it would need that made anew. No
forward operator does, as these are what is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from poetopt.graph import TOGETHER, Operator, TrainingGraph, Whole
from poetopt.ops.runtimes.contract import Runtime, RuntimeVariant, TakesOver

SIDE = 8
"""A side output has at most one such part of the bytes of the largest tensor that its operator reads or writes."""


def joined(members: Sequence[Operator], graph: TrainingGraph, kept: Set[str], kind: str) -> Operator:
    """One operator of `members`, which are in order: it has the name of the last, and all their nodes.

    graph
        Where they come from; who reads what one of them writes is asked of it.
    kept
        What must leave the joined operator in any case: see `kept_tensors`.
    """
    last = members[-1]
    inside = {operator.name for operator in members}
    written = dict.fromkeys(name for operator in members for name in operator.outputs)
    read = dict.fromkeys(name for operator in members for name in operator.inputs if name not in written)

    def leaves(name: str) -> bool:
        if name in last.outputs or name in kept or graph.tensors[graph.root(name)].resident:
            return True
        return any(reader.name not in inside for reader in graph.readers.get(name, ()))

    return replace(
        last,
        kind=kind,
        nodes=tuple(node for operator in members for node in operator.nodes),
        inputs=tuple(read),
        outputs=tuple(name for name in written if leaves(name)),
        updates=tuple(pair for operator in members for pair in operator.updates),
        recomputable=all(operator.recomputable for operator in members),
        meaning=None,
        whole=tuple(_wholes(members)),
        members=tuple(
            name for operator in members if not operator.view for name in operator.members or (operator.name,)
        ),
    )


def _wholes(members: Sequence[Operator]) -> Iterator[Whole]:
    """The members' runs of nodes, by their places among all nodes."""
    before = 0
    for operator in members:
        yield from (replace(whole, first=before + whole.first) for whole in operator.whole)
        before += len(operator.nodes)


def kept_tensors(graph: TrainingGraph) -> frozenset[str]:
    """Gives what somebody outside of the step wants: outputs, the step's results, and whose bytes they are."""
    kept = {*graph.outputs, *graph.results}
    return frozenset({graph.root(name) for name in kept} | kept)


def working_set_bytes(operator: Operator, graph: TrainingGraph, runtime: Runtime) -> int:
    """Gives what an operator needs in RAM while it runs: inputs, outputs and temporaries, without what is resident."""
    roots = {graph.root(name) for name in (*operator.inputs, *operator.outputs)}
    held = sum(graph.tensors[root].nbytes for root in roots if not graph.tensors[root].resident)
    return held + runtime.workspace(operator, graph.tensors).temporaries_bytes


CRUMBS = 32
"""Bytes that are let pass: one such part of the operand. BatchNormalization's temporaries are some hundred bytes."""


MOST_JOINED = 8
"""Operators that become one, at most: each that joins is asked with all of those before it. The zoo's join three."""


def in_place(graph: TrainingGraph, runtime: Runtime) -> TrainingGraph:
    """`graph` with every operator that works in place as one with the operator before it, under its own name.

    Chains join as well: of BatchNormalization, Add and Relu one operator is left. Its `kind` is theirs with `+`
    between, its `members` are their names. A graph in which nothing joins is returned as it is.

    Raises `ModelError` where a node names a tensor that the graph lacks.
    """
    found = _InPlaceSearch(graph, runtime)
    groups: list[list[Operator]] = []
    views: list[Operator] = []
    for operator in graph.operators:
        if operator.view:
            views.append(operator)
            continue
        if groups and len(groups[-1]) < MOST_JOINED and found.joins(groups[-1], views, operator):
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


class _InPlaceSearch:
    """Says which operator joins the group of operators before it."""

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
        """Says whether `operator` works in place on what `group` wrote; `views` are what stands between them."""
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
        """Says whether the joined operator has `name` where its output is, and needs no more than its parts."""
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
        """Gives what an operator reads that is not resident."""
        roots = {self.graph.root(name) for name in operator.inputs}
        return {root for root in roots if not self.graph.tensors[root].resident}


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
    asked = _TakingAsked(graph, runtime, runtime)
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


class _TakingAsked:
    """Holds what an operator may take over, and what it needs then."""

    def __init__(self, graph: TrainingGraph, runtime: Runtime, over: TakesOver) -> None:
        self.graph, self.runtime, self.over = graph, runtime, over
        self.kept = kept_tensors(graph)
        self.values = graph.constants
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
