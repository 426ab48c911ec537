"""Remove sequences that only carry tensors from one node to the next: PyTorch's exporters write lists this way.

The elements of `SequenceConstruct` and the results of `SequenceMap` have names, so the readers `SequenceAt`,
`ConcatFromSequence` and `SequenceLength` can use these. `SplitToSequence(x, size)` with `SequenceAt(pieces, 2)` is
`Split(x, sizes)` if the length of x is known. Without a size and without keepdims, each piece is a Gather. Other uses
of sequences stay, and are refused later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from poetopt.frontends.inlining import Ahead, ahead
from poetopt.frontends.proto import attribute_int, copied, unique
from poetopt.frontends.read import Document, stored
from poetopt.frontends.reading import ReadOptions

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_MOST_PIECES = 4096
"""Limit of pieces, and of nodes that a `SequenceMap` becomes."""


def list_sequences(document: Document) -> None:
    """Let readers of a sequence read its elements, in place; sequences that can't be resolved stay."""
    graph = document.proto.graph
    if not any(node.op_type == "SequenceConstruct" for node in graph.node):
        return
    lists: dict[str, list[str]] = {}
    used_names = document.names
    kept: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "SequenceConstruct" and node.output:
            lists[node.output[0]] = list(node.input)
        elements = lists.get(node.input[0]) if node.input else None
        replacement = None if elements is None else _resolve_reader(document, node, elements)
        if node.op_type == "SequenceMap" and elements is not None:
            replacement = _unroll_map(node, lists, used_names)
        kept += [node] if replacement is None else replacement
    document.put_nodes(kept)


def _resolve_reader(document: Document, node: NodeProto, elements: Sequence[str]) -> list[NodeProto] | None:
    """Return the nodes that replace `node`, a reader of the sequence `elements`; None if it can't be replaced."""
    result = node.output[0] if node.output else ""
    if node.op_type == "SequenceAt" and len(node.input) == 2:
        index = _stored_ints(document, node.input[1])
        if index is None or index.size != 1 or not -len(elements) <= int(index.reshape(())) < len(elements):
            return None
        return [helper.make_node("Identity", [elements[int(index.reshape(()))]], [result], node.name)]
    if node.op_type == "SequenceLength":
        count = _add_initializer(document, f"{result}.length", np.array(len(elements), np.int64))
        return [helper.make_node("Identity", [count], [result], node.name)]
    if node.op_type != "ConcatFromSequence":
        return None
    axis, nodes, parts = attribute_int(node, "axis", 0), [], list(elements)
    if attribute_int(node, "new_axis", 0):
        axes = _add_initializer(document, f"{result}.axes", np.array([axis], np.int64))
        parts = [f"{result}.{k}" for k in range(len(elements))]
        for name, part in zip(elements, parts, strict=True):
            unsqueeze = helper.make_node("Unsqueeze", [name, axes], [part])
            if document.opset < 13:
                unsqueeze = helper.make_node("Unsqueeze", [name], [part], axes=[axis])
            nodes.append(unsqueeze)
    return [*nodes, helper.make_node("Concat", parts, [result], node.name, axis=axis)]


def _unroll_map(node: NodeProto, lists: dict[str, list[str]], used_names: set[str]) -> list[NodeProto] | None:
    """Return the body of a SequenceMap once for each element, and add its results to `lists`."""
    body = next((a.g for a in node.attribute if a.name == "body"), onnx.GraphProto())
    is_consistent = (len(body.input), len(body.output)) == (len(node.input), len(node.output))
    if not is_consistent or len(lists[node.input[0]]) * len(body.node) > _MOST_PIECES or body.initializer:
        return None
    if any(len(lists.get(name, ())) not in (0, len(lists[node.input[0]])) for name in node.input):
        return None
    results: list[list[str]] = [[] for _ in node.output]
    nodes: list[NodeProto] = []
    for k in range(len(lists[node.input[0]])):
        names = {
            info.name: lists[name][k] if name in lists else name
            for info, name in zip(body.input, node.input, strict=True)
        }
        inner = [copied(part) for part in body.node]
        _rename(inner, names, used_names)
        nodes += inner
        for result, info in zip(results, body.output, strict=True):
            result.append(names.get(info.name, info.name))
    lists.update(zip(node.output, results, strict=True))
    return nodes


def _rename(nodes: Iterable[NodeProto], names: dict[str, str], used_names: set[str]) -> None:
    """Rename the inputs of `nodes` by `names`, and their outputs to unique names, in subgraphs too."""
    for node in nodes:
        for k, name in enumerate(node.input):
            node.input[k] = names.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g.node, names, used_names)
                for info in attribute.g.output:
                    info.name = names.get(info.name, info.name)
        for k, name in enumerate(node.output):
            if name:
                names[name] = node.output[k] = unique(name, used_names)
                used_names.add(node.output[k])


