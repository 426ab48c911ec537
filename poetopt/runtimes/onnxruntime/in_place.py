"""What onnxruntime's kernels may write over."""

from __future__ import annotations

from collections.abc import Mapping

from poetopt.graph import Node

_FIRST, _EITHER = (0,), (0, 1)
IN_PLACE: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), _EITHER),
    **dict.fromkeys(("Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Sin", "Cos", "Erf", "Relu", "Clip"), _FIRST),
    **dict.fromkeys(("Sigmoid", "Tanh", "HardSigmoid", "Softplus", "BatchNormalization"), _FIRST),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _FIRST),
}
"""Ops whose kernel gives the same bits where its output lies on an operand of the same size, and which operands."""


def in_place(node: Node) -> tuple[int, ...]:
    """Which inputs of a node its kernel may write over, by position."""
    return () if node.domain else IN_PLACE.get(node.op_type, ())
