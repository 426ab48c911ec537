"""Tie the copies that an exporter made of one weight, and separate parameters that it merged into one.

Exporters fold the transpose of a weight into a second one. Other readers keep the first one: an embedding that is also
the output layer's matrix, a layer that is used twice. Then the file stores the weight twice, and each copy would get
only a share of the gradient. The copies are found

- by the metadata of PyTorch's newer exporter, which lists the sources of a folded tensor; the values must agree;
- by value: a matrix that is another one's transpose, element for element, which can't be chance. Equal tensors
  without transposition prove nothing: exporters merge them, or keep them separate because the module does
  (the layers of a fresh Transformer are copies of its first).

A copy becomes a Transpose or a Reshape of the weight (or the weight itself), so that gradients add up.

Conversely, exporters merge all scales of ones of a fresh network into one initializer, and all biases of zeros of one
size. They drop zero biases of layers. So a tensor of one repeated number that several layers read becomes several
parameters. Their names come from PyTorch's metadata of each node's parameters, or from the Identity nodes of its older
exporter (whose nodes are called `/module/op`); in other files from the node. A parameter that these sources name once
stays one, and a layer without a parameter reads a constant.
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
_PLACEHOLDER = re.compile(r"%(p_\w+)")
_INPUT_NAMES = {1: "weight", 2: "bias"}


class ParameterPlace(NamedTuple):
    """An input of a node that may be a separate parameter.

    Attributes
    ----------
    node, at
        The node, and the index of the input.
    merged
        The initializer that it reads; "" if the exporter removed a bias of zeros.
    name
        The name of the separate parameter.
    constant
        Whether the layer has no parameter there.
    """

    node: NodeProto
    at: int
    merged: str
    name: str
    constant: bool = False


def places(graph: onnx.GraphProto, dims: Callable[[str], tuple[int, ...] | None]) -> Iterator[ParameterPlace]:
    """Yield the inputs of nodes of `graph` that may be separate parameters, in the order of its nodes.

    Parameters
    ----------
    dims
        Returns the dims of an initializer; None for other names.
    """
    targets = dict(_PARAMETER.findall(signature(graph)))
    writers = {name: node.op_type for node in graph.node for name in node.output}
    sources = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity" and len(node.input) == 1 and dims(node.input[0]) is not None
    }
    for node in graph.node:
        meta = {entry.key: entry.value for entry in node.metadata_props}
        owned = [
            targets[name] for name in _PLACEHOLDER.findall(meta.get("pkg.torch.onnx.fx_node", "")) if name in targets
        ]
        settings = op_of(node.op_type).settings
        read = [(k, sources.get(name, name)) for k, name in enumerate(node.input) if k not in settings]
        read = [(k, name) for k, name in read if dims(name) is not None]
        is_bias = node.op_type == "Add" and any(op_of(writers.get(name, "")).is_product for name in node.input)
        layer = set(op_of(node.op_type).weights) - {0}
        for k, name in read:
            is_constant = k in layer and bool(targets) and not owned and "pkg.torch.onnx.fx_node" in meta
            if node.input[k] in sources:
                own_name = node.input[k]
            elif len(owned) == len(read):
                own_name = owned[read.index((k, name))]
            elif owned:
                alike = {target for target in owned if target.rpartition(".")[2] == name.rpartition(".")[2]}
                own_name = alike.pop() if len(alike) == 1 else ""
            elif not targets and node.name.startswith("/"):
                own_name = name
            elif is_constant or (not targets and (is_bias or k in layer)):
                own_name = f"{node.name or node.output[0]}.{'bias' if is_bias else _INPUT_NAMES.get(k, k)}"
            else:
                own_name = ""
            if own_name and (dims(name) not in {(), (1,)} or node.op_type == "PRelu"):
                yield ParameterPlace(node, k, name, own_name, is_constant)
        bias_removed = "RemoveOptionalBias" in meta.get("pkg.onnxscript.rewriter.rule_name", "")
        if bias_removed and len(node.input) == 2 and len(owned) == 2:
            yield ParameterPlace(node, 2, "", owned[1])


def put(site: ParameterPlace) -> None:
    """Let the node read its separate parameter."""
    if site.at < len(site.node.input):
        site.node.input[site.at] = site.name
    else:
        site.node.input.append(site.name)


def take_apart(document: Document) -> tuple[list[Note], frozenset[str]]:
    """Separate the readers of each merged tensor of one repeated number, in place.

    Return notes, and the names of the weights that are constants.
    """
    graph = document.proto.graph
    weights = document.weights
    sites = list(places(graph, lambda name: tuple(weights[name].dims) if name in weights else None))
    names: dict[str, list[str]] = {}
    for site in sites:
        names.setdefault(site.merged, []).append(site.name)
    kept_names = {merged if merged in site_names else site_names[0] for merged, site_names in names.items() if merged}
    separated: list[str] = []
    used_names = {name for node in graph.node for name in node.output if node.op_type != "Identity"}
    used_names.update(info.name for info in graph.input)
    for site in sites:
        if site.name in kept_names or site.name in used_names or (site.name in weights and site.name not in separated):
            continue
        if site.name not in separated:
            proto = _separate_weight(document, site)
            if proto is None:
                continue
            weights[site.name] = proto
            separated.append(site.name)
        put(site)
    document.put_nodes([node for node in graph.node if node.op_type != "Identity" or node.output[0] not in separated])
    parameters = {name for site in sites if not site.constant for name in (site.merged, site.name)}
    constants = frozenset({n for p in sites if p.constant for n in (p.merged, p.name) if n in weights} - parameters)
    separated = [name for name in separated if name not in constants]
    if not separated:
        return [], constants
    count = "1 parameter" if len(separated) == 1 else f"{len(separated)} parameters"
    text = f"separated {count} that the exporter merged with equal ones"
    return [Note(f"{text}: {', '.join(separated)}", short=f"{text}: {listed(separated, 3)}")], constants


def _separate_weight(document: Document, site: ParameterPlace) -> TensorProto | None:
    """Return a copy of the weight read at `site`, or zeros for a removed bias; None if its elements differ."""
    if site.merged:
        template = document.weights[site.merged]
        value = array_of(document, site.merged) if template.data_type in FLOATS else None
        if value is None or not value.size or not bool((value == value.flat[0]).all()):
            return None
        copy = TensorProto()
        copy.CopyFrom(template)
        copy.name = site.name
        return copy
    weight = document.weights.get(site.node.input[1])
    if weight is None or weight.data_type not in FLOATS or len(weight.dims) < 2:
        return None
    axis = op_of(site.node.op_type).filter_axis
    groups = attribute_int(site.node, "group", 1) if axis == 1 else 1
    if axis is None:
        axis = 0 if attribute_int(site.node, "transB", 0) else 1
    size = weight.dims[axis] * groups
    return helper.make_tensor(site.name, weight.data_type, [size], [0.0] * size)


_LEAST_VALUES = 16
"""A matrix with fewer distinct values may equal another one by chance."""


@dataclass(frozen=True)
class Ties:
    """Copies that were tied to a weight.

    Attributes
    ----------
    names
        The name of a copy -> the weight that replaces it.
    notes
        Notes for the user, one line each.
    """

    names: dict[str, str]
    notes: tuple[str, ...]


def tie_copies(document: Document, sources: Mapping[str, Sequence[str]], known: bool) -> Ties:
    """Replace all copies of a weight by the weight, in `document`.

    Parameters
    ----------
    sources
        The module's name of a parameter -> the weights folded from it alone, and the parameter if the file has it.
    known
        Whether the file lists the sources of its weights; then a weight that was not folded isn't a copy.
    """
    graph = document.proto.graph
    usable = {name for node in graph.node for name in node.input} - {info.name for info in graph.output}
    roots: dict[str, str] = {}
    perms: dict[str, tuple[int, ...]] = {}
    reshaped: dict[str, str] = {}
    shared: set[str] = set()  # weights that replace copies

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
            order = _matching_permutation(array_of(document, first), array_of(document, other))
            if order is not None:
                tie(other, first, order)
            elif _is_reshape(array_of(document, first), array_of(document, other)):
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


def _is_reshape(root: Array, copy: Array) -> bool:
    """Return whether `copy` is a Reshape of `root` to another rank, with too many distinct values for chance."""
    if root.dtype != copy.dtype or root.size != copy.size or root.ndim == copy.ndim:
        return False
    flat = root.reshape(-1)
    return np.array_equal(flat, copy.reshape(-1)) and np.unique(flat).size >= _LEAST_VALUES


def _matching_permutation(root: Array, copy: Array) -> tuple[int, ...] | None:
    """Return the permutation of axes that turns `root` into `copy`, or None."""
    if root.dtype != copy.dtype or sorted(root.shape) != sorted(copy.shape) or root.ndim > 4:
        return None
    for perm in permutations(range(root.ndim)):
        permuted = root.transpose(perm)
        if permuted.shape == copy.shape and np.array_equal(permuted, copy):
            return perm
    return None


def _is_distinctive(value: Array) -> bool:
    """Return whether a matrix that equals the transpose of `value` can't do so by chance."""
    return not np.array_equal(value, value.T) and np.unique(value).size >= _LEAST_VALUES


