"""A weight gradient and its update as one operator, where nobody else reads the gradient.

The gradient is then a temporary of that operator, however many parameters it has gradients of (a normalization's scale
and bias). Where a parameter has several uses, the last sum of their gradients is in it, and the last of the summands.
The operator runs once, as an update does. It may not wait for itself: where something that it writes besides is needed
by a reader of the old parameter, the update stays an operator of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from poetopt.autodiff.passes.in_place import joined, kept_tensors
from poetopt.graph import TOGETHER, Operator, TrainingGraph

ACCUMULATE = "Add.accumulate"


def fused(graph: TrainingGraph, gradients: Mapping[str, str]) -> TrainingGraph:
    """`graph` with each update joined with what its gradient comes of, under the update's name and at its place.

    gradients
        For each trained parameter, the name of the gradient that its update reads.
    """
    groups = _Search(graph).groups(gradients)
    kept = kept_tensors(graph)
    operators: list[Operator] = []
    for k, operator in enumerate(graph.operators):
        members = groups.get(k, [k])
        if k != members[-1]:
            continue
        if len(members) == 1:
            operators.append(operator)
            continue
        group = [graph.operators[m] for m in members]
        kinds = [member.kind for member in group if not member.view]
        operators.append(joined(group, graph, kept, TOGETHER.join(kinds)))
    return replace(graph, operators=tuple(operators))


class _Search:
    """Which operators go together, by their places."""

    def __init__(self, graph: TrainingGraph) -> None:
        self.graph = graph
        self.operators = graph.operators
        self.kept = kept_tensors(graph)
        self.writer = {name: k for k, operator in enumerate(self.operators) for name in operator.outputs}
        self.updater = {old: k for k, operator in enumerate(self.operators) for old, _ in operator.updates}
        self.readers: dict[str, list[int]] = {}
        for k, operator in enumerate(self.operators):
            for name in operator.inputs:
                self.readers.setdefault(name, []).append(k)
        self.group: dict[int, list[int]] = {}

    def groups(self, gradients: Mapping[str, str]) -> Mapping[int, Sequence[int]]:
        """For each operator of a group, all of the group, ascending."""
        for name, gradient in gradients.items():
            chain = list(self._chain(gradient, self.updater[name]))
            together = sorted({self.updater[name]}.union(*(self.group.get(k, (k,)) for k in chain)))
            if any(not self.operators[k].view for k in chain) and not self._waits_for_itself(together):
                self.group.update(dict.fromkeys(together, together))
        return self.group

    def _chain(self, name: str, reader: int) -> Iterator[int]:
        """What leads to the gradient `name` and to nothing else, from the operator that writes it upwards."""
        while name in self.writer and self.readers[name] == [reader]:
            reader = self.writer[name]
            operator = self.operators[reader]
            if not operator.backward or not operator.recomputable or name in self.kept:
                return
            yield reader
            if operator.view:
                name = operator.inputs[0]
            elif operator.kind == ACCUMULATE:
                name = max(operator.inputs, key=lambda read: self.writer.get(read, -1))
            else:
                return

    def _waits_for_itself(self, together: Sequence[int]) -> bool:
        """Whether something must run after `together`, and before it too."""
        ahead = list(together)
        seen: set[int] = set()
        while ahead:
            k = ahead.pop()
            for follower in self._followers(k):
                if follower in together:
                    if k not in together:
                        return True
                elif follower not in seen:
                    found = self.group.get(follower, (follower,))
                    seen.update(found)
                    ahead.extend(found)
        return False

    def _followers(self, k: int) -> Iterator[int]:
        """What may run only after operator k: what reads what it writes, and what updates what it reads."""
        operator = self.operators[k]
        for name in operator.outputs:
            yield from self.readers.get(name, ())
        for name in operator.inputs:
            updater = self.updater.get(self.graph.root(name))
            if updater is not None:
                yield updater
