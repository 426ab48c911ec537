"""Evaluate what is constant: Constant nodes and the arithmetic on shapes that exporters leave behind.

One node at a time, with ONNX's reference implementation. Nothing random is folded, nothing huge, and
nothing that a trained parameter leads to (its reader is simply never given as constant).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto
from onnx.reference import ReferenceEvaluator

from poetopt.frontends.read import LIBRARY_ERRORS

if TYPE_CHECKING:
    from poetopt.graph import Array

RANDOM = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
"""Operators whose result differs from run to run."""

LARGEST_FOLDED_BYTES = 2**31
"""A constant beyond this is left to be computed."""


def evaluate(node: NodeProto, constants: Mapping[str, Array], opset: int) -> dict[str, Array] | None:
    """The outputs of `node`, or None where the reference implementation can't tell.

    Every input is in `constants`. Arrays are read-only.
    """
    if node.op_type == "Identity":
        return {node.output[0]: constants[node.input[0]]}
    feeds = {name: np.asarray(constants[name]) for name in node.input if name}
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(node, opsets={"": opset}).run(None, feeds)
    except LIBRARY_ERRORS:
        return None
    results: dict[str, Array] = {}
    for name, value in zip(node.output, found, strict=False):
        if name:
            array = np.array(value)
            if array.dtype.kind in "OUS":
                return None
            array.setflags(write=False)
            results[name] = array
    return results
