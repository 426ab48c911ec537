"""An If whose condition is known becomes the branch that is taken.

PyTorch's older exporter leaves such nodes behind (`diagonal`, `local_response_norm`, `scatter_reduce`): the condition
is a literal, or compares shapes, which are fixed here. An If whose condition depends on what the network computes, or
on its weights, is left, to be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from poetopt.frontends.ahead import Ahead, ahead
from poetopt.frontends.proto import constant_tensor, copied, subgraphs
from poetopt.frontends.read import LIBRARY_ERRORS, Document, array_of
from poetopt.frontends.reading import ReadOptions
from poetopt.frontends.unique import unique

if TYPE_CHECKING:
    from poetopt.graph import Array


def inline_branches(document: Document, options: ReadOptions) -> None:
    """Replace every If of `document` whose condition is known, those inside its branches too.

    Raises `ModelError` where a condition depends on a batch that neither the file nor `options` give.
    """
    graph = document.proto.graph
    if not any(node.op_type == "If" for node in graph.node):
        return
    reckoning: list[Ahead] | None = None
    left: set[str] = set()
    while True:
        place, node = next(
            ((i, n) for i, n in enumerate(graph.node) if _is_if(n) and n.output[0] not in left), (-1, None)
        )
        if node is None:
            return
        taken = _literal(document, node.input[0])
        if taken is None:
            if reckoning is None:
                reckoning = ahead(document, options)
            answers = [_condition(document, known, node.input[0]) for known in reckoning]
            agreed = set(answers) - {None}
            taken = answers[0] if len(agreed) == 1 else None
        branch = next((a.g for a in node.attribute if a.name == ("then_branch" if taken else "else_branch")), None)
        if taken is None or branch is None or len(branch.output) != len(node.output) or branch.sparse_initializer:
            left.add(node.output[0])
            continue
        before, after = ([copied(n) for n in part] for part in (graph.node[:place], graph.node[place + 1 :]))
        spliced = _spliced(document, [*before, *after], copied(node), branch)
        del graph.node[:]
        graph.node.extend([*before, *spliced, *after])


def _is_if(node: NodeProto) -> bool:
    return node.op_type == "If" and node.domain in ("", "ai.onnx") and bool(node.output) and len(node.input) == 1


def _one(array: Array) -> bool | None:
    return bool(array.reshape(-1)[0]) if array.size == 1 and array.dtype == np.bool_ else None


def _literal(document: Document, name: str) -> bool | None:
    """The value of `name` where the file stores it."""
    if name in document.weights:
        return _one(array_of(document, name)) if document.weights[name].data_type == TensorProto.BOOL else None
    found = next((n for n in document.proto.graph.node if name in n.output), None)
    array = None if found is None else _constants([found]).get(name)
    return None if array is None else _one(array)


def _constants(nodes: Iterable[NodeProto]) -> dict[str, Array]:
    """Values of Constant nodes of dense numbers."""
    found: dict[str, Array] = {}
    for node in nodes:
        tensor = constant_tensor(node)
        if tensor is not None and node.output:
            try:
                found[node.output[0]] = numpy_helper.to_array(tensor)
            except LIBRARY_ERRORS:
                continue
    return found


def _condition(document: Document, known: Ahead, name: str) -> bool | None:
    """The value of `name` where shapes alone decide it, else None."""
    producers = {output: node for node in document.proto.graph.node for output in node.output if output}
    found = known.constants.get(name) if known.reach(document, producers, name) else None
    return None if found is None else _one(found)


def _spliced(document: Document, others: Sequence[NodeProto], node: NodeProto, branch: GraphProto) -> list[NodeProto]:
    """The nodes of `branch`, writing what `node` wrote; its own names made unique, its weights taken over.

    `others` are the nodes that stay.
    """
    taken = {*document.weights, *(info.name for info in document.proto.graph.input), *node.input, *node.output}
    for other in others:
        taken.update(_names(other))
    inside = [name for n in branch.node for name in n.output if name]
    own = [*(proto.name for proto in branch.initializer), *inside]
    rename: dict[str, str] = {}
    ends: list[NodeProto] = []
    for info, output in zip(branch.output, node.output, strict=True):
        if output and info.name in inside and info.name not in rename:
            rename[info.name] = output
        elif output:
            ends.append(helper.make_node("Identity", [info.name], [output], name=f"{node.name or output}.pass"))
    for name in own:
        if name not in rename:
            rename[name] = unique(name, taken)
            taken.add(rename[name])
    for proto in branch.initializer:
        weight = TensorProto()
        weight.CopyFrom(proto)
        weight.name = rename[proto.name]
        document.weights[weight.name] = weight
    nodes = [copied(n) for n in (*branch.node, *ends)]
    for inner in nodes[: len(branch.node)]:
        inner.output[:] = [rename.get(name, name) for name in inner.output]
    for inner in nodes:
        _rename_reads(inner, rename)
    return nodes


def _names(node: NodeProto) -> set[str]:
    """Every name in `node` and its subgraphs."""
    found = {*node.input, *node.output}
    for graph in subgraphs(node):
        found.update(proto.name for proto in graph.initializer)
        for inner in graph.node:
            found |= _names(inner)
    return found


def _rename_reads(node: NodeProto, rename: Mapping[str, str]) -> None:
    """New names for what `node` reads, in its subgraphs too, unless these have a tensor of that name."""
    node.input[:] = [rename.get(name, name) for name in node.input]
    for graph in subgraphs(node):
        hidden = {*(info.name for info in graph.input), *(proto.name for proto in graph.initializer)}
        hidden.update(name for inner in graph.node for name in inner.output)
        visible = {old: new for old, new in rename.items() if old not in hidden}
        for inner in graph.node:
            _rename_reads(inner, visible)
        for info in graph.output:
            info.name = visible.get(info.name, info.name)
