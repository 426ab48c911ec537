"""Places of layers' parameters: a tensor is told by the operators that read it.

In a layer's place stand weight and bias of a convolution or a product, the bias that an Add puts behind one along its
channels, scale and shift of a normalization (as one operator or written out), the weights of recurrent layers, PRelu's
slope, and a table that data index. What such a place reads may be computed of stored tensors: a quantizer, a spectral
norm, a sum with a low-rank matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from poetopt.frontends.read import Document, array_of
from poetopt.ops.op import Origin, op_of

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})

_KEEP = frozenset({"Clip", "Concat", "Gather", "Max", "Reciprocal"})
"""Ops behind which a mean is a mean still, and a root a root."""


@dataclass(frozen=True)
class LayerPlaces:
    """The stored tensors in layers' places.

    names
        All of them.
    fixed
        Values of Constant nodes in the place of a layer's weight, beside layers whose weights are initializers.
    last
        Those of the last layer.
    """

    names: frozenset[str]
    fixed: frozenset[str]
    last: tuple[str, ...]


def places(document: Document, in_nodes: Set[str]) -> LayerPlaces:
    """Gives what stands in layers' places in `document`.

    in_nodes
        Names of the values of Constant nodes. Where some layer's weight is an initializer, a layer whose weight is none
        of these has a fixed filter, or a normalization no scale.
    """
    made = _made_of(document)
    layers: list[dict[int, tuple[str, ...]]] = []
    for node in document.proto.graph.node:
        if all(name in made for name in node.input if name):
            continue
        held = {k: made.get(node.input[k], ()) for k in op_of(node.op_type).weights if k < len(node.input)}
        held = {k: names for k, names in held.items() if names}
        if node.op_type in ("Gemm", "MatMul") and 1 in held:
            held.pop(0, None)  # what stands before a weight is data: the first state of an unrolled cell
        if held:
            layers.append(held)
    everything = {name for held in layers for names in held.values() for name in names}
    if not everything <= in_nodes:
        layers = [held for held in layers if any(name not in in_nodes for name in held[min(held)])]
    last = tuple(dict.fromkeys(name for names in layers[-1].values() for name in names)) if layers else ()
    found = {name for held in layers for names in held.values() for name in names}
    behind = _biases(document, made)
    found |= behind.keys() | _affine(document, made)
    return LayerPlaces(frozenset(found), frozenset(everything - found), (*last, *_of(behind, last)))


def _of(behind: Mapping[str, Set[str]], weights: Iterable[str]) -> list[str]:
    """The biases behind a layer with one of these weights."""
    wanted = set(weights)
    return [name for name, layers in behind.items() if wanted & layers and name not in wanted]


def _made_of(document: Document) -> dict[str, tuple[str, ...]]:
    """Tensors that depend on no input -> the float weights of which their numbers are made."""
    found: dict[str, tuple[str, ...]] = {}
    found |= {name: (name,) if w.data_type in FLOATS else () for name, w in document.weights.items()}
    for node in document.proto.graph.node:
        op = op_of(node.op_type)
        moves = op.numbers is Origin.MOVED
        inputs = [name for name in (node.input[:1] if moves else node.input) if name]
        if not inputs or any(name not in found for name in inputs):
            continue
        numbers = [] if op.asks_shape else inputs[:1] if node.op_type == "Gather" else inputs
        names = dict.fromkeys(name for held in numbers for name in found[held])
        if not (moves or node.op_type in ("Concat", "Gather")) or node.op_type == "Expand":  # a number is the formula's
            names = {name: None for name in names if math.prod(document.weights[name].dims) > 1}
        # so many weights are followed into one tensor
        found.update((name, tuple(names)[:256]) for name in node.output if name)
    return found


def _biases(document: Document, made: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """Weights that an Add puts on what a layer wrote, one number for each channel -> the weights of that layer."""
    behind: dict[str, frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for node in document.proto.graph.node:
        op = op_of(node.op_type)
        if op.is_product:
            weights = [name for held in node.input for name in made.get(held, ())]
            if weights and any(name not in made for name in node.input if name):
                behind[node.output[0]] = frozenset(weights)
        elif op.numbers is Origin.MOVED and node.input[0] in behind:
            behind[node.output[0]] = behind[node.input[0]]
        elif node.op_type in ("Add", "Sum"):
            free = [name for name in node.input if name not in made]
            if not free or any(name not in behind for name in free):
                continue
            layers = frozenset[str]().union(*(behind[name] for name in free))
            sizes = {math.prod(document.weights[name].dims) for name in layers}
            for name in (name for held in node.input for name in made.get(held, ())):
                dims = [dim for dim in document.weights[name].dims if dim != 1]
                if len(dims) <= 1 and any(size % math.prod(dims) == 0 for size in sizes):
                    found[name] = layers
            behind[node.output[0]] = layers
    return {name: layers for name, layers in found.items() if _several(document, name, layers)}


def _several(document: Document, name: str, layers: Iterable[str]) -> bool:
    """Says whether a bias has several numbers, or its layer one channel alone."""
    if math.prod(document.weights[name].dims) > 1:
        return True
    return any(1 in document.weights[layer].dims[:1] or 1 in document.weights[layer].dims[-1:] for layer in layers)


def _affine(document: Document, made: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Scales and shifts, one number for each feature, behind normalizations, written out or not."""
    means: set[str] = set()
    roots: set[str] = set()
    normalized: set[str] = set()
    found: set[str] = set()
    for node in document.proto.graph.node:
        inputs, outputs = set(node.input), list(filter(None, node.output[:1]))
        op = op_of(node.op_type)
        affine = node.op_type in {"Add", "Div", "Mul", "Sub"}
        if affine and inputs & (roots | normalized):
            found.update(name for held in inputs for name in made.get(held, ()) if _by_feature(document, name))
        if op.normalizes:
            normalized.update(outputs)
        elif op.sums:
            means.update(outputs)
        elif node.op_type in {"ReduceL2", "Sqrt"} or (node.op_type == "Pow" and _is_root(document, node)):
            if node.op_type == "ReduceL2" or inputs & means:
                roots.update(outputs)
        elif node.op_type in ("Div", "Mul") and inputs & (roots | normalized):
            constant = inputs & roots and all(name in roots or name in made for name in inputs)
            (roots if constant else normalized).update(outputs)
        elif affine or op.numbers is Origin.MOVED or node.op_type in _KEEP:
            for kind in (means, roots) if affine else (means, roots, normalized):
                if inputs & kind:
                    kind.update(outputs)
    return found


def _by_feature(document: Document, name: str) -> bool:
    dims = [dim for dim in document.weights[name].dims if dim != 1]
    return len(dims) == 1


def _is_root(document: Document, node: NodeProto) -> bool:
    power = document.weights.get(node.input[1])
    if power is None or power.data_type not in FLOATS:
        return False
    return bool((abs(array_of(document, node.input[1])) == 0.5).all())
