"""Gradients of activations, of fused activations, and of quantizers.

Activations are element-wise functions of one input, and softmax.

If a gradient can be computed from input or output, the rule reads the one that the backward pass of this graph reads
anyway (`Primal.reads_output`), else the output. Formulas keep at most one temporary of the input's size alive if
possible.

If only a MaxPool reads the output, only its maxima have a gradient other than 0, and the derivative there follows from
the maxima. So the product with the maxima comes before their scatter (`Spread`), and the output itself isn't kept.

Gelu's gradient reads X alone, as its derivative doesn't follow from Y without dividing by X. At most three temporaries
of X's size are alive at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from poetopt.autodiff import behind
from poetopt.autodiff.emit import OperatorBuilder, Spread
from poetopt.autodiff.regions import DOMAIN
from poetopt.autodiff.registry import (
    STRAIGHT,
    Cotangents,
    Gradients,
    Primal,
    declare_nondifferentiable,
    register_vjp,
    single,
)
from poetopt.frontends import checks
from poetopt.graph import Role, Tensor
from poetopt.ops import flops
from poetopt.ops.elementwise.vjp import elementwise_op, unary
from poetopt.ops.op import AUTO_PAD, EXP, MASKED, Op, Steps, declare
from poetopt.ops.pieces import affine, masked, positive, strictly_inside
from poetopt.ops.runtimes.onnxruntime import axes, kernels
from poetopt.util.errors import MissingVjpError

if TYPE_CHECKING:
    from poetopt.graph import Array

integer_op = partial(Op, is_integer=True, blocked=None)
softmax_op = partial(
    Op, looks="axis", loss="cross-entropy", pole=MASKED, axis=0, workspace=kernels.softmax, letters=axes.softmax
)

declare("Celu", op=Op(flops=EXP + 3))
declare("Clip", op=unary(
    flops=2, settings=(1, 2), range=behind.clip, lists=(1, 2),
    value=lambda x, least=-math.inf, most=math.inf: np.minimum(np.maximum(x, least), most),
))  # fmt: skip
declare("ConvInteger", op=integer_op(flops=lambda c: 2 * c.n * c.taps(1), attributes={"auto_pad": AUTO_PAD}))
declare("DequantizeLinear", op=Op(
    flops=1, blocked=None, settings=(1, 2), operands_check=checks.dequantize, cuts=axes.dequantize, exact=True,
))  # fmt: skip
declare("DynamicQuantizeLinear", op=Op(blocked=None))
declare("Gelu", op=Op(flops=2 * EXP + 4, attributes={"approximate": ("none", "tanh")}))
declare("LeakyRelu", op=elementwise_op(flops=2, keeps_scores=True))
declare("LogSoftmax", op=softmax_op(flops=flops.logarithms, range=(-math.inf, 0.0)))
declare("MatMulInteger", op=integer_op(flops=lambda c: 2 * c.n * c.inputs[0][-1]))
declare("Mean", op=Op(
    flops=lambda c: c.n * len(c.inputs), evaluation=Steps.PLAIN, range=behind.hull, workspace=kernels.variadic,
))  # fmt: skip
declare("QLinearConv", op=integer_op(
    flops=lambda c: c.n * (2 * c.taps(3) + c.has(8)), settings=tuple(range(9)), attributes={"auto_pad": AUTO_PAD},
))  # fmt: skip
declare("QLinearMatMul", op=integer_op(flops=lambda c: 2 * c.n * c.inputs[0][-1], settings=tuple(range(8))))
declare("QuantizeLinear", op=Op(flops=1, blocked=None, settings=(1, 2), operands_check=checks.dequantize))
declare("Relu", op=unary(
    flops=1, keeps_scores=True, range=behind.monotone(lambda x: max(x, 0.0)), value=partial(np.maximum, 0.0),
))  # fmt: skip
declare("Shrink", "ThresholdedRelu", op=Op(flops=1))
declare("Sigmoid", op=unary(
    flops=EXP + 3, is_probability=True, loss="bce", range=(0.0, 1.0), value=lambda x: 0.5 * (1.0 + np.tanh(0.5 * x)),
))  # fmt: skip
declare("Softmax", op=softmax_op(
    flops=lambda c: c.x * (4 + EXP), evaluation=Steps.COUNTED, is_probability=True, range=(0.0, 1.0),
))  # fmt: skip
declare("Softsign", op=elementwise_op(flops=3, range=(-1.0, 1.0)))
declare("Swish", op=Op(flops=EXP + 5, workspace=partial(kernels.expanded, temporaries=2)))
declare("Tanh", op=unary(flops=EXP + 5, range=(-1.0, 1.0), value=np.tanh))


@register_vjp("Relu", since=6)
def relu(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY where X > 0, or where Y > 0, which is the same."""
    k = op.emit("grad_input")
    spread = _spread(op, cotangents)
    dy, y = (spread.gradient, spread.maxima) if spread else (op.only(cotangents), op.either(k))
    dx = masked(k, dy, positive(k, y))
    k.amounts_to("Relu.grad_input", [dy, y], [dx])
    return (_scatter_spread(op, spread, dx),)


