"""One parameter for all copies that an exporter made of one weight, and one each where it merged several.

Exporters fold the transpose of a weight into a second one. Where the weight serves elsewhere too (an embedding that is
the output layer's matrix, a layer that is used twice), the file then holds it twice, and trained apart each copy would
get its own use's share of the gradient. The copies are found

- by the metadata of PyTorch's newer exporter, which names what a tensor was folded from; the values must agree;
- by value: a matrix that is another one's transpose, element for element, which no chance brings about. Tensors
  that are equal as they stand prove nothing: exporters merge these themselves, or keep apart what the module keeps
  apart (the layers of a fresh Transformer are copies of its first).

A copy becomes a Transpose or a Reshape of the weight (or the weight itself), so that gradients add up.

The other way round, all scales of ones and all biases of zeros of one size are one initializer of a file of a fresh
network, and zero biases of layers are left out. So a tensor filled with one number in several layers' places is as many
parameters: by the names that PyTorch's metadata gives each node's parameters, by those of the Identity nodes that its
older exporter writes (whose nodes are called `/module/op`), in other files called after the node. What these say is one
parameter stays one, and where a layer has none it reads a constant.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from poetopt.frontends.origins import signature
from poetopt.frontends.places import FLOATS
from poetopt.frontends.proto import attribute_int, copied, unique
from poetopt.frontends.read import Document, array_of
from poetopt.ops.op import op_of
from poetopt.util.notes import Note, listed

if TYPE_CHECKING:
    from poetopt.graph import Array


_PARAMETER = re.compile(r"^\s*(\S+): PARAMETER target='([^']*)'", re.MULTILINE)
_HELD = re.compile(r"%(p_\w+)")
_NAMES = {1: "weight", 2: "bias"}


class ParameterPlace(NamedTuple):
    """Says where a node reads, or lacks, what may be a parameter of its own.

    node, at
        The node, and which of its inputs.
    merged
        The initializer that it reads there; "" where a bias of zeros was left out.
    name
        The parameter's own name.
    constant
        Whether the layer has no parameter there.
    """

    node: NodeProto
    at: int
    merged: str
    name: str
    constant: bool = False


def places(graph: onnx.GraphProto, dims: Callable[[str], tuple[int, ...] | None]) -> Iterator[ParameterPlace]:
    """All such places of `graph`, in the order of its nodes.

    dims
        Those of an initializer; None for other names.
    """
    targets = dict(_PARAMETER.findall(signature(graph)))
    writers = {name: node.op_type for node in graph.node for name in node.output}
    sources = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity" and len(node.input) == 1 and dims(node.input[0]) is not None
    }
    for node in graph.node:
        said = {entry.key: entry.value for entry in node.metadata_props}
        held = [targets[name] for name in _HELD.findall(said.get("pkg.torch.onnx.fx_node", "")) if name in targets]
        settings = op_of(node.op_type).settings
        read = [(k, sources.get(name, name)) for k, name in enumerate(node.input) if k not in settings]
        read = [(k, name) for k, name in read if dims(name) is not None]
        bias = node.op_type == "Add" and any(op_of(writers.get(name, "")).is_product for name in node.input)
        layer = set(op_of(node.op_type).weights) - {0}
        for k, name in read:
            constant = k in layer and bool(targets) and not held and "pkg.torch.onnx.fx_node" in said
            if node.input[k] in sources:
                own = node.input[k]
            elif len(held) == len(read):
                own = held[read.index((k, name))]
            elif held:
                alike = {target for target in held if target.rpartition(".")[2] == name.rpartition(".")[2]}
                own = alike.pop() if len(alike) == 1 else ""
            elif not targets and node.name.startswith("/"):
                own = name
            elif constant or (not targets and (bias or k in layer)):
                own = f"{node.name or node.output[0]}.{'bias' if bias else _NAMES.get(k, k)}"
            else:
                own = ""
            if own and (dims(name) not in {(), (1,)} or node.op_type == "PRelu"):
                yield ParameterPlace(node, k, name, own, constant)
        left_out = "RemoveOptionalBias" in said.get("pkg.onnxscript.rewriter.rule_name", "")
        if left_out and len(node.input) == 2 and len(held) == 2:
            yield ParameterPlace(node, 2, "", held[1])


def put(place: ParameterPlace) -> None:
    """Have the node read its own parameter there."""
    if place.at < len(place.node.input):
        place.node.input[place.at] = place.name
    else:
        place.node.input.append(place.name)


def take_apart(document: Document) -> tuple[list[Note], frozenset[str]]:
    """Give each such place of `document` a weight of its own where several read one that holds one number.

    Returns notes, and the names of the weights that are constants.
    """
    graph = document.proto.graph
    weights = document.weights
    found = list(places(graph, lambda name: tuple(weights[name].dims) if name in weights else None))
    names: dict[str, list[str]] = {}
    for place in found:
        names.setdefault(place.merged, []).append(place.name)
    stay = {merged if merged in own else own[0] for merged, own in names.items() if merged}
    made: list[str] = []
    taken = {name for node in graph.node for name in node.output if node.op_type != "Identity"}
    taken.update(info.name for info in graph.input)
    for place in found:
        if place.name in stay or place.name in taken or (place.name in weights and place.name not in made):
            continue
        if place.name not in made:
            proto = _own(document, place)
            if proto is None:
                continue
            weights[place.name] = proto
            made.append(place.name)
        put(place)
    document.put_nodes([node for node in graph.node if node.op_type != "Identity" or node.output[0] not in made])
    held = {name for place in found if not place.constant for name in (place.merged, place.name)}
    constants = frozenset({n for p in found if p.constant for n in (p.merged, p.name) if n in weights} - held)
    made = [name for name in made if name not in constants]
    if not made:
        return [], constants
    count = "1 parameter was" if len(made) == 1 else f"{len(made)} parameters were"
    text = f"{count} merged with equal ones by the exporter, and apart again"
    return [Note(f"{text}: {', '.join(made)}", short=f"{text}: {listed(made, 3)}")], constants


def _own(document: Document, place: ParameterPlace) -> TensorProto | None:
    """A weight like the one that is read at `place`, or zeros; None where that one holds several numbers."""
    if place.merged:
        like = document.weights[place.merged]
        value = array_of(document, place.merged) if like.data_type in FLOATS else None
        if value is None or not value.size or not bool((value == value.flat[0]).all()):
            return None
        own = TensorProto()
        own.CopyFrom(like)
        own.name = place.name
        return own
    weight = document.weights.get(place.node.input[1])
    if weight is None or weight.data_type not in FLOATS or len(weight.dims) < 2:
        return None
    axis = op_of(place.node.op_type).filter_axis
    groups = attribute_int(place.node, "group", 1) if axis == 1 else 1
    if axis is None:
        axis = 0 if attribute_int(place.node, "transB", 0) else 1
    size = weight.dims[axis] * groups
    return helper.make_tensor(place.name, weight.data_type, [size], [0.0] * size)


_LEAST_VALUES = 16
"""A matrix with fewer different values may equal another one by chance."""


@dataclass(frozen=True)
class Ties:
    """Holds what was tied.

    names
        The copies' names -> the weight that stands for them.
    notes
        What people should know, one line each.
    """

    names: dict[str, str]
    notes: tuple[str, ...]


def tie_copies(document: Document, sources: Mapping[str, Sequence[str]], known: bool) -> Ties:
    """Let one weight stand for all copies of it, in `document`.

    sources
        The module's name of a parameter -> the weights of the file that were folded from it alone, and itself if the
        file has it.
    known
        Whether the file says what its weights come from; then a weight that was not folded is no copy.
    """
    graph = document.proto.graph
    usable = {name for node in graph.node for name in node.input} - {info.name for info in graph.output}
    roots: dict[str, str] = {}
    perms: dict[str, tuple[int, ...]] = {}
    reshaped: dict[str, str] = {}
    shared: set[str] = set()  # the weights that stand for others

    def tie(copy: str, root: str, perm: tuple[int, ...]) -> None:
        if root in roots:
            perm = tuple(perms[root][axis] for axis in perm)
            root = roots[root]
        if copy not in roots and copy not in shared and copy != root:
            roots[copy], perms[copy] = root, perm
            shared.add(root)

    for group in sources.values():
        first, *others = [name for name in group if name in usable] or [""]
        for other in others:
            order = _order(array_of(document, first), array_of(document, other))
            if order is not None:
                tie(other, first, order)
            elif _same_numbers(array_of(document, first), array_of(document, other)):
                reshaped[other] = first
    folded = {name for source, group in sources.items() for name in group if name != source}
    for root, copy in _transposed_pairs(document, usable - roots.keys(), folded if known else None):
        tie(copy, root, (1, 0))
    reshaped = {
        copy: root for copy, root in reshaped.items() if root not in roots and copy not in roots and copy not in shared
    }
    roots |= reshaped
    if not roots:
        return Ties({}, ())
    _replace(document, roots, perms)
    shown = ", ".join(f"{copy} of {root}" for copy, root in list(roots.items())[:3]) + (", ..." * (len(roots) > 3))
    count = "1 tensor is a copy of a weight" if len(roots) == 1 else f"{len(roots)} tensors are copies of weights"
    note = f"{count} ({shown}); each weight is one parameter, its gradient a sum"
    return Ties(roots, (Note(note),))


def _same_numbers(root: Array, copy: Array) -> bool:
    """Says whether `copy` is a Reshape of `root` to another number of axes, by so many numbers that it is no chance."""
    if root.dtype != copy.dtype or root.size != copy.size or root.ndim == copy.ndim:
        return False
    flat = root.reshape(-1)
    return np.array_equal(flat, copy.reshape(-1)) and np.unique(flat).size >= _LEAST_VALUES


def _order(root: Array, copy: Array) -> tuple[int, ...] | None:
    """The order of axes in which `root` is `copy`, if there is one."""
    if root.dtype != copy.dtype or sorted(root.shape) != sorted(copy.shape) or root.ndim > 4:
        return None
    for perm in permutations(range(root.ndim)):
        turned = root.transpose(perm)
        if turned.shape == copy.shape and np.array_equal(turned, copy):
            return perm
    return None


def _telling(value: Array) -> bool:
    """Says whether another matrix that is the transpose of `value` must be a copy of it."""
    return not np.array_equal(value, value.T) and np.unique(value).size >= _LEAST_VALUES


def _digest(value: Array) -> bytes:
    """The same for equal values, zeros of either sign included."""
    return hashlib.blake2b(np.ascontiguousarray(np.add(value, 0, dtype=value.dtype)).tobytes(), digest_size=16).digest()


def _transposed_pairs(document: Document, names: Set[str], folded: Set[str] | None) -> Iterator[tuple[str, str]]:
    """Matrices and the first one that each is the transpose of: a weight and its copy.

    folded
        The tensors that are known to be copies; None where the file doesn't say. Then which is the copy is a guess:
        names of folded tensors are made up (`onnx::MatMul_17`).

    By their corner elements first, which stay in place: few weights are read whole.
    """
    shapes = {
        name: tuple(proto.dims)
        for name, proto in document.weights.items()
        if name in names and name not in document.fills and proto.data_type in FLOATS and len(proto.dims) == 2
    }
    counts = Counter(shapes.values())
    corners: dict[tuple[object, ...], list[str]] = {}
    for name, shape in shapes.items():
        lone = counts[shape] == 1 if shape[0] == shape[1] else shape[::-1] not in counts
        if not lone and math.prod(shape) >= _LEAST_VALUES:
            value = array_of(document, name)
            key = (min(shape), max(shape), value.dtype.name, value[0, 0].tobytes(), value[-1, -1].tobytes())
            corners.setdefault(key, []).append(name)
    for group in corners.values():
        ranked = sorted(group, key=lambda name: "::" in name) if len(group) > 1 else []
        roots = [] if folded is None else [name for name in ranked if name not in folded]
        first: dict[bytes, str] = {}
        for name in reversed(roots):
            first[_digest(array_of(document, name))] = name
        for name in ranked:
            value = array_of(document, name)
            root = first.get(_digest(value.T)) if folded is None or name in folded else None
            if root is not None and root != name and _telling(value):
                yield root, name
            if folded is None:
                first.setdefault(_digest(value), name)


def _replace(document: Document, roots: Mapping[str, str], perms: Mapping[str, tuple[int, ...]]) -> None:
    """Let readers of each copy read the weight itself, or its Transpose or Reshape, which stands before the first."""
    graph = document.proto.graph
    taken = document.names
    made: dict[tuple[str, tuple[int, ...] | None, tuple[int, ...]], str] = {}
    kept: list[NodeProto] = []

    def stand_in(name: str) -> str:
        root, perm, dims = roots[name], perms.get(name), tuple(map(int, document.weights[name].dims))
        if perm == tuple(range(len(dims))):
            return root
        if (root, perm, dims) not in made:
            found = made[root, perm, dims] = unique(f"{root}.{'reshaped' if perm is None else 'transposed'}", taken)
            taken.add(found)
            if perm is None:
                shape = unique(f"{found}.shape", taken)
                document.weights[shape] = numpy_helper.from_array(np.array(dims, np.int64), shape)
                taken.add(shape)
                kept.append(helper.make_node("Reshape", [root, shape], [found]))
            else:
                kept.append(helper.make_node("Transpose", [root], [found], perm=perm))
        return made[root, perm, dims]

    for original in graph.node:
        node = copied(original)
        for index, name in enumerate(node.input):
            if name in roots:
                node.input[index] = stand_in(name)
        kept.append(node)
    document.put_nodes(kept)
    for name in roots:
        del document.weights[name]
