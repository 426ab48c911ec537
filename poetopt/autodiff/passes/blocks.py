"""The order of operators that takes the least memory, and a network of equal blocks ordered once for all of them.

The order of operators: topological, deterministic, and low in memory.

Forward operators keep the order of the file, which the model's author (or exporter) chose depth
first. Backward operators are list-scheduled: of all that are ready, the one runs that leaves the fewest
live bytes behind, so a weight gradient runs as soon as its activation can be let go, and contributions are
summed as soon as they are there. Ties go to the order in which the reverse loop emitted them. What updates a tensor
waits for all that read the old value: of a weight, the gradient by the input comes before the gradient by the weight,
where that is one operator with the update.

Coarser scheduling: chains of cheap operators become one operator each.

A block is a set of operators that ends in one of them: whatever the others write is read within the block alone,
directly or through views, but for what is resident and for small side outputs (a batch's statistics). Its nodes run
one after another in the order that they had, so results don't change by a bit; what the members passed to one another
is the block's workspace, packed like any operator's temporaries (`Runtime.workspace`). The schedule can no longer keep,
page or free such a tensor on its own, and recomputes all of a block or nothing: that is what a shorter problem costs.

Cheap is what takes about as long as reading and writing its tensors: element-wise ops, views, copies, sums over axes,
normalizations. Not joined: what may run only once, what works in place, forward with backward, and what would make
the block's working set larger than the largest of any operator on its own, so that the least RAM stays as it is.
Forward operators are joined with the next only, which keeps their order; backward ones are put in order again.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from poetopt.autodiff.passes.in_place import SIDE, joined, kept_tensors, working_set_bytes
from poetopt.graph import Operator, Tensor, TrainingGraph
from poetopt.ops.flops import work
from poetopt.ops.op import op_of
from poetopt.ops.runtimes.contract import Runtime


def low_memory_order(operators: Sequence[Operator], tensors: Mapping[str, Tensor]) -> tuple[Operator, ...]:
    """`operators`, which are in some topological order, in one that keeps fewer bytes alive."""
    forward = [operator for operator in operators if not operator.backward]
    backward = [operator for operator in operators if operator.backward]
    return (*forward, *_greedy(backward, tensors, _roots(operators)))


def _roots(operators: Sequence[Operator]) -> dict[str, str]:
    roots: dict[str, str] = {}
    for operator in operators:
        if operator.view:
            roots[operator.outputs[0]] = roots.get(operator.inputs[0], operator.inputs[0])
    return roots


def _greedy(operators: Sequence[Operator], tensors: Mapping[str, Tensor], roots: Mapping[str, str]) -> list[Operator]:
    """List scheduling on the change of live bytes.

    A heap holds the ready operators. The change that an operator makes falls whenever it becomes the
    last reader of a tensor, and only then: those operators are pushed again, and stale entries skipped.
    """
    size = {name: 0 if t.resident else t.nbytes for name, t in tensors.items()}
    reads = [
        tuple(dict.fromkeys(roots.get(n, n) for n in operator.inputs if not tensors[n].resident))
        for operator in operators
    ]
    waiting, followers = _waiting(operators, roots)
    users: dict[str, set[int]] = {}
    for k, operator in enumerate(operators):
        if not operator.view:
            for root in reads[k]:
                users.setdefault(root, set()).add(k)

    def change(k: int) -> int:
        if operators[k].view:
            return -(2**62)
        made = sum(size[name] for name in operators[k].outputs if users.get(name))
        return made - sum(size[root] for root in reads[k] if len(users[root]) == 1)

    ready = [(change(k), k) for k in range(len(operators)) if waiting[k] == 0]
    heapq.heapify(ready)
    done: set[int] = set()
    order: list[Operator] = []
    while ready:
        cost, k = heapq.heappop(ready)
        if k in done or cost != change(k):
            continue
        done.add(k)
        order.append(operators[k])
        for follower in followers[k]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (change(follower), follower))
        if not operators[k].view:
            for root in reads[k]:
                users[root].discard(k)
                if len(users[root]) == 1:
                    (last,) = users[root]
                    if waiting[last] == 0:
                        heapq.heappush(ready, (change(last), last))
    return order


def _waiting(operators: Sequence[Operator], roots: Mapping[str, str]) -> tuple[list[int], list[list[int]]]:
    """Says how many of the others each operator waits for, and which wait for it."""
    produced = {name: k for k, operator in enumerate(operators) for name in operator.outputs}
    readers: dict[str, list[int]] = {}
    for k, operator in enumerate(operators):
        for name in dict.fromkeys(roots.get(name, name) for name in operator.inputs):
            readers.setdefault(name, []).append(k)
    before = [{produced[name] for name in operator.inputs if name in produced} for operator in operators]
    for k, operator in enumerate(operators):
        before[k].update(reader for old, _ in operator.updates for reader in readers[old] if reader != k)
    followers: list[list[int]] = [[] for _ in operators]
    for k, found in enumerate(before):
        for other in sorted(found):
            followers[other].append(k)
    return [len(found) for found in before], followers


GRANULARITIES = ("operator", "block")
"""One scheduled operator for each ONNX op or gradient, or chains of cheap ones together."""

KIND = "Block"
"""How the kinds of blocks begin."""


def blocks(graph: TrainingGraph, runtime: Runtime) -> TrainingGraph:
    """`graph` with chains of cheap operators joined; each block has the name and the place of its last operator."""
    joiner = _Joiner(graph, runtime)
    sinks = joiner.run()
    operators: list[Operator] = []
    members: dict[int, list[Operator]] = {}
    for k, operator in enumerate(graph.operators):
        sink = sinks[k]
        members.setdefault(sink, []).append(operator)
        if sink == k:
            group = members[sink]
            operators.append(operator if len(group) == 1 else _block(group, graph, joiner.kept))
    operators = list(low_memory_order(operators, graph.tensors))
    before, after = (sum(not o.view for o in found) for found in (graph.operators, operators))
    count = sum(len(group) > 1 for group in members.values())
    note = f"granularity block: {before} operators became {after}, {count} of them blocks"
    return replace(graph, operators=tuple(operators), notes=(*graph.notes, note))


def is_block(operator: Operator) -> bool:
    """Says whether an operator is a block: not every one of several operators is."""
    return operator.kind.startswith(f"{KIND}.")


def _block(members: Sequence[Operator], graph: TrainingGraph, kept: Set[str]) -> Operator:
    return joined(members, graph, kept, f"{KIND}.{members[-1].kind}")


class _Joiner:
    """Groups operators: backwards through the graph, each operator joins the block of all its readers."""

    def __init__(self, graph: TrainingGraph, runtime: Runtime) -> None:
        self.graph = graph
        self.runtime = runtime
        self.operators = graph.operators
        self.place = {operator.name: k for k, operator in enumerate(graph.operators)}
        self.block = list(range(len(graph.operators)))
        self.members: dict[int, list[int]] = {k: [k] for k in self.block}
        self.kept = kept_tensors(graph)
        own = (working_set_bytes(operator, graph, runtime) for operator in graph.operators if not operator.view)
        self.room = max(own, default=0)

    def run(self) -> list[int]:
        """The place of the sink of each operator's block, which for most is their own."""
        for k in reversed(range(len(self.operators))):
            sink = self._shared(k)
            if sink is not None and self._fits(k, sink):
                self.members[sink] += self.members.pop(k)
                self.block[k] = sink
        self._drop_leading_views()
        return self.block

    def _shared(self, k: int) -> int | None:
        """The block that all readers of operator k are in, small side outputs apart, where k may join it."""
        operator = self.operators[k]
        if not self._cheap(k):
            return None
        tensors, readers = self.graph.tensors, self.graph.readers
        largest = max(tensors[name].nbytes for name in (*operator.inputs, *operator.outputs))
        sinks: set[int] = set()
        later: set[int] = set()
        for name in operator.outputs:
            places = {self.place[reader.name] for reader in readers.get(name, ())}
            resident = tensors[self.graph.root(name)].resident
            if resident or name in self.kept or tensors[name].nbytes * SIDE <= largest:
                later |= places
            else:
                sinks |= {self.block[place] for place in places}
        if len(sinks) != 1:
            return None
        (sink,) = sinks
        last = self.operators[sink]
        if last.view or not self._cheap(sink) or last.backward != operator.backward:
            return None
        if any(self.block[place] != sink and place < sink for place in later):
            return None
        if not operator.backward and any(self._apart(m, sink) for m in range(k + 1, sink)):
            return None
        # operators that one block may have: recomputing any of it is recomputing all of it
        return sink if len(self.members[sink]) < 32 else None

    def _apart(self, k: int, sink: int) -> bool:
        return self.block[k] != sink and not self.operators[k].view

    def _fits(self, k: int, sink: int) -> bool:
        members = [self.operators[m] for m in sorted((*self.members[sink], k))]
        block = _block(members, self.graph, self.kept)
        return working_set_bytes(block, self.graph, self.runtime) <= self.room

    def _drop_leading_views(self) -> None:
        """Views of what a block reads stay outside: there they share its bytes with all their readers."""
        for k, operator in enumerate(self.operators):
            sink = self.block[k]
            if operator.view and sink != k:
                producer = self.graph.producers.get(operator.inputs[0])
                if producer is None or self.block[self.place[producer.name]] != sink:
                    self.members[sink].remove(k)
                    self.block[k] = k

    def _cheap(self, k: int) -> bool:
        operator = self.operators[k]
        heavy = any(node.domain or op_of(node.op_type).is_heavy for node in operator.nodes)
        if operator.over or not operator.recomputable or heavy:
            return False
        nodes = work(operator, self.graph.tensors)
        # the most that a cheap node computes for each byte that it moves: all element-wise ops, and products with a
        # vector
        return all(node.flops <= 6.0 * node.nbytes for node in nodes)
