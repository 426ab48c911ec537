"""What the operands of operators are: weights of a layer, settings, statistics, first states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from onnx import NodeProto, TensorProto

from poetopt.frontends.read import Document, array_of
from poetopt.frontends.views import SAME_NUMBERS, Views, reads, roots

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})

NOT_TRAINED: Mapping[str, frozenset[int]] = {
    "Attention": frozenset({3}),
    "BatchNormalization": frozenset({3, 4}),
    "Clip": frozenset({1, 2}),
    "ConstantOfShape": frozenset({0}),
    "DequantizeLinear": frozenset({1, 2}),
    "Dropout": frozenset({1, 2}),
    "Equal": frozenset({0, 1}),
    "Greater": frozenset({0, 1}),
    "GreaterOrEqual": frozenset({0, 1}),
    "Less": frozenset({0, 1}),
    "LessOrEqual": frozenset({0, 1}),
    "NonMaxSuppression": frozenset(range(5)),
    "OneHot": frozenset({2}),
    "Pad": frozenset({2}),
    "QLinearConv": frozenset(range(9)),
    "QLinearMatMul": frozenset(range(8)),
    "QuantizeLinear": frozenset({1, 2}),
    "Range": frozenset({0, 1, 2}),
    "Resize": frozenset({1, 2, 3}),
    "RotaryEmbedding": frozenset({1, 2}),
    "Shape": frozenset({0}),
    "Size": frozenset({0}),
    "SoftmaxCrossEntropyLoss": frozenset({2}),
    "NegativeLogLikelihoodLoss": frozenset({2}),
    "Upsample": frozenset({1}),
}
"""Operands (by index) that are settings or statistics rather than weights."""

LEARNABLE: Mapping[str, frozenset[int]] = {"Attention": frozenset({3})}
"""Those of them that have a gradient all the same: trained where the file or `--train` says so."""

WEIGHTS: Mapping[str, frozenset[int]] = {
    "BatchNormalization": frozenset({1, 2}),
    "Conv": frozenset({1, 2}),
    "ConvTranspose": frozenset({1, 2}),
    "Gemm": frozenset({0, 1, 2}),
    "GroupNormalization": frozenset({1, 2}),
    "GRU": frozenset({1, 2, 3}),
    "InstanceNormalization": frozenset({1, 2}),
    "LayerNormalization": frozenset({1, 2}),
    "LSTM": frozenset({1, 2, 3}),
    "MatMul": frozenset({0, 1}),
    "PRelu": frozenset({1}),
    "RMSNormalization": frozenset({1}),
    "RNN": frozenset({1, 2, 3}),
}
"""Operands (by index) that are always a layer's weights."""

FIRST_STATES: Mapping[str, frozenset[int]] = {"GRU": frozenset({5}), "LSTM": frozenset({5, 6}), "RNN": frozenset({5})}
"""Operands (by index) that are data where they are all zero, and weights where someone gave them values."""

NORMALIZATIONS = frozenset({
    "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization",
})  # fmt: skip
"""Operators that must have a scale (input 1), so that exporters write one where the module has none."""


FEATURES = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
"""Layers that an Add may stand behind, for their bias."""


def layer_operands(document: Document, node: NodeProto, seen: Views) -> frozenset[int]:
    """Places of a layer's weights among the inputs of `node`.

    What stands before a weight in a product is data, if constant data: the first state of an unrolled recurrent cell.
    """
    places = frozenset(i for i in WEIGHTS.get(node.op_type, ()) if i < len(node.input))
    if node.op_type in ("Gemm", "MatMul") and len(node.input) > 1:
        return places - {0} if roots(document, seen, node.input[1]) else places
    return places


def layer_weights(document: Document, seen: Views) -> set[str]:
    """The float weights that stand where layers have theirs, or whose views do."""
    return {
        name
        for node in document.proto.graph.node
        for index, name in reads(document, seen, node)
        if index in WEIGHTS.get(node.op_type, ()) and document.weights[name].data_type in FLOATS
    }


def biases(document: Document, seen: Views) -> set[str]:
    """Weights that an Add puts on what a layer wrote, one number for each of its features."""
    sizes: dict[str, int] = {}
    found: set[str] = set()
    for node in document.proto.graph.node:
        if node.op_type in FEATURES:
            weights = [root for _, root in reads(document, seen, node)]
            if weights:
                sizes[node.output[0]] = max(math.prod(document.weights[name].dims) for name in weights)
        elif node.op_type in SAME_NUMBERS and node.input[0] in sizes:
            sizes[node.output[0]] = sizes[node.input[0]]
        elif node.op_type == "Add":
            layer = next((sizes[name] for name in node.input if name in sizes), 0)
            for _, root in reads(document, seen, node):
                dims = [dim for dim in document.weights[root].dims if dim != 1]
                if layer and len(dims) <= 1 and layer % math.prod(dims) == 0:
                    found.add(root)
    return found


def stored_beside(document: Document, node: NodeProto, constants: Set[str], seen: Views) -> frozenset[int]:
    """Places of biases in Constant nodes of a layer whose weight is an initializer: parameters as well."""
    if node.op_type in NORMALIZATIONS or len(node.input) < 3:
        return frozenset()
    weight = any(name not in constants for index, name in reads(document, seen, node) if index < 2)
    return frozenset(range(2, len(node.input))) if weight else frozenset()


def idle(document: Document, node: NodeProto, constants: Set[str]) -> frozenset[int]:
    """Places of a scale of ones and a bias of zeros in Constant nodes: the module of this normalization has none."""
    if node.op_type not in NORMALIZATIONS:
        return frozenset()
    return frozenset(
        place
        for place, value in ((1, 1.0), (2, 0.0))
        if place < len(node.input) and node.input[place] in constants and filled(document, node.input[place], value)
    )


def zero_states(document: Document, node: NodeProto) -> frozenset[int]:
    """Places of first states that are all zero."""
    places = FIRST_STATES.get(node.op_type, frozenset())
    return frozenset(i for i in places if i < len(node.input) and filled(document, node.input[i], 0.0))


def filled(document: Document, name: str, value: float) -> bool:
    """Whether `name` is a float weight whose every element is `value`."""
    proto = document.weights.get(name)
    return proto is not None and proto.data_type in FLOATS and bool((array_of(document, name) == value).all())


def integer_scales(document: Document) -> list[str]:
    """Weights that are multiplied with the scale of a DynamicQuantizeLinear: scales of integers, and no parameters."""
    nodes = document.proto.graph.node
    scales = {n.output[1] for n in nodes if n.op_type == "DynamicQuantizeLinear" and len(n.output) > 1}
    products = (node for node in nodes if node.op_type == "Mul" and scales.intersection(node.input))
    return [name for node in products for name in node.input if name in document.weights]
