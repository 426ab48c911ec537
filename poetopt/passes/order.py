"""The order of operators: topological, deterministic, and low in memory.

Forward operators keep the order of the file, which the model's author (or exporter) chose depth
first. Backward operators are list-scheduled: of all that are ready, the one runs that leaves the fewest
live bytes behind, so a weight gradient runs as soon as its activation can be let go, and contributions are
summed as soon as they are there. Ties go to the order in which the reverse loop emitted them. What updates a tensor
waits for all that read the old value: of a weight, the gradient by the input comes before the gradient by the weight,
where that is one operator with the update.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from poetopt.graph import Operator, Tensor


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
    """How many of the others each operator waits for, and which wait for it."""
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
