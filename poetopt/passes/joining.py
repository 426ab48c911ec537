"""Several operators as one: what both `poetopt.passes.in_place` and `poetopt.passes.blocks` are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from poetopt.graph import Operator, TrainingGraph, Whole
from poetopt.runtimes.contract import Runtime

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
    """What somebody outside of the step wants: outputs, the step's results, and whose bytes they are."""
    kept = {*graph.outputs, *graph.results}
    return frozenset({graph.root(name) for name in kept} | kept)


def working_set_bytes(operator: Operator, graph: TrainingGraph, runtime: Runtime) -> int:
    """What an operator needs in RAM while it runs: inputs, outputs and temporaries, without what is resident."""
    roots = {graph.root(name) for name in (*operator.inputs, *operator.outputs)}
    held = sum(graph.tensors[root].nbytes for root in roots if not graph.tensors[root].resident)
    return held + runtime.workspace(operator, graph.tensors).temporaries_bytes
