"""Weights in a layer's place that no operator tells alone: behind computations, and of normalizations written out.

A convolution may read `W` through a quantizer, a spectral norm or a sum with a low-rank matrix. And exporters write a
LayerNormalization or RMSNormalization as nodes: a quotient by a root of means, then a product with the scale and a sum.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto

from poetopt.frontends.operands import NORMALIZATIONS, WEIGHTS, filled
from poetopt.frontends.read import Document
from poetopt.frontends.views import SAME_NUMBERS

_MEANS = frozenset({"GlobalAveragePool", "ReduceMean", "ReduceSum", "ReduceSumSquare"})
_ROOTS = frozenset({"ReduceL2", "Sqrt"})
_NORMALIZE = NORMALIZATIONS | {"LpNormalization", "MeanVarianceNormalization"}
_KEEP = SAME_NUMBERS | {"Clip", "Max", "Reciprocal"}
_MOST = 256
"""So many weights are followed into one tensor."""


def written_out(document: Document) -> set[str]:
    """Weights that a layer's weight or bias is computed of, and scales and biases of normalizations."""
    behind = _behind(document)
    return _in_layers(document, behind) | _of_normalizations(document, behind)


def _in_layers(document: Document, behind: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Weights that a layer's weight or bias is computed of."""
    return {
        name
        for node in document.proto.graph.node
        for index in WEIGHTS.get(node.op_type, ())
        if index < len(node.input)
        for name in behind.get(node.input[index], ())
    }


def _of_normalizations(document: Document, behind: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Scales and biases, one number for each feature, behind normalizations, written out or not."""
    means: set[str] = set()
    roots: set[str] = set()
    normalized: set[str] = set()
    found: set[str] = set()
    for node in document.proto.graph.node:
        inputs, outputs = set(node.input), list(filter(None, node.output[:1]))
        affine = node.op_type in ("Add", "Div", "Mul", "Sub")
        if affine and inputs & (roots | normalized):
            found.update(name for other in inputs for name in behind.get(other, ()) if _by_feature(document, name))
        if node.op_type in _NORMALIZE:
            normalized.update(outputs)
        elif node.op_type in _MEANS:
            means.update(outputs)
        elif node.op_type in _ROOTS or (node.op_type == "Pow" and _is_root(document, node)):
            if node.op_type == "ReduceL2" or inputs & means:
                roots.update(outputs)
        elif node.op_type in ("Div", "Mul") and inputs & (roots | normalized):
            constant = inputs & roots and all(name in roots or name in behind for name in inputs)
            (roots if constant else normalized).update(outputs)
        elif affine or node.op_type in _KEEP:
            for kind in (means, roots) if affine else (means, roots, normalized):
                if inputs & kind:
                    kind.update(outputs)
    return found


def _behind(document: Document) -> Mapping[str, tuple[str, ...]]:
    """Tensors that depend on no input -> the weights that they are computed of."""
    found: dict[str, tuple[str, ...]] = {name: (name,) for name in document.weights}
    for node in document.proto.graph.node:
        inputs = [name for name in node.input if name]
        if node.op_type == "CastLike" or (node.op_type in SAME_NUMBERS and node.op_type not in ("Concat", "Gather")):
            inputs = inputs[:1]  # what says how may be computed
        if inputs and all(name in found for name in inputs):
            names = tuple(dict.fromkeys(name for held in inputs for name in found[held]))[:_MOST]
            found.update((name, names) for name in node.output if name)
    return found


def _by_feature(document: Document, name: str) -> bool:
    dims: list[int] = [dim for dim in document.weights[name].dims if dim != 1]
    return len(dims) <= 1


def _is_root(document: Document, node: NodeProto) -> bool:
    power = node.input[1]
    return filled(document, power, 0.5) or filled(document, power, -0.5)
