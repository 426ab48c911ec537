"""BatchNormalization's running statistics as what they are: carried, and updated once a step over themselves.

As autodiff leaves it, a BatchNormalization writes its new statistics beside the old ones, so that it may run again.
Where a step updates in place, an operator of its own does so for the statistics, which runs once; what is left may run
again as often as a schedule wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from poetopt.graph import Node, Operator, TrainingGraph, Whole

KIND = "BatchNormalization.statistics"


def updated_in_place(graph: TrainingGraph, names: Mapping[str, str]) -> tuple[Operator, ...]:
    """The operators of `graph`, with the updates of statistics behind the forward operators.

    names
        Old name of each statistic -> what its new value is called from now on.
    """
    pairs = {new: old for old, new in graph.states.items()}
    forward: list[Operator] = []
    updates: list[Operator] = []
    for operator in graph.operators:
        made = [name for name in operator.outputs if name in pairs]
        if not made:
            forward.append(operator)
            continue
        places = _only_for(operator.nodes, made, {*operator.outputs} - {*made})
        inner = [node for k, node in enumerate(operator.nodes) if k in places]
        rest = tuple(node for k, node in enumerate(operator.nodes) if k not in places)
        read = {name for node in inner for name in node.inputs}
        kept = [name for name in operator.outputs if name not in pairs]
        passed = [name for node in rest for name in node.outputs if name in read and name not in kept]
        forward.append(_with(operator, rest, (*kept, *passed)))
        rename = {name: names[pairs[name]] for name in made}
        nodes = tuple(replace(n, outputs=tuple(rename.get(name, name) for name in n.outputs)) for n in inner)
        statistics = replace(
            operator,
            name=f"{operator.name}.statistics",
            kind=KIND,
            recomputable=False,
            updates=tuple((pairs[name], rename[name]) for name in made),
        )
        updates.append(_with(statistics, nodes, tuple(rename.values())))
    first = next((k for k, operator in enumerate(forward) if operator.backward), len(forward))
    return (*forward[:first], *updates, *forward[first:])


def _only_for(nodes: Sequence[Node], made: Sequence[str], others: Set[str]) -> frozenset[int]:
    """The places of the nodes that nothing but the tensors `made` comes of."""
    found: list[int] = []
    wanted, needed = set(made), set(others)
    for k in reversed(range(len(nodes))):
        if wanted.intersection(nodes[k].outputs) and not needed.intersection(nodes[k].outputs):
            found.append(k)
            wanted.update(nodes[k].inputs)
        else:
            needed.update(nodes[k].inputs)
    return frozenset(found)


def _with(operator: Operator, nodes: tuple[Node, ...], outputs: tuple[str, ...]) -> Operator:
    """`operator` with other nodes, which write `outputs` for others."""
    written = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in written)
    return replace(operator, nodes=nodes, inputs=tuple(read), outputs=outputs, whole=tuple(_runs(operator, nodes)))


def _runs(operator: Operator, nodes: Sequence[Node]) -> Iterator[Whole]:
    """What runs of `nodes`, which are some of the operator's, amount to: the same ops with fewer operands."""
    for whole in operator.whole:
        run = [k for k, node in enumerate(nodes) if node in operator.nodes[whole.first : whole.first + whole.count]]
        read = {name for k in run for name in nodes[k].inputs}
        written = {name for k in run for name in nodes[k].outputs}
        first, *_ = (*whole.node.outputs, "")
        if first in written and run == [*range(run[0], run[-1] + 1)]:
            inputs = tuple(name if name in read else "" for name in whole.node.inputs)
            outputs = tuple(name if name in written else "" for name in whole.node.outputs)
            yield Whole(run[0], len(run), replace(whole.node, inputs=inputs, outputs=outputs))