def _digest(value: Array) -> bytes:
    """Return a hash that is the same for equal values; 0 and -0 count as equal."""
    return hashlib.blake2b(np.ascontiguousarray(np.add(value, 0, dtype=value.dtype)).tobytes(), digest_size=16).digest()


def _transposed_pairs(document: Document, names: Set[str], folded: Set[str] | None) -> Iterator[tuple[str, str]]:
    """Yield each weight with its transposed copy.

    Corner elements are compared first, which transposing doesn't move: few weights are read entirely.

    Parameters
    ----------
    folded
        Tensors known to be folded; None if the file has no such metadata. Then the copy is guessed by its name:
        exporters invent names for folded tensors (`onnx::MatMul_17`).
    """
    shapes = {
        name: tuple(proto.dims)
        for name, proto in document.weights.items()
        if name in names and name not in document.fills and proto.data_type in FLOATS and len(proto.dims) == 2
    }
    counts = Counter(shapes.values())
    corners: dict[tuple[object, ...], list[str]] = {}
    for name, shape in shapes.items():
        is_unmatched = counts[shape] == 1 if shape[0] == shape[1] else shape[::-1] not in counts
        if not is_unmatched and math.prod(shape) >= _LEAST_VALUES:
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
            if root is not None and root != name and _is_distinctive(value):
                yield root, name
            if folded is None:
                first.setdefault(_digest(value), name)


