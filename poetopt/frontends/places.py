"""Recognise the parameters of layers by the operators that read them.

These are parameters: the weight or bias of a convolution or a product, and a bias that an Add puts on its result along
its channels; scale and shift of a normalization (as one operator or as several); the weights of recurrent layers;
PRelu's slope; a table indexed by data. A layer may also read a tensor computed from stored ones: by a quantizer, a
spectral norm, a sum with a low-rank matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from poetopt.frontends.read import Document, array_of
from poetopt.ops.op import Origin, op_of

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})

_PRESERVING = frozenset({"Clip", "Concat", "Gather", "Max", "Reciprocal"})
"""Ops whose result is a mean if their operand is one, and a root if it is one."""


@dataclass(frozen=True)
class LayerPlaces:
    """Stored tensors that layers read as parameters.

    Attributes
    ----------
    names
        All of them.
    fixed
        Values of Constant nodes that a layer reads as its weight, while other layers' weights are initializers.
    last
        The parameters of the last layer.
    """

    names: frozenset[str]
    fixed: frozenset[str]
    last: tuple[str, ...]


def places(document: Document, in_nodes: Set[str]) -> LayerPlaces:
    """Return the stored tensors that layers of `document` read as parameters.

    Parameters
    ----------
    in_nodes
        Names of the values of Constant nodes. If some layer's weight is an initializer, a layer whose weight is among
        these has a fixed filter, or is a normalization without scale.
    """
    sources = _source_weights(document)
    layers: list[dict[int, tuple[str, ...]]] = []
    for node in document.proto.graph.node:
        if all(name in sources for name in node.input if name):
            continue
        operands = {k: sources.get(node.input[k], ()) for k in op_of(node.op_type).weights if k < len(node.input)}
        operands = {k: names for k, names in operands.items() if names}
        if node.op_type in ("Gemm", "MatMul") and 1 in operands:
            operands.pop(0, None)  # the left operand of a weight is data: the initial state of an unrolled cell
        if operands:
            layers.append(operands)
    all_names = {name for operands in layers for names in operands.values() for name in names}
    if not all_names <= in_nodes:
        layers = [operands for operands in layers if any(name not in in_nodes for name in operands[min(operands)])]
    last = tuple(dict.fromkeys(name for names in layers[-1].values() for name in names)) if layers else ()
    parameters = {name for operands in layers for names in operands.values() for name in names}
    biases = _biases(document, sources)
    parameters |= biases.keys() | _affine(document, sources)
    return LayerPlaces(frozenset(parameters), frozenset(all_names - parameters), (*last, *_biases_of(biases, last)))


def _biases_of(biases: Mapping[str, Set[str]], weights: Iterable[str]) -> list[str]:
    """Return the biases added to a layer with one of these weights."""
    weight_names = set(weights)
    return [name for name, layers in biases.items() if weight_names & layers and name not in weight_names]


def _source_weights(document: Document) -> dict[str, tuple[str, ...]]:
    """Map each tensor that depends on no input to the float weights that it is computed from."""
    sources: dict[str, tuple[str, ...]] = {}
    sources |= {name: (name,) if w.data_type in FLOATS else () for name, w in document.weights.items()}
    for node in document.proto.graph.node:
        op = op_of(node.op_type)
        moved = op.numbers is Origin.MOVED
        inputs = [name for name in (node.input[:1] if moved else node.input) if name]
        if not inputs or any(name not in sources for name in inputs):
            continue
        value_inputs = [] if op.asks_shape else inputs[:1] if node.op_type == "Gather" else inputs
        names = dict.fromkeys(name for operand in value_inputs for name in sources[operand])
        if not (moved or node.op_type in ("Concat", "Gather")) or node.op_type == "Expand":  # scalars are the formula's
            names = {name: None for name in names if math.prod(document.weights[name].dims) > 1}
        # a limit of weights per tensor bounds the work
        sources.update((name, tuple(names)[:256]) for name in node.output if name)
    return sources


def _biases(document: Document, sources: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """Map each weight that an Add puts on a layer's result, one number per channel, to that layer's weights."""
    layers_of: dict[str, frozenset[str]] = {}
    biases: dict[str, frozenset[str]] = {}
    for node in document.proto.graph.node:
        op = op_of(node.op_type)
        if op.is_product:
            weights = [name for operand in node.input for name in sources.get(operand, ())]
            if weights and any(name not in sources for name in node.input if name):
                layers_of[node.output[0]] = frozenset(weights)
        elif op.numbers is Origin.MOVED and node.input[0] in layers_of:
            layers_of[node.output[0]] = layers_of[node.input[0]]
        elif node.op_type in ("Add", "Sum"):
            free = [name for name in node.input if name not in sources]
            if not free or any(name not in layers_of for name in free):
                continue
            layers = frozenset[str]().union(*(layers_of[name] for name in free))
            sizes = {math.prod(document.weights[name].dims) for name in layers}
            for name in (name for operand in node.input for name in sources.get(operand, ())):
                dims = [dim for dim in document.weights[name].dims if dim != 1]
                if len(dims) <= 1 and any(size % math.prod(dims) == 0 for size in sizes):
                    biases[name] = layers
            layers_of[node.output[0]] = layers
    return {name: layers for name, layers in biases.items() if _is_plausible_bias(document, name, layers)}


def _is_plausible_bias(document: Document, name: str, layers: Iterable[str]) -> bool:
    """Return whether a bias has several elements, or its layer a single channel."""
    if math.prod(document.weights[name].dims) > 1:
        return True
    return any(1 in document.weights[layer].dims[:1] or 1 in document.weights[layer].dims[-1:] for layer in layers)


def _affine(document: Document, sources: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return scales and shifts, one number per feature, of normalizations of one or several operators."""
    means: set[str] = set()
    roots: set[str] = set()
    normalized: set[str] = set()
    affine: set[str] = set()
    for node in document.proto.graph.node:
        inputs, outputs = set(node.input), list(filter(None, node.output[:1]))
        op = op_of(node.op_type)
        is_affine = node.op_type in {"Add", "Div", "Mul", "Sub"}
        if is_affine and inputs & (roots | normalized):
            affine.update(name for read in inputs for name in sources.get(read, ()) if _by_feature(document, name))
        if op.normalizes:
            normalized.update(outputs)
        elif op.sums:
            means.update(outputs)
        elif node.op_type in {"ReduceL2", "Sqrt"} or (node.op_type == "Pow" and _is_root(document, node)):
            if node.op_type == "ReduceL2" or inputs & means:
                roots.update(outputs)
        elif node.op_type in ("Div", "Mul") and inputs & (roots | normalized):
            is_root = inputs & roots and all(name in roots or name in sources for name in inputs)
            (roots if is_root else normalized).update(outputs)
        elif is_affine or op.numbers is Origin.MOVED or node.op_type in _PRESERVING:
            for group in (means, roots) if is_affine else (means, roots, normalized):
                if inputs & group:
                    group.update(outputs)
    return affine


def _by_feature(document: Document, name: str) -> bool:
    dims = [dim for dim in document.weights[name].dims if dim != 1]
    return len(dims) == 1


def _is_root(document: Document, node: NodeProto) -> bool:
    power = document.weights.get(node.input[1])
    if power is None or power.data_type not in FLOATS:
        return False
    return bool((abs(array_of(document, node.input[1])) == 0.5).all())
