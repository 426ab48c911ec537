"""Sequences that only carry tensors from one node to the next are left out: PyTorch's exporters write lists so.

What `SequenceConstruct` lists and `SequenceMap` makes of each element is known by name, and so is what `SequenceAt`,
`ConcatFromSequence` and `SequenceLength` take of it. `SplitToSequence(x, size)` with `SequenceAt(pieces, 2)` is
`Split(x, sizes)`, where shapes say how long x is; without a size and without its axis kept each piece is a Gather. Any
other use of sequences is left, to be refused.
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

_PIECES = 4096
"""More pieces than that are no chunks, and more nodes no list."""


def list_sequences(document: Document) -> None:
    """Have the readers of listed tensors read these themselves, in `document`; what can't be is left, to be refused."""
    graph = document.proto.graph
    if not any(node.op_type == "SequenceConstruct" for node in graph.node):
        return
    lists: dict[str, list[str]] = {}
    taken = document.names
    kept: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "SequenceConstruct" and node.output:
            lists[node.output[0]] = list(node.input)
        listed = lists.get(node.input[0]) if node.input else None
        found = None if listed is None else _taken_from(document, node, listed)
        if node.op_type == "SequenceMap" and listed is not None:
            found = _mapped(node, lists, taken)
        kept += [node] if found is None else found
    document.put_nodes(kept)


def _taken_from(document: Document, node: NodeProto, listed: Sequence[str]) -> list[NodeProto] | None:
    """Nodes that write what `node` takes of the tensors `listed`, or None where that is not known."""
    result = node.output[0] if node.output else ""
    if node.op_type == "SequenceAt" and len(node.input) == 2:
        place = _ints(document, node.input[1])
        if place is None or place.size != 1 or not -len(listed) <= int(place.reshape(())) < len(listed):
            return None
        return [helper.make_node("Identity", [listed[int(place.reshape(()))]], [result], node.name)]
    if node.op_type == "SequenceLength":
        count = _stored(document, f"{result}.length", np.array(len(listed), np.int64))
        return [helper.make_node("Identity", [count], [result], node.name)]
    if node.op_type != "ConcatFromSequence":
        return None
    axis, made, parts = attribute_int(node, "axis", 0), [], list(listed)
    if attribute_int(node, "new_axis", 0):
        axes = _stored(document, f"{result}.axes", np.array([axis], np.int64))
        parts = [f"{result}.{k}" for k in range(len(listed))]
        for name, part in zip(listed, parts, strict=True):
            unsqueeze = helper.make_node("Unsqueeze", [name, axes], [part])
            if document.opset < 13:
                unsqueeze = helper.make_node("Unsqueeze", [name], [part], axes=[axis])
            made.append(unsqueeze)
    return [*made, helper.make_node("Concat", parts, [result], node.name, axis=axis)]


def _mapped(node: NodeProto, lists: dict[str, list[str]], taken: set[str]) -> list[NodeProto] | None:
    """The body of a SequenceMap once for each element; its results are listed in `lists`."""
    body = next((a.g for a in node.attribute if a.name == "body"), onnx.GraphProto())
    fits = (len(body.input), len(body.output)) == (len(node.input), len(node.output))
    if not fits or len(lists[node.input[0]]) * len(body.node) > _PIECES or body.initializer:
        return None
    if any(len(lists.get(name, ())) not in (0, len(lists[node.input[0]])) for name in node.input):
        return None
    results: list[list[str]] = [[] for _ in node.output]
    made: list[NodeProto] = []
    for k in range(len(lists[node.input[0]])):
        names = {
            info.name: lists[name][k] if name in lists else name
            for info, name in zip(body.input, node.input, strict=True)
        }
        inner = [copied(part) for part in body.node]
        _rename(inner, names, taken)
        made += inner
        for result, info in zip(results, body.output, strict=True):
            result.append(names.get(info.name, info.name))
    lists.update(zip(node.output, results, strict=True))
    return made


def _rename(nodes: Iterable[NodeProto], names: dict[str, str], taken: set[str]) -> None:
    """Have `nodes` read by the new `names`, and write what nothing else is called, in graphs inside them, too."""
    for node in nodes:
        for k, name in enumerate(node.input):
            node.input[k] = names.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g.node, names, taken)
                for info in attribute.g.output:
                    info.name = names.get(info.name, info.name)
        for k, name in enumerate(node.output):
            if name:
                names[name] = node.output[k] = unique(name, taken)
                taken.add(node.output[k])