def _replace(document: Document, roots: Mapping[str, str], perms: Mapping[str, tuple[int, ...]]) -> None:
    """Let readers of each copy read the weight, or its Transpose or Reshape, inserted before the first reader."""
    graph = document.proto.graph
    used = document.names
    stand_ins: dict[tuple[str, tuple[int, ...] | None, tuple[int, ...]], str] = {}
    kept: list[NodeProto] = []

    def stand_in(name: str) -> str:
        root, perm, dims = roots[name], perms.get(name), tuple(map(int, document.weights[name].dims))
        if perm == tuple(range(len(dims))):
            return root
        if (root, perm, dims) not in stand_ins:
            new = stand_ins[root, perm, dims] = unique(f"{root}.{'reshaped' if perm is None else 'transposed'}", used)
            used.add(new)
            if perm is None:
                shape = unique(f"{new}.shape", used)
                document.weights[shape] = numpy_helper.from_array(np.array(dims, np.int64), shape)
                used.add(shape)
                kept.append(helper.make_node("Reshape", [root, shape], [new]))
            else:
                kept.append(helper.make_node("Transpose", [root], [new], perm=perm))
        return stand_ins[root, perm, dims]

    for original in graph.node:
        node = copied(original)
        for index, name in enumerate(node.input):
            if name in roots:
                node.input[index] = stand_in(name)
        kept.append(node)
    document.put_nodes(kept)
    for name in roots:
        del document.weights[name]
