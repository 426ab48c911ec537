"""Other orders of the same operators: what may go where, and the problem with its operators in another order.

An *order* is a sequence of operator indices of the given problem. It is valid where every operator comes after those
that it depends on, and where forward and backward operators stay on their sides of each other, so that scopes
that speak of forward operators and backward stages mean the same schedules in every order.

A problem knows only what is scheduled. What an operator needs of the resident region (a gradient that another
one accumulates into, in place) is in the training graph alone, so dependences are read there where there is a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poetopt.graph import Operator, TrainingGraph
from poetopt.problem import Problem
from poetopt.schedule import Schedule


@dataclass(frozen=True)
class Precedence:
    """What comes before what, by operator index of the given problem.

    before, after
        For each operator those that it directly depends on, and those that directly depend on it, ascending.
    backward
        For each operator its side.
    """

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    backward: tuple[bool, ...]

    @classmethod
    def of(cls, problem: Problem) -> Precedence:
        """The dependences of `problem`, from its training graph where it has one."""
        before = _of_tensors(problem) if problem.graph is None else _of_graph(problem, problem.graph)
        after: list[list[int]] = [[] for _ in before]
        for k, earlier in enumerate(before):
            for j in earlier:
                after[j].append(k)
        return cls(
            tuple(tuple(sorted(ks)) for ks in before),
            tuple(tuple(ks) for ks in after),
            tuple(operator.backward for operator in problem.operators),
        )

    def allows(self, order: Sequence[int]) -> bool:
        """Whether `order` is a valid order of all operators."""
        if sorted(order) != list(range(len(self.before))):
            return False
        place = {k: at for at, k in enumerate(order)}
        if any(place[j] > place[k] for k, earlier in enumerate(self.before) for j in earlier):
            return False
        return [self.backward[k] for k in order] == list(self.backward)

    def window(self, order: Sequence[int], at: int) -> tuple[int, int]:
        """The first and last place that the operator at place `at` of a valid order can move to, others in order."""
        k = order[at]
        blocked, waiting = set(self.before[k]), set(self.after[k])
        low = high = at
        while low and order[low - 1] not in blocked and self.backward[order[low - 1]] == self.backward[k]:
            low -= 1
        last = len(order) - 1
        while high < last and order[high + 1] not in waiting and self.backward[order[high + 1]] == self.backward[k]:
            high += 1
        return low, high


def _of_tensors(problem: Problem) -> list[set[int]]:
    before = [
        {problem.tensors[i].producer for i in operator.inputs if problem.tensors[i].computed}
        for operator in problem.operators
    ]
    for k, operator in enumerate(problem.operators):
        for updater in operator.updaters:
            before[updater].add(k)
    return before


def _of_graph(problem: Problem, graph: TrainingGraph) -> list[set[int]]:
    """Dependences through any tensor, resident ones included; a view passes those of its inputs on.

    What updates a tensor comes after all that read the old value.
    """
    index = {operator.name: k for k, operator in enumerate(problem.operators)}
    writers: dict[str, set[int]] = {}
    readers: dict[str, set[int]] = {}
    found: dict[int, set[int]] = {}
    for operator in graph.operators:
        needed = {j for name in operator.inputs for j in writers.get(name, ())}
        if not operator.view:
            k = index[operator.name]
            for name in operator.inputs:
                readers.setdefault(graph.root(name), set()).add(k)
            found[k] = needed.union(*(readers[old] for old, _ in operator.updates)) - {k}
            needed = {k}
        for name in operator.outputs:
            writers[name] = needed
    return [found[k] for k in range(len(problem.operators))]


def reordered(problem: Problem, order: Sequence[int]) -> Problem:
    """`problem` with its operators in `order`, which must be valid; tensors are numbered as `cost` numbers them.

    The graph behind it is reordered too: what is solved, saved, loaded and executed is one and the same.
    """
    if list(order) == list(range(len(problem.operators))):
        return problem
    tensors = _tensors(problem, order)
    tensor_at = {i: at for at, i in enumerate(tensors)}
    operator_at = {k: at for at, k in enumerate(order)}

    return replace(
        problem,
        operators=tuple(problem.operators[k].renumbered(tensor_at, operator_at) for k in order),
        tensors=tuple(problem.tensors[i].renumbered(operator_at) for i in tensors),
        graph=problem.graph and _reordered_graph(problem.graph, [problem.operators[k].name for k in order]),
    )


def _tensors(problem: Problem, order: Sequence[int]) -> list[int]:
    """The tensors of `problem` as they are numbered in `order`."""
    return [*problem.given, *(i for k in order for i in problem.operators[k].outputs)]


def schedule_into(problem: Problem, order: Sequence[int], schedule: Schedule) -> Schedule:
    """A schedule of `problem` in `order`: what came right before an operator still does, and page-outs right after.

    It may be no valid schedule there.
    """
    tensor_at = {i: at for at, i in enumerate(_tensors(problem, order))}
    operator_at = {k: at for at, k in enumerate(order)}
    return Schedule(
        frozenset((operator_at[stage], operator_at[k]) for stage, k in schedule.recomputes),
        frozenset((operator_at[stage], tensor_at[i]) for stage, i in schedule.page_ins),
        frozenset((operator_at[stage - 1] + 1 if stage else 0, tensor_at[i]) for stage, i in schedule.page_outs),
        frozenset((operator_at[stage], operator_at[k], variant) for stage, k, variant in schedule.variants),
    )


def schedule_from(problem: Problem, order: Sequence[int], schedule: Schedule) -> Schedule:
    """The inverse: a schedule of the problem in `order` as one of `problem`."""
    tensors = _tensors(problem, order)
    return Schedule(
        frozenset((order[stage], order[at]) for stage, at in schedule.recomputes),
        frozenset((order[stage], tensors[at]) for stage, at in schedule.page_ins),
        frozenset((order[stage - 1] + 1 if stage else 0, tensors[at]) for stage, at in schedule.page_outs),
        frozenset((order[stage], order[at], variant) for stage, at, variant in schedule.variants),
    )


def reordered_like(problem: Problem, names: Sequence[str]) -> Problem:
    """`problem` with its operators in the order of `names`; itself where that is no valid order of its operators."""
    index = {operator.name: k for k, operator in enumerate(problem.operators)}
    order = [index[name] for name in names if name in index]
    return reordered(problem, order) if Precedence.of(problem).allows(order) else problem


def _reordered_graph(graph: TrainingGraph, names: Sequence[str]) -> TrainingGraph:
    """The graph with its operators in the order of `names`, and each view right after what it is a view of."""
    operators = {operator.name: operator for operator in graph.operators}
    made_by_view = {name for operator in graph.operators if operator.view for name in operator.outputs}
    views: dict[str, list[Operator]] = {}
    for operator in graph.operators:
        if operator.view:
            views.setdefault(operator.inputs[0], []).append(operator)
    placed: list[Operator] = []

    def follow(made: Sequence[str]) -> None:
        waiting = [view for name in made for view in views.get(name, ())]
        while waiting:
            view = waiting.pop(0)
            placed.append(view)
            waiting += [other for name in view.outputs for other in views.get(name, ())]

    written = {name for operator in graph.operators for name in operator.outputs}
    follow([name for name in views if name not in written and name not in made_by_view])
    for name in names:
        placed.append(operators[name])
        follow(operators[name].outputs)
    return replace(graph, operators=tuple(placed))
