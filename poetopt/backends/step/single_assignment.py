"""A plan in single assignment: its order as a graph, where each recompute is an operator of its own.

Who runs the operators in that order, and frees each tensor after its last reader, has the plan's recomputes and its
memory. Storage isn't said: what the plan pages stays in RAM, from its making to its last reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from poetopt.autodiff.passes.in_place import kept_tensors
from poetopt.backends.step.places import graph_of, in_parts
from poetopt.graph import Operator, Tensor, TrainingGraph
from poetopt.graph.problem import Home
from poetopt.plan.instructions import Action, Plan
from poetopt.util.errors import PlanError

AGAIN = ".again"
"""What the names of a recompute, and of what it writes, end with."""


@dataclass(frozen=True)
class SingleAssignment:
    """A plan's order as a graph.

    graph
        Its operators are those of the plan, recomputes included, and views where they are first read.
    recomputes
        How many operators are computed again.
    kept
        The tensors that the plan has on storage for a while, by their index: here they stay in RAM.
    peak_bytes
        The most bytes of the schedule that are live at once, the reserve for kernels included: the plan's own peak
        where nothing is paged.
    """

    graph: TrainingGraph
    recomputes: int
    kept: tuple[int, ...]
    peak_bytes: int


def single_assignment(plan: Plan, graph: TrainingGraph | None = None) -> SingleAssignment:
    """The graph that a plan's order comes to.

    graph
        The training graph, where it isn't the one behind the plan.

    Raises PlanError for a plan without a network, and for one that reads the rows of a table from storage.
    """
    graph = graph_of(plan, graph)
    if graph.parts > 1:
        raise in_parts(plan.problem.name, "a schedule as one ONNX graph")
    if graph.rows:
        raise PlanError(
            f"{plan.problem.name}: the plan reads rows of {', '.join(graph.rows)} from storage, which no ONNX graph "
            "says; solve it with --parameters resident"
        )
    writer = _Writer(graph)
    by_name = {operator.name: operator for operator in graph.operators}
    operators: list[Operator] = []
    for step in plan.instructions:
        if step.action is Action.COMPUTE:
            operators += writer.written(by_name[plan.problem.operators[step.target].name])
    operators += writer.results()
    return SingleAssignment(
        graph=replace(graph, operators=tuple(operators), tensors={**graph.tensors, **writer.made}),
        recomputes=sum(times - 1 for times in writer.times.values()),
        kept=tuple(sorted(set(_stored(plan)))),
        peak_bytes=_peak_bytes(plan),
    )


def _stored(plan: Plan) -> Iterator[int]:
    """The tensors that the plan moves to or from storage, whole or chunk by chunk."""
    for step in plan.instructions:
        if step.action in (Action.PAGE_OUT, Action.PAGE_IN):
            yield step.target
        elif step.action is Action.COMPUTE and step.variant:
            variant = plan.problem.operators[step.target].variants[step.variant - 1]
            yield from (*variant.streamed_in, *variant.streamed_out)


class _Writer:
    """Gives each tensor that is written again a name of its own, which those read who come after."""

    def __init__(self, graph: TrainingGraph) -> None:
        self.graph = graph
        self.made: dict[str, Tensor] = {}
        self.newest: dict[str, str] = {}
        self.views = {operator.outputs[0]: operator for operator in graph.operators if operator.view}
        self.viewed: dict[tuple[str, str], str] = {}
        self.times: Counter[str] = Counter()
        self.names = {node.name for operator in graph.operators for node in operator.nodes}

    def written(self, operator: Operator) -> Iterator[Operator]:
        """The operator with the names that hold now, after the views that it reads."""
        names: dict[str, str] = {}
        for name in operator.inputs:
            yield from self._viewed(name)
            names[name] = self._now(name)
        self.times[operator.name] += 1
        if self.times[operator.name] == 1:
            yield _renamed(operator, names)
            return
        ending = AGAIN if self.times[operator.name] == 2 else f"{AGAIN}{self.times[operator.name] - 1}"
        made = {name: self._made(name, ending) for node in operator.nodes for name in node.outputs if name}
        yield self._copied(operator, {**names, **made}, ending)
        self.newest.update((name, made[name]) for name in operator.outputs)

    def results(self) -> Iterator[Operator]:
        """The views that the step ends with, and that nobody has read."""
        self.newest.clear()
        for name in kept_tensors(self.graph):
            yield from self._viewed(name)

    def _viewed(self, name: str) -> Iterator[Operator]:
        """The view that writes `name` of what holds now, where it is one and isn't there yet."""
        operator = self.views.get(name)
        if operator is None:
            return
        source = operator.inputs[0]
        yield from self._viewed(source)
        now = self._now(source)
        if (name, now) in self.viewed:
            return
        if now == source:
            self.viewed[name, now] = name
            yield operator
            return
        made = {n: self._made(n, AGAIN) for node in operator.nodes for n in node.outputs if n}
        self.viewed[name, now] = made[name]
        yield self._copied(operator, {source: now, **made}, AGAIN)

    def _now(self, name: str) -> str:
        """Gives what `name` is called now."""
        operator = self.views.get(name)
        return self.newest.get(name, name) if operator is None else self.viewed[name, self._now(operator.inputs[0])]

    def _made(self, name: str, ending: str) -> str:
        """A name of its own for what is written again."""
        fresh = f"{name}{ending}"
        while fresh in self.graph.tensors or fresh in self.made:
            fresh += "_"
        self.made[fresh] = replace(self.graph.tensors[name], name=fresh)
        return fresh

    def _copied(self, operator: Operator, names: Mapping[str, str], ending: str) -> Operator:
        """The operator with other tensors, and nodes with names of their own."""
        nodes = []
        for node in operator.nodes:
            name = f"{node.name}{ending}" if node.name else ""
            while name in self.names:
                name += "_"
            self.names |= {name} - {""}
            nodes.append(replace(node, name=name))
        return _renamed(replace(operator, name=f"{operator.name}{ending}", nodes=tuple(nodes)), names)