def split_sequences(document: Document, options: ReadOptions) -> None:
    """Replace each SplitToSequence of known lengths by Split or Gather, in place.

    Raise `ModelError` if a length depends on a batch that neither the file nor `options` give.
    """
    graph = document.proto.graph
    if not any(node.op_type == "SplitToSequence" for node in graph.node):
        return
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    results = {info.name for info in graph.output}
    replacements: dict[str, list[NodeProto]] = {}
    removed: set[str] = set()
    lengths = _Lengths(document, options, {name: node for node in graph.node for name in node.output if name})
    for node in graph.node:
        if node.op_type != "SplitToSequence" or not node.input or not node.output or node.output[0] in results:
            continue
        picks = readers.get(node.output[0], [])
        is_indexed = all(p.op_type == "SequenceAt" and len(p.input) == 2 and len(p.output) == 1 for p in picks)
        replacement = _replace_split(document, lengths, node, picks) if is_indexed else None
        if replacement:
            replacements[node.output[0]] = replacement
            removed.update(pick.output[0] for pick in picks)
            # another SplitToSequence may split a tensor that depends on these pieces
            lengths.producers.update((name, part) for part in replacement for name in part.output)
    kept: list[NodeProto] = []
    for node in graph.node:
        replaced = replacements.get(node.output[0]) if node.output else None
        kept += replaced if replaced is not None else [] if node.output and node.output[0] in removed else [node]
    document.put_nodes(kept)


@dataclass
class _Lengths:
    """Integers and lengths that the file states, and those that follow from its shapes, computed on demand."""

    document: Document
    options: ReadOptions
    producers: dict[str, NodeProto]
    known: list[Ahead] = field(default_factory=list)

    def ints(self, name: str) -> Ints | None:
        """Return the integers in `name`, or None if they are unknown or differ between batches."""
        stated = _stored_ints(self.document, name)
        if stated is not None or not self._reach(name):
            return stated
        values = [known.constants.get(name) for known in self.known]
        first = values[0]
        if first is None or first.dtype.kind != "i" or any(f is None or not np.array_equal(first, f) for f in values):
            return None
        return np.asarray(first, np.int64)

    def length(self, name: str, axis: int) -> int | None:
        """Return the length of `name` along `axis`, or None if it is unknown."""
        stated = _declared_length(self.document, name, axis)
        if stated is not None or not self._reach(name):
            return stated
        shapes = [known.types[name][1] if name in known.types else () for known in self.known]
        lengths = {shape[axis] if -len(shape) <= axis < len(shape) else 0 for shape in shapes}
        return (lengths.pop() or None) if len(lengths) == 1 else None

    def _reach(self, name: str) -> bool:
        self.known = self.known or ahead(self.document, self.options)
        return all(known.reach(self.document, self.producers, name) for known in self.known)


def _replace_split(
    document: Document, lengths: _Lengths, node: NodeProto, picks: Iterable[NodeProto]
) -> list[NodeProto] | None:
    """Return the nodes that write the pieces of `node` that `picks` read; None if they are unknown."""
    axis = attribute_int(node, "axis", 0)
    indices = {pick.output[0]: lengths.ints(pick.input[1]) for pick in picks}
    if any(index is None or index.size != 1 for index in indices.values()):
        return None
    index_of = {name: int(index.reshape(())) for name, index in indices.items() if index is not None}
    x = node.input[0]
    split_sizes = lengths.ints(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    if split_sizes is None:
        if len(node.input) > 1 and node.input[1]:
            return None
        if not attribute_int(node, "keepdims", 1):
            return [
                helper.make_node(
                    "Gather", [x, _add_initializer(document, f"{name}.index", np.array(k, np.int64))], [name], axis=axis
                )
                for name, k in index_of.items()
            ]
        split_sizes = np.array(1, np.int64)
    length = None if split_sizes.ndim else lengths.length(x, axis)
    if split_sizes.ndim:
        sizes = [int(size) for size in split_sizes]
    elif length is None or int(split_sizes) < 1:
        return None
    else:
        size = int(split_sizes)
        sizes = [min(size, length - start) for start in range(0, length, size)]
    if not 0 < len(sizes) <= _MOST_PIECES or any(not -len(sizes) <= k < len(sizes) for k in index_of.values()):
        return None
    first: dict[int, str] = {}
    for name, k in index_of.items():
        first.setdefault(k % len(sizes), name)
    duplicates = [(first[k % len(sizes)], name) for name, k in index_of.items() if first[k % len(sizes)] != name]
    outputs = [first.get(k, "") or unique(f"{node.output[0]}.{k}", document.names) for k in range(len(sizes))]
    split = helper.make_node("Split", [x], outputs, node.name, axis=axis)
    if document.opset >= 13:
        split.input.append(_add_initializer(document, f"{node.output[0]}.sizes", np.array(sizes, np.int64)))
    else:
        split.attribute.append(helper.make_attribute("split", sizes))
    return [split, *(helper.make_node("Identity", [source], [name]) for source, name in duplicates)]


def _stored_ints(document: Document, name: str) -> Ints | None:
    """Return the integers of an initializer or a Constant node; None for other tensors."""
    array = stored(document, name)
    return np.asarray(array, np.int64) if array is not None and array.dtype in (np.int64, np.int32) else None


def _declared_length(document: Document, name: str, axis: int) -> int | None:
    """Return the length of `name` along `axis` that the file declares; None if it declares none."""
    graph = document.proto.graph
    for info in (*graph.value_info, *graph.input):
        if info.name == name and info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            if -len(dims) <= axis < len(dims):
                return int(dims[axis].dim_value) or None
    return None


def _add_initializer(document: Document, name: str, array: Ints) -> str:
    """Add an initializer of this value, and return its name."""
    chosen = unique(name, document.names)
    document.weights[chosen] = numpy_helper.from_array(array, chosen)
    return chosen