def split_sequences(document: Document, options: ReadOptions) -> None:
    """Replace what can be replaced in `document`.

    Raises `ModelError` where a length depends on a batch that neither the file nor `options` give.
    """
    graph = document.proto.graph
    if not any(node.op_type == "SplitToSequence" for node in graph.node):
        return
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    results = {info.name for info in graph.output}
    made: dict[str, list[NodeProto]] = {}
    gone: set[str] = set()
    sizes = _Lengths(document, options, {name: node for node in graph.node for name in node.output if name})
    for node in graph.node:
        if node.op_type != "SplitToSequence" or not node.input or not node.output or node.output[0] in results:
            continue
        picks = readers.get(node.output[0], [])
        plain = all(p.op_type == "SequenceAt" and len(p.input) == 2 and len(p.output) == 1 for p in picks)
        found = _replacement(document, sizes, node, picks) if plain else None
        if found:
            made[node.output[0]] = found
            gone.update(pick.output[0] for pick in picks)
            # a tensor that is made of these pieces may be split in its turn
            sizes.producers.update((name, part) for part in found for name in part.output)
    kept: list[NodeProto] = []
    for node in graph.node:
        replaced = made.get(node.output[0]) if node.output else None
        kept += replaced if replaced is not None else [] if node.output and node.output[0] in gone else [node]
    document.put_nodes(kept)


@dataclass
class _Lengths:
    """Integers and lengths: those that the file states, and those that follow from its shapes, found when asked for."""

    document: Document
    options: ReadOptions
    producers: dict[str, NodeProto]
    known: list[Ahead] = field(default_factory=list)

    def ints(self, name: str) -> Ints | None:
        """The integers in `name`."""
        stored = _ints(self.document, name)
        if stored is not None or not self._reach(name):
            return stored
        found = [known.constants.get(name) for known in self.known]
        first = found[0]
        if first is None or first.dtype.kind != "i" or any(f is None or not np.array_equal(first, f) for f in found):
            return None
        return np.asarray(first, np.int64)

    def length(self, name: str, axis: int) -> int | None:
        """Says how long `name` is along `axis`."""
        stated = _length(self.document, name, axis)
        if stated is not None or not self._reach(name):
            return stated
        shapes = [known.types[name][1] if name in known.types else () for known in self.known]
        found = {shape[axis] if -len(shape) <= axis < len(shape) else 0 for shape in shapes}
        return (found.pop() or None) if len(found) == 1 else None

    def _reach(self, name: str) -> bool:
        self.known = self.known or ahead(self.document, self.options)
        return all(known.reach(self.document, self.producers, name) for known in self.known)


def _replacement(
    document: Document, sizes_of: _Lengths, node: NodeProto, picks: Iterable[NodeProto]
) -> list[NodeProto] | None:
    """Nodes that write what `picks` take out of the pieces of `node`."""
    axis = attribute_int(node, "axis", 0)
    places = {pick.output[0]: sizes_of.ints(pick.input[1]) for pick in picks}
    if any(place is None or place.size != 1 for place in places.values()):
        return None
    at = {name: int(place.reshape(())) for name, place in places.items() if place is not None}
    x = node.input[0]
    given = sizes_of.ints(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    if given is None:
        if len(node.input) > 1 and node.input[1]:
            return None
        if not attribute_int(node, "keepdims", 1):
            return [
                helper.make_node(
                    "Gather", [x, _stored(document, f"{name}.index", np.array(k, np.int64))], [name], axis=axis
                )
                for name, k in at.items()
            ]
        given = np.array(1, np.int64)
    length = None if given.ndim else sizes_of.length(x, axis)
    if given.ndim:
        sizes = [int(size) for size in given]
    elif length is None or int(given) < 1:
        return None
    else:
        size = int(given)
        sizes = [min(size, length - start) for start in range(0, length, size)]
    if not 0 < len(sizes) <= _PIECES or any(not -len(sizes) <= k < len(sizes) for k in at.values()):
        return None
    first: dict[int, str] = {}
    for name, k in at.items():
        first.setdefault(k % len(sizes), name)
    again = [(first[k % len(sizes)], name) for name, k in at.items() if first[k % len(sizes)] != name]
    outputs = [first.get(k, "") or unique(f"{node.output[0]}.{k}", document.names) for k in range(len(sizes))]
    split = helper.make_node("Split", [x], outputs, node.name, axis=axis)
    if document.opset >= 13:
        split.input.append(_stored(document, f"{node.output[0]}.sizes", np.array(sizes, np.int64)))
    else:
        split.attribute.append(helper.make_attribute("split", sizes))
    return [split, *(helper.make_node("Identity", [source], [name]) for source, name in again)]


def _ints(document: Document, name: str) -> Ints | None:
    """The integers of an initializer or a Constant node."""
    found = stored(document, name)
    return np.asarray(found, np.int64) if found is not None and found.dtype in (np.int64, np.int32) else None


def _length(document: Document, name: str, axis: int) -> int | None:
    """Says how long the file says that `name` is along `axis`."""
    graph = document.proto.graph
    for info in (*graph.value_info, *graph.input):
        if info.name == name and info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            if -len(dims) <= axis < len(dims):
                return int(dims[axis].dim_value) or None
    return None


def _stored(document: Document, name: str, array: Ints) -> str:
    """The name of a new initializer of this value."""
    chosen = unique(name, document.names)
    document.weights[chosen] = numpy_helper.from_array(array, chosen)
    return chosen