def _renamed(operator: Operator, names: Mapping[str, str]) -> Operator:
    """The operator with other names of tensors."""

    def called(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in given)

    nodes = tuple(replace(node, inputs=called(node.inputs), outputs=called(node.outputs)) for node in operator.nodes)
    inputs = tuple(dict.fromkeys(called(operator.inputs)))
    return replace(operator, nodes=nodes, inputs=inputs, outputs=called(operator.outputs), meaning=None, whole=())


def _peak_bytes(plan: Plan) -> int:
    """The most bytes live at once where each value is freed after its last reader, and nothing is on storage."""
    problem = plan.problem
    computes = [step.target for step in plan.instructions if step.action is Action.COMPUTE]
    first = {i: -1 for i, tensor in enumerate(problem.tensors) if not tensor.computed and tensor.home is not Home.FLASH}
    last = dict(first)
    spans: list[tuple[int, int, int]] = []
    for k, index in enumerate(computes):
        operator = problem.operators[index]
        last.update((i, k) for i in operator.inputs if i in first)
        for i in operator.outputs:
            if i in first and not (problem.tensors[i].carried or i in operator.inputs):
                spans.append((first[i], last[i], i))
                del first[i]
            first.setdefault(i, k)
            last[i] = k
    last.update((i, len(computes)) for i in first if problem.outlives(i))
    spans += [(first[i], last[i], i) for i in first]
    change = [0] * (len(computes) + 3)
    for begin, end, i in spans:
        change[begin + 1] += problem.tensors[i].nbytes
        change[end + 2] -= problem.tensors[i].nbytes
    live = list(accumulate(change))
    work = (live[k + 1] + problem.extra_bytes[index] for k, index in enumerate(computes))
    return max(live[0], *work, live[len(computes) + 1]) + problem.reserve_bytes
