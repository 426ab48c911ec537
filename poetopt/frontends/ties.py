"""One parameter for all copies that an exporter made of one weight.

Exporters fold the transpose of a weight into a second one. Where the weight serves elsewhere too (an embedding that is
the output layer's matrix, a layer that is used twice), the file then holds it twice, and trained apart each copy would
get its own use's share of the gradient. The copies are found

- by the metadata of PyTorch's newer exporter, which names what a tensor was folded from; the values must agree;
- by value: a matrix that is another one's transpose, element for element, which no chance brings about; and under a
  name that an exporter made up (`onnx::Sub_20`) what holds a weight's numbers with another number of axes. Tensors that
  are equal as they stand prove nothing: exporters merge these themselves, or keep apart what the module keeps apart
  (the layers of a fresh Transformer are copies of its first).

A copy becomes a Transpose or a Reshape of the weight (or the weight itself), so that gradients add up.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from poetopt.frontends.leftovers import named_by_exporter
from poetopt.frontends.operands import FLOATS
from poetopt.frontends.proto import copied
from poetopt.frontends.read import Document, array_of
from poetopt.frontends.unique import unique
from poetopt.util.notes import Note

if TYPE_CHECKING:
    from poetopt.graph import Array

_LEAST_VALUES = 16
"""A matrix with fewer different values may equal another one by chance."""
_MOST_AXES = 4


@dataclass(frozen=True)
class Ties:
    """What was tied.

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
    if not known:
        reshaped = _reshaped_pairs(document, usable)
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
    """Whether `copy` is a Reshape of `root` to another number of axes, by so many numbers that it is no chance."""
    if root.dtype != copy.dtype or root.size != copy.size or root.ndim == copy.ndim:
        return False
    flat = root.reshape(-1)
    return np.array_equal(flat, copy.reshape(-1)) and np.unique(flat).size >= _LEAST_VALUES


def _reshaped_pairs(document: Document, names: Iterable[str]) -> dict[str, str]:
    """Tensors with a name that an exporter made up -> the one weight whose numbers they hold with other axes."""
    wanted = set(names)
    sizes: dict[tuple[int, int], list[str]] = {}
    for name, proto in document.weights.items():
        size = math.prod(proto.dims)
        if name in wanted and name not in document.fills and proto.data_type in FLOATS and size >= _LEAST_VALUES:
            sizes.setdefault((proto.data_type, size), []).append(name)
    found: dict[str, str] = {}
    for group in sizes.values():
        copies = [name for name in group if named_by_exporter(name)]
        if not copies or len(copies) == len(group):
            continue
        held: dict[bytes, list[str]] = {}
        for name in group:
            if not named_by_exporter(name):
                held.setdefault(_digest(array_of(document, name).reshape(-1)), []).append(name)
        for copy in copies:
            value = array_of(document, copy)
            alike = held.get(_digest(value.reshape(-1)), ())
            others = [name for name in alike if len(document.weights[name].dims) != value.ndim]
            if len(others) == 1 and _same_numbers(array_of(document, others[0]), value):
                found[copy] = others[0]
    return found


def _order(root: Array, copy: Array) -> tuple[int, ...] | None:
    """The order of axes in which `root` is `copy`, if there is one."""
    if root.dtype != copy.dtype or sorted(root.shape) != sorted(copy.shape) or root.ndim > _MOST_AXES:
        return None
    for perm in permutations(range(root.ndim)):
        turned = root.transpose(perm)
        if turned.shape == copy.shape and np.array_equal(turned, copy):
            return perm
    return None


def _telling(value: Array) -> bool:
    """Whether another matrix that is the transpose of `value` must be a copy of it."""
    return not np.array_equal(value, value.T) and np.unique(value).size >= _LEAST_VALUES


def _digest(value: Array) -> bytes:
    """The same for equal values, zeros of either sign included."""
    return hashlib.blake2b(np.ascontiguousarray(np.add(value, 0, dtype=value.dtype)).tobytes(), digest_size=16).digest()