def _spread(op: Primal, cotangents: Cotangents) -> Spread | None:
    """Return how dY comes from a MaxPool; None unless only a MaxPool reads Y."""
    dy = cotangents[0]
    return op.builder.spreads.get(dy.name) if dy is not None and op.builder.maxima else None


def _scatter_spread(op: Primal, spread: Spread | None, dx: Tensor) -> Tensor:
    """Return dX from the gradient of X or, with a spread, of the maxima."""
    if spread is None:
        return dx
    return spread.put(op.builder.operator(f"{op.operator.name}.grad_places", spread.kind), dx)


@register_vjp("LeakyRelu", since=6)
def leaky_relu(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY where X > 0, else alpha dY. For alpha > 0, Y has the sign of X and replaces it."""
    alpha = op.attr_float("alpha", 0.01)
    k = op.emit("grad_input")
    spread = _spread(op, cotangents) if alpha > 0 else None
    dy = spread.gradient if spread else op.only(cotangents)
    step = positive(k, spread.maxima if spread else op.either(k) if alpha > 0 else op.x)
    dx = k.mul(dy, affine(k, step, 1.0 - alpha, alpha)) if alpha else masked(k, dy, step)
    return (_scatter_spread(op, spread, dx),)


@register_vjp("Clip", since=11)
def clip(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY where X (or Y, which is the same) lies strictly between the bounds.

    Elsewhere the bound that Y equals gets dY. If the lower bound is above the upper one, Y is the upper one.
    """
    dy = op.only(cotangents)
    if not (op.has(1) or op.has(2)):
        return (dy,)
    return (
        _clip_gradient(op, cotangents) if op.need(0) else None,
        *(_bound_gradient(op, dy, index) for index in (1, 2)),
    )


def _bound_gradient(op: Primal, dy: Tensor, index: int) -> Tensor | None:
    """Return the sum of dY where Y equals the bound of input `index`."""
    if not op.need(index):
        return None
    k = op.emit("grad_bound")
    off = k.compare("Less", op.y, op.input(2)) if op.has(2) else None
    if index == 2 and off is not None:
        at_bound = k.node("Not", [off], off.shape, "bool")
    else:
        above = k.compare("Greater", op.y, op.input(1))
        at_bound = k.node("Not", [above], above.shape, "bool")
        at_bound = at_bound if off is None else k.binary("And", at_bound, off)
    return k.sum_to(masked(k, dy, k.cast(at_bound, dy.dtype)), op.input(index).shape)


def _clip_gradient(op: Primal, cotangents: Cotangents) -> Tensor:
    """Return the gradient of X."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    spread = _spread(op, cotangents)
    dy, y = (spread.gradient, spread.maxima) if spread else (dy, op.either(k))
    bounds = [(op.input(index), index == 1) for index in (1, 2) if op.has(index)]
    known = {"low" if below else "high": _constant(op, bound) for bound, below in bounds}
    original = dy
    limited = None if y is op.x else _mask_both_bounds(k, dy, y, known)
    dy = limited or _mask_each_bound(op, k, dy, y, bounds)
    if all(value is not None and value.size == 1 for value in known.values()):
        limits = {name: float(value.reshape(())) for name, value in known.items() if value is not None}
        k.amounts_to("Clip.grad_input", [original, y], [dy], **limits)
    return _scatter_spread(op, spread, dy)


def _mask_each_bound(
    op: Primal, k: OperatorBuilder, dy: Tensor, y: Tensor, bounds: Sequence[tuple[Tensor, bool]]
) -> Tensor:
    """Return dY where y differs from each bound, else 0; `bounds` pairs each bound with whether it is the lower one."""
    steps = [strictly_inside(k, y, _constant(op, bound), below) for bound, below in bounds]
    for (bound, below), step in zip(bounds, steps, strict=True):
        if step is None:
            step = k.cast(k.binary("Greater" if below else "Less", y, bound, "bool"), dy.dtype)
        dy = masked(k, dy, step)
    return dy


def _mask_both_bounds(k: OperatorBuilder, dy: Tensor, y: Tensor, known: Mapping[str, Array | None]) -> Tensor | None:
    """Return dY where y differs from 0 and from a constant, by one temporary: y becomes 0 at its upper bound first.

    Return None for other bounds. y must be clipped: an infinite y would become NaN.
    """
    low, high = known.get("low"), known.get("high")
    if low is None or high is None or low.size != 1 or low.any():
        return None
    below_high = strictly_inside(k, y, high, below=False)
    return None if below_high is None else masked(k, dy, positive(k, k.mul(y, below_high)))


def _constant(op: Primal, tensor: Tensor) -> Array | None:
    return op.builder.values.get(tensor.name) if tensor.role is Role.CONSTANT else None


def _from_output(
    op: Primal, cotangents: Cotangents, build: Callable[[OperatorBuilder, Tensor, Tensor], Tensor]
) -> Tensor:
    """Return dX from dY and Y, as a fused op unless Y has to be computed again."""
    k = op.emit("grad_input")
    spread = _spread(op, cotangents)
    dy, y = (spread.gradient, spread.maxima) if spread else (op.only(cotangents), op.result(k))
    recomputed = len(k.nodes)
    dx = build(k, dy, y)
    if not recomputed:
        k.amounts_to(f"{op.node.op_type}.grad_input", [dy, y], [dx])
    return _scatter_spread(op, spread, dx)


@register_vjp("Sigmoid", since=6)
@register_vjp("Sigmoid", since=1, domain=DOMAIN)
def sigmoid(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY Y (1 - Y)."""
    return (_from_output(op, cotangents, lambda k, dy, y: k.mul(k.mul(dy, y), k.sub(k.graph.scalar(1.0, y.dtype), y))),)


@register_vjp("Tanh", since=6)
def tanh(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY (1 - Y^2)."""
    return (_from_output(op, cotangents, lambda k, dy, y: k.mul(dy, k.sub(k.graph.scalar(1.0, y.dtype), k.mul(y, y)))),)


@register_vjp("Softmax", since=1, domain=DOMAIN)
@single("Softmax", since=13)
def softmax(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = Y (dY - sum(dY Y)) along the axis."""
    y = op.y
    inner = k.reduce_sum(k.mul(dy, y), [op.attr_int("axis", -1)])
    dx = k.mul(k.sub(dy, inner), y)
    k.amounts_to("Softmax.grad_input", [dy, y], [dx], axis=op.attr_int("axis", -1))
    return dx


@single("LogSoftmax", since=13)
def log_softmax(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY - exp(Y) sum(dY) along the axis."""
    y = op.y
    total = k.reduce_sum(dy, [op.attr_int("axis", -1)])
    return k.sub(dy, k.mul(k.unary("Exp", y), total))


_TANH = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


@register_vjp("Gelu", since=1, domain=DOMAIN)
@single("Gelu", since=20)
def gelu(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY (P + X p) for erf; P and p are the normal distribution and its density.

    For tanh, Y = X s(u), with the sigmoid s and u = 2 sqrt(2 / pi) (X + 0.044715 X^3). Then
    dX = dY (s + X u' s (1 - s)).
    """
    x = op.x
    if op.attr_text("approximate", "none") == "tanh":
        square = k.mul(x, x)
        inner = k.mul(x, affine(k, square, 2 * _TANH * _CUBIC, 2 * _TANH))
        slope = k.mul(x, affine(k, square, 6 * _TANH * _CUBIC, 2 * _TANH))
        s = k.unary("Sigmoid", inner)
        rest = k.mul(slope, k.sub(k.graph.scalar(1.0, x.dtype), s))
        dx = k.mul(dy, k.add(s, k.mul(rest, s)))
        k.amounts_to("Gelu.grad_input", [dy, x], [dx], approximate="tanh")
        return dx
    density = k.unary("Exp", affine(k, k.mul(x, x), -0.5, -0.5 * math.log(2 * math.pi)))
    weighted = k.mul(x, density)
    below = affine(k, k.unary("Erf", k.mul(x, math.sqrt(0.5))), 0.5, 0.5)
    dx = k.mul(dy, k.add(below, weighted))
    k.amounts_to("Gelu.grad_input", [dy, x], [dx])
    return dx


@single("Celu", since=12)
def celu(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY where X > 0, else dY (Y / alpha + 1). It reads Y; two temporaries."""
    below = k.binary("Min", op.result(k), k.graph.scalar(0.0, op.y.dtype))
    return k.mul(dy, affine(k, below, 1.0 / op.attr_float("alpha", 1.0), 1.0))


@single("Softsign", since=1)
def softsign(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY (1 - |Y|)^2. It reads Y; two temporaries."""
    rest = affine(k, k.unary("Abs", op.result(k)), -1.0, 1.0)
    return k.mul(k.mul(dy, rest), rest)


@single("ThresholdedRelu", since=10)
def thresholded_relu(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY where X > alpha (or Y > 0, unless alpha is negative). It reads X or Y; two temporaries."""
    alpha = op.attr_float("alpha", 1.0)
    if alpha >= 0 and op.reads_output(k):
        return masked(k, dy, positive(k, op.y))
    return masked(k, dy, positive(k, affine(k, op.x, 1.0, -alpha)))


@register_vjp("Swish", since=1, domain=DOMAIN)
@single("Swish", since=24)
def swish(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY (s + alpha Y (1 - s)), with s = sigmoid(alpha X) and Y = X s.

    It reads X, and Y if it is kept anyway; three temporaries.
    """
    alpha = op.attr_float("alpha", 1.0)
    s = k.unary("Sigmoid", k.mul(op.x, alpha))
    y = op.y if op.builder.kept(op.y) else k.mul(op.x, s)
    return k.mul(dy, k.add(s, k.mul(k.mul(y, alpha), affine(k, s, -1.0, 1.0))))


@register_vjp("Mean", since=8)
def mean(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return an equal share of dY for every operand."""
    share = op.emit("grad_input").mul(op.only(cotangents), 1.0 / len(op.inputs))
    return (share,) * len(op.inputs)


declare_nondifferentiable("QuantizeLinear", inputs=(1, 2), domain=STRAIGHT)
declare_nondifferentiable("DequantizeLinear", inputs=(1, 2), domain=STRAIGHT)


@register_vjp("DequantizeLinear", since=10, domain=STRAIGHT)
def dequantize(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dY as the gradient of the integers."""
    return op.only(cotangents), None, None


@register_vjp("QuantizeLinear", since=10, domain=STRAIGHT)
def quantize(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY where round(x / scale) + zero point is in the range of the integer type, 0 where it is clipped.

    It reads X; three temporaries of its size.
    """
    dy, x = op.only(cotangents), op.x
    if op.y.dtype not in {"int8", "uint8", "int16", "uint16"}:
        raise MissingVjpError(
            f"{op.where}: there is no straight-through gradient for {op.y.dtype}; quantize to int8, uint8, int16 or "
            "uint16"
        )
    limits = np.iinfo(op.y.dtype)
    k = op.emit("grad_input")
    places = k.unary("Round", k.div(x, _broadcast_setting(op, k, op.input(1))))
    if op.has(2):
        places = k.add(places, k.cast(_broadcast_setting(op, k, op.input(2)), x.dtype))
    bounds = [k.graph.scalar(float(bound), x.dtype) for bound in (limits.min, limits.max)]
    clipped = k.node("Clip", [places, *bounds], x.shape, x.dtype)
    return masked(k, dy, k.cast(k.compare("Equal", places, clipped), dy.dtype)), None, None


def _broadcast_setting(op: Primal, k: OperatorBuilder, setting: Tensor) -> Tensor:
    """Reshape a scale or zero point to broadcast over x: one for all, or one for each position along the axis."""
    if op.attr_int("block_size", 0):
        raise MissingVjpError(
            f"{op.where}: there is no straight-through gradient for scales of blocks (block_size); use one scale per "
            "tensor or axis"
        )
    if setting.size == 1:
        return k.reshape(setting, ())
    rank = len(op.x.shape)
    axis = op.attr_int("axis", 1) % rank
    return k.reshape(setting, [setting.size if a == axis else 1 for a in range(rank)])
