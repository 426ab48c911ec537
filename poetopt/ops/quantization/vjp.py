"""Quantized operators: nothing flows back through them, but straight through pairs that undo one another.

Rules are for `straight-through` alone (`poetopt.autodiff.quantization`): the gradient of the integers between is that
of the numbers that they stand for.
"""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import STRAIGHT, Cotangents, Gradients, Primal, declare_nondifferentiable, register_vjp
from poetopt.graph import Tensor
from poetopt.ops.pieces import masked
from poetopt.util.errors import MissingVjpError

for _op in ("DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"):
    declare_nondifferentiable(_op)
for _op in ("ConvInteger", "MatMulInteger"):
    declare_nondifferentiable(_op)

declare_nondifferentiable("QuantizeLinear", inputs=(1, 2), domain=STRAIGHT)
declare_nondifferentiable("DequantizeLinear", inputs=(1, 2), domain=STRAIGHT)


@register_vjp("DequantizeLinear", since=10, domain=STRAIGHT)
def dequantize(op: Primal, cotangents: Cotangents) -> Gradients:
    """The gradient itself, for the integers."""
    return op.only(cotangents), None, None


@register_vjp("QuantizeLinear", since=10, domain=STRAIGHT)
def quantize(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY where round(x / scale) + zero point is a number of the integer type, 0 where it is clipped.

    Reads X; three temporaries of its size.
    """
    dy, x = op.only(cotangents), op.x
    if op.y.dtype not in {"int8", "uint8", "int16", "uint16"}:
        raise MissingVjpError(f"{op.where}: there is no straight-through gradient for {op.y.dtype}")
    limits = np.iinfo(op.y.dtype)
    k = op.emit("grad_input")
    places = k.unary("Round", k.div(x, _along(op, k, op.input(1))))
    if op.has(2):
        places = k.add(places, k.cast(_along(op, k, op.input(2)), x.dtype))
    bounds = [k.graph.scalar(float(bound), x.dtype) for bound in (limits.min, limits.max)]
    clipped = k.node("Clip", [places, *bounds], x.shape, x.dtype)
    return masked(k, dy, k.cast(k.compare("Equal", places, clipped), dy.dtype)), None, None


def _along(op: Primal, k: OperatorBuilder, setting: Tensor) -> Tensor:
    """A scale or zero point as it broadcasts over x: one for all, or one for each place along the axis."""
    if op.attr_int("block_size", 0):
        raise MissingVjpError(f"{op.where}: there is no straight-through gradient for scales of blocks (block_size)")
    if setting.size == 1:
        return k.reshape(setting, ())
    rank = len(op.x.shape)
    axis = op.attr_int("axis", 1) % rank
    return k.reshape(setting, [setting.size if a == axis else 1 for a in range(rank)])