def _transposed_pairs(document: Document, names: Iterable[str], folded: Set[str] | None) -> Iterator[tuple[str, str]]:
    """Matrices that are each other's transposes: a weight and its copy.

    folded
        The tensors that are known to be copies; None where the file doesn't say. Then which is the copy is a guess:
        names of folded tensors are made up (`onnx::MatMul_17`).

    Of many that are alike only the pairs that say something new: their number is that of the matrices at most.
    """
    for group in _alike(document, names):
        ranked = sorted(group, key=lambda name: "::" in name)
        value = array_of(document, ranked[0])
        straight = _digest(value)
        same = {name for name in ranked if _digest(array_of(document, name)) == straight}
        one, other = [n for n in ranked if n in same], [n for n in ranked if n not in same]
        if not other or not _telling(value) or not np.array_equal(value.T, array_of(document, other[0])):
            continue
        if folded is None:
            yield from ((one[0], copy) for copy in other)
            yield from ((other[0], copy) for copy in ranked[ranked.index(other[0]) :] if copy in same)
            continue
        for weights, copies in ((one, other), (other, one)):
            weight = next((name for name in weights if name not in folded), None)
            if weight is not None:
                yield from ((weight, copy) for copy in copies if copy in folded)


def _alike(document: Document, names: Iterable[str]) -> Iterator[list[str]]:
    """Matrices of two or more with the same values, some of them perhaps transposed.

    By their corner elements first, which stay in place: few weights are read whole.
    """
    wanted = set(names)
    shapes = {
        name: tuple(proto.dims)
        for name, proto in document.weights.items()
        if name in wanted and name not in document.fills and proto.data_type in FLOATS and len(proto.dims) == 2
    }
    counts = Counter(shapes.values())
    corners: dict[tuple[object, ...], list[str]] = {}
    for name, shape in shapes.items():
        lone = counts[shape] == 1 if shape[0] == shape[1] else shape[::-1] not in counts
        if lone or math.prod(shape) < _LEAST_VALUES:
            continue
        value = array_of(document, name)
        key = (min(shape), max(shape), value.dtype.name, value[0, 0].tobytes(), value[-1, -1].tobytes())
        corners.setdefault(key, []).append(name)
    for group in corners.values():
        if len(group) == 1:
            continue
        same: dict[frozenset[bytes], list[str]] = {}
        for name in group:
            value = array_of(document, name)
            same.setdefault(frozenset({_digest(value), _digest(value.T)}), []).append(name)
        yield from (names for names in same.values() if len(names) > 1)


def _replace(document: Document, roots: dict[str, str], perms: dict[str, tuple[int, ...]]) -> None:
    """Let readers of each copy read the weight itself, or its Transpose or Reshape, which stands before the first."""
    graph = document.proto.graph
    taken = {*document.weights, *(name for node in graph.node for name in node.output)}
    made: dict[tuple[str, tuple[int, ...]], str] = {}
    turned: dict[tuple[str, tuple[int, ...]], str] = {}
    kept: list[NodeProto] = []
    for original in graph.node:
        node = copied(original)
        for index, name in enumerate(node.input):
            if name not in roots:
                continue
            root = roots[name]
            if name not in perms:
                dims = tuple(int(dim) for dim in document.weights[name].dims)
                if (root, dims) not in turned:
                    turned[root, dims] = unique(f"{root}.reshaped", taken)
                    shape = unique(f"{turned[root, dims]}.shape", taken)
                    document.weights[shape] = numpy_helper.from_array(np.array(dims, np.int64), shape)
                    taken |= {turned[root, dims], shape}
                    kept.append(helper.make_node("Reshape", [root, shape], [turned[root, dims]]))
                node.input[index] = turned[root, dims]
                continue
            perm = perms[name]
            if perm == tuple(range(len(perm))):
                node.input[index] = root
                continue
            if (root, perm) not in made:
                made[root, perm] = unique(f"{root}.transposed", taken)
                taken.add(made[root, perm])
                kept.append(helper.make_node("Transpose", [root], [made[root, perm]], perm=perm))
            node.input[index] = made[root, perm]
        kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    for name in roots:
        del document.weights[name]
