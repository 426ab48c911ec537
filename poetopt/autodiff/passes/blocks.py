"""An order of operators that is low in memory, and chains of cheap operators joined into blocks.

The order is topological and deterministic. Forward operators keep the order of the file. Backward operators are
list-scheduled: of all ready operators, the one that leaves the fewest live bytes runs next. A weight gradient
therefore runs as soon as its activation can be freed, and contributions are summed early. Ties keep the order in which
the reverse loop emitted the operators. An operator that updates a tensor waits for all readers of the old value: for
example, where a weight's gradient and update are one operator, the gradient by the layer's input runs before it.

A block is a set of operators that ends in one of them. Only the block reads the tensors of the other members, directly
or through views, except for resident tensors and small side outputs (a batch's statistics). Its nodes run in their
order, so that results keep their bits. Tensors between members are the block's workspace, packed like any operator's
temporaries (`Runtime.workspace`). A schedule of blocks is a smaller problem, but it can't keep, page or free a tensor
inside a block, and recomputes a block as a whole.

An operator is cheap if it takes about as long as reading and writing its tensors: element-wise ops, views, copies, sums
over axes, normalizations. A block contains no operator that may run only once or that works in place, and doesn't mix
forward and backward. Its working set is at most the largest of any single operator, so that the least RAM doesn't grow.
A forward operator joins only the next one, which keeps the order; backward operators are ordered again afterwards.
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
    """Return `operators`, which are in topological order, in an order that keeps fewer bytes alive."""
    forward = [operator for operator in operators if not operator.backward]
    backward = [operator for operator in operators if operator.backward]
    return (*forward, *_schedule_list(backward, tensors, _roots(operators)))


def _roots(operators: Sequence[Operator]) -> dict[str, str]:
    roots: dict[str, str] = {}
    for operator in operators:
        if operator.view:
            roots[operator.outputs[0]] = roots.get(operator.inputs[0], operator.inputs[0])
    return roots


def _schedule_list(
    operators: Sequence[Operator], tensors: Mapping[str, Tensor], roots: Mapping[str, str]
) -> list[Operator]:
    """Schedule operators from a list of ready ones by the change of live bytes.

    A heap holds the ready operators. An operator's change of live bytes falls only when it becomes the last reader of
    a tensor; it is then pushed again, and stale entries are skipped.
    """
    size = {name: 0 if t.resident else t.nbytes for name, t in tensors.items()}
    reads = [
        tuple(dict.fromkeys(roots.get(n, n) for n in operator.inputs if not tensors[n].resident))
        for operator in operators
    ]
    waiting, followers = _dependencies(operators, roots)
    users: dict[str, set[int]] = {}
    for k, operator in enumerate(operators):
        if not operator.view:
            for root in reads[k]:
                users.setdefault(root, set()).add(k)

    def change(k: int) -> int:
        if operators[k].view:
            return -(2**62)
        written = sum(size[name] for name in operators[k].outputs if users.get(name))
        return written - sum(size[root] for root in reads[k] if len(users[root]) == 1)

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


def _dependencies(operators: Sequence[Operator], roots: Mapping[str, str]) -> tuple[list[int], list[list[int]]]:
    """Return the number of operators that each operator waits for, and the operators that wait for it."""
    produced = {name: k for k, operator in enumerate(operators) for name in operator.outputs}
    readers: dict[str, list[int]] = {}
    for k, operator in enumerate(operators):
        for name in dict.fromkeys(roots.get(name, name) for name in operator.inputs):
            readers.setdefault(name, []).append(k)
    predecessors = [{produced[name] for name in operator.inputs if name in produced} for operator in operators]
    for k, operator in enumerate(operators):
        predecessors[k].update(reader for old, _ in operator.updates for reader in readers[old] if reader != k)
    followers: list[list[int]] = [[] for _ in operators]
    for k, waited_for in enumerate(predecessors):
        for other in sorted(waited_for):
            followers[other].append(k)
    return [len(waited_for) for waited_for in predecessors], followers


GRANULARITIES = ("operator", "block")
"""Granularities of a schedule: an operator for each ONNX op or gradient, or one for a chain of cheap operators."""

KIND = "Block"
"""Prefix of the kinds of blocks."""


def blocks(graph: TrainingGraph, runtime: Runtime) -> TrainingGraph:
    """Return `graph` with chains of cheap operators as blocks, each with name and position of its last operator."""
    joiner = _BlockSearch(graph, runtime)
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
    before, after = (sum(not o.view for o in ops) for ops in (graph.operators, operators))
    count = sum(len(group) > 1 for group in members.values())
    note = f"granularity block: {before} operators became {after}, {count} of them blocks"
    return replace(graph, operators=tuple(operators), notes=(*graph.notes, note))


def is_block(operator: Operator) -> bool:
    """Return whether an operator is a block; other passes join operators too."""
    return operator.kind.startswith(f"{KIND}.")


def _block(members: Sequence[Operator], graph: TrainingGraph, kept: Set[str]) -> Operator:
    return joined(members, graph, kept, f"{KIND}.{members[-1].kind}")


class _BlockSearch:
    """Search for blocks: backwards through the graph, each operator joins the block that has all its readers."""

    def __init__(self, graph: TrainingGraph, runtime: Runtime) -> None:
        self.graph = graph
        self.runtime = runtime
        self.operators = graph.operators
        self.place = {operator.name: k for k, operator in enumerate(graph.operators)}
        self.block = list(range(len(graph.operators)))
        self.members: dict[int, list[int]] = {k: [k] for k in self.block}
        self.kept = kept_tensors(graph)
        working_sets = (
            working_set_bytes(operator, graph, runtime) for operator in graph.operators if not operator.view
        )
        self.room = max(working_sets, default=0)

    def run(self) -> list[int]:
        """Return the position of the last operator of each operator's block, for most operators their own."""
        for k in reversed(range(len(self.operators))):
            sink = self._common_block(k)
            if sink is not None and self._is_small_enough(k, sink):
                self.members[sink] += self.members.pop(k)
                self.block[k] = sink
        self._drop_leading_views()
        return self.block

    def _common_block(self, k: int) -> int | None:
        """Return the block with all readers of operator k but those of side outputs if k may join it, else None."""
        operator = self.operators[k]
        if not self._is_cheap(k):
            return None
        tensors, readers = self.graph.tensors, self.graph.readers
        largest_bytes = max(tensors[name].nbytes for name in (*operator.inputs, *operator.outputs))
        sinks: set[int] = set()
        outer_readers: set[int] = set()
        for name in operator.outputs:
            places = {self.place[reader.name] for reader in readers.get(name, ())}
            resident = tensors[self.graph.root(name)].resident
            if resident or name in self.kept or tensors[name].nbytes * SIDE <= largest_bytes:
                outer_readers |= places
            else:
                sinks |= {self.block[place] for place in places}
        if len(sinks) != 1:
            return None
        (sink,) = sinks
        sink_operator = self.operators[sink]
        if sink_operator.view or not self._is_cheap(sink) or sink_operator.backward != operator.backward:
            return None
        if any(self.block[place] != sink and place < sink for place in outer_readers):
            return None
        if not operator.backward and any(self._blocks_order(m, sink) for m in range(k + 1, sink)):
            return None
        # at most 32 operators per block, as recomputing one recomputes all
        return sink if len(self.members[sink]) < 32 else None

    def _blocks_order(self, k: int, sink: int) -> bool:
        return self.block[k] != sink and not self.operators[k].view

    def _is_small_enough(self, k: int, sink: int) -> bool:
        members = [self.operators[m] for m in sorted((*self.members[sink], k))]
        block = _block(members, self.graph, self.kept)
        return working_set_bytes(block, self.graph, self.runtime) <= self.room

    def _drop_leading_views(self) -> None:
        """Remove views of a block's inputs from it, so that all readers of the input share its bytes."""
        for k, operator in enumerate(self.operators):
            sink = self.block[k]
            if operator.view and sink != k:
                producer = self.graph.producers.get(operator.inputs[0])
                if producer is None or self.block[self.place[producer.name]] != sink:
                    self.members[sink].remove(k)
                    self.block[k] = k

    def _is_cheap(self, k: int) -> bool:
        operator = self.operators[k]
        heavy = any(node.domain or op_of(node.op_type).is_heavy for node in operator.nodes)
        if operator.over or not operator.recomputable or heavy:
            return False
        nodes = work(operator, self.graph.tensors)
        # 6 floating-point operations per byte include all element-wise ops, and products with a vector
        return all(node.flops <= 6.0 * node.nbytes for node in nodes)
