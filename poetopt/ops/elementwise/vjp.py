"""Gradients of arithmetic and of element-wise functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from poetopt.autodiff import behind
from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.regions import DOMAIN
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, Single, register_vjp, single
from poetopt.frontends import checks
from poetopt.graph import Tensor
from poetopt.ops.op import ANYWHERE, EXP, Op, Origin, Steps, declare
from poetopt.ops.pieces import affine, masked, positive, sign
from poetopt.ops.runtimes.onnxruntime import axes, kernels
from poetopt.util.errors import ModelError

elementwise_op = partial(Op, letters=axes.elementwise)
unary, arithmetic_op = partial(elementwise_op, in_place=(0,)), partial(elementwise_op, flops=1, in_place=(0, 1))
variadic_op = partial(
    elementwise_op, flops=lambda c: c.n * (len(c.inputs) - 1), evaluation=Steps.PLAIN, workspace=kernels.variadic
)

declare("Abs", op=unary(flops=1, value=np.abs, range=(0.0, math.inf)))
declare("Acos", "Acosh", "Asin", "Atanh", op=Op(flops=2 * EXP, pole=ANYWHERE))
declare("Add", op=arithmetic_op(
    keeps_scores=True, is_linear=True, range=behind.pair(lambda a, b: (a[0] + b[0], a[1] + b[1])), value=np.add,
    exact=True,
))  # fmt: skip
declare("And", "Ceil", "Floor", "Not", "Or", "Round", "Sign", "Xor", op=elementwise_op(flops=1, blocked=None))
declare("Asinh", "Atan", "Cosh", "Sinh", "Tan", op=Op(flops=2 * EXP))
declare("BitShift", op=Op(blocked=None, attributes={"direction": ("LEFT", "RIGHT")}))
declare("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", op=Op(blocked=None))
declare("Cast", op=elementwise_op(flops=0, numbers=Origin.MOVED, keeps_scores=True, is_linear=True, any_type=True))
declare("CastLike", op=Op(flops=0, blocked=(1,), numbers=Origin.MOVED))
declare("Cos", "Sin", op=unary(flops=EXP, range=(-1.0, 1.0)))
declare("Div", op=arithmetic_op(
    keeps_scores=True, is_linear=True, range=behind.pair(behind.quotient), pole=1, exact=True,
    operands_check=checks.divisor, value=np.divide,
))  # fmt: skip
declare("Elu", op=elementwise_op(flops=EXP + 3, keeps_scores=True))
declare(
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    op=elementwise_op(flops=1, blocked=None, settings=(0, 1)),
)
declare("Erf", op=unary(flops=2 * EXP, range=(-1.0, 1.0), value=np.vectorize(math.erf, otypes=[np.float64])))
declare("Exp", op=unary(flops=EXP, is_probability=True, range=behind.monotone(behind.exp), value=np.exp))
declare("HardSigmoid", op=unary(
    flops=3, is_probability=True, range=(0.0, 1.0),
    value=lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0.0, 1.0),
))  # fmt: skip
declare("HardSwish", op=Op(flops=4, workspace=kernels.expanded))
declare("Hardmax", op=Op(
    blocked=None, is_probability=True, looks="axis", range=(0.0, 1.0), axis=0, workspace=kernels.softmax,
))  # fmt: skip
declare("IsInf", "IsNaN", op=Op(flops=1, blocked=None))
declare("Log", op=unary(flops=EXP, value=np.log, pole=0))
declare("Max", op=variadic_op(in_place=(0, 1), range=behind.pair(lambda a, b: (max(a[0], b[0]), max(a[1], b[1])))))
declare("Min", op=variadic_op(in_place=(0, 1), range=behind.pair(lambda a, b: (min(a[0], b[0]), min(a[1], b[1])))))
declare("Mish", op=Op(flops=3 * EXP, workspace=partial(kernels.expanded, temporaries=2)))
declare("Mod", op=elementwise_op(flops=1, attributes={"fmod": (0, 1)}, operands_check=checks.divisor))
declare("Mul", op=arithmetic_op(
    keeps_scores=True, is_linear=True, range=behind.pair(behind.product), value=np.multiply, exact=True,
))  # fmt: skip
declare("Neg", op=unary(flops=1, is_linear=True, range=behind.negated, value=np.negative, exact=True))
declare("PRelu", op=Op(flops=2, weights=(1,), keeps_scores=True))
declare("Pow", op=elementwise_op(flops=EXP, range=behind.power, value=np.power, pole=0))
declare("Reciprocal", op=unary(flops=1, value=np.reciprocal, pole=0))
declare("Selu", op=elementwise_op(flops=EXP + 3))
declare("Softplus", op=unary(flops=2 * EXP + 1, range=(0.0, math.inf), value=partial(np.logaddexp, 0.0)))
declare("Sqrt", op=unary(flops=1, range=behind.monotone(lambda x: math.sqrt(max(x, 0.0))), pole=0))
declare("Sub", op=arithmetic_op(
    keeps_scores=True, is_linear=True, range=behind.pair(lambda a, b: (a[0] - b[1], a[1] - b[0])),
    value=np.subtract, exact=True,
))  # fmt: skip
declare("Sum", op=variadic_op(keeps_scores=True, is_linear=True))
declare("Where", op=elementwise_op(flops=1, blocked=(0,), range=behind.choice, workspace=kernels.where))


@register_vjp("Add", since=7)
def add(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dA = dB = dY."""
    dy = op.only(cotangents)
    return dy, dy


@register_vjp("Sub", since=7)
def sub(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dA = dY, dB = -dY."""
    dy = op.only(cotangents)
    db = None
    if op.need(1):
        k = op.emit("grad_input")
        db = k.neg(k.sum_to(dy, op.input(1).shape))
    return dy, db


@register_vjp("Mul", since=7)
def mul(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dA = dY B, dB = dY A."""
    dy = op.only(cotangents)
    a, b = op.input(0), op.input(1)
    return (
        op.emit("grad_input").mul(dy, b) if op.need(0) else None,
        op.emit("grad_input").mul(dy, a) if op.need(1) else None,
    )


@register_vjp("Div", since=7)
def div(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dA = dY / B, dB = -dY Y / B, or -dY A / B^2 if only A is kept anyway, or is smaller than Y."""
    dy = op.only(cotangents)
    b = op.input(1)
    da = op.emit("grad_input").div(dy, b) if op.need(0) else None
    db = None
    if op.need(1):
        k = op.emit("grad_input")
        if (op.input(0).nbytes < op.y.nbytes and not op.builder.kept(op.y)) or not op.reads_output(k):
            db = k.neg(k.div(k.sum_to(k.div(k.mul(dy, op.input(0)), b), b.shape), b))
        else:
            db = k.neg(k.div(k.sum_to(k.mul(dy, op.y), b.shape), b))
    return da, db


@register_vjp("Mod", since=10)
def mod(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dA = dY, dB = -dY N, with Y = A - N B and N the integer part of A / B.

    N is computed as (A - Y) / B, rounded: the integer part of the quotient itself would be wrong next to an integer.
    It reads A and B, and Y if it is kept anyway.
    """
    dy = op.only(cotangents)
    if not op.attr_int("fmod", 0):
        raise ModelError(f"{op.where}: ONNX has the remainder of floats with fmod = 1 alone; export the model with it")
    db = None
    if op.need(1):
        k = op.emit("grad_input")
        a, b = op.input(0), op.input(1)
        y = op.y if op.builder.kept(op.y) else k.node("Mod", [a, b], op.y.shape, op.y.dtype, **dict(op.node.attributes))
        db = k.mul(dy, k.unary("Round", k.div(k.sub(y, a), b)))
    return dy, db


@register_vjp("Sum", since=8)
def sum_of_operands(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dY for every operand."""
    return (op.only(cotangents),) * len(op.inputs)


def _is_inside(k: OperatorBuilder, x: Tensor, low: float, high: float) -> Tensor:
    """Return 1 where low < x < high, else 0."""
    both = k.binary("And", k.compare("Greater", x, low), k.compare("Less", x, high))
    return k.cast(both, x.dtype)


def _add_scalar(k: OperatorBuilder, x: Tensor, value: float) -> Tensor:
    return k.add(x, k.graph.scalar(value, x.dtype)) if value else x


@single("Reciprocal", since=6)
def reciprocal(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = -dY Y^2."""
    y = op.result(k)
    return k.mul(k.mul(dy, y), k.neg(y))


@register_vjp("Pow", since=7)
def power(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY E X^(E-1); dE = dY Y log(X), 0 where X <= 0."""
    dy = op.only(cotangents)
    x, e = op.input(0), op.input(1)
    dx = de = None
    if op.need(0):
        k = op.emit("grad_input")
        known = op.value(1)
        if known is not None and known.size == 1 and not op.need(1):
            number = float(np.asarray(known, np.float64).reshape(()))
            one_less = number - 1.0
            base = x if one_less == 1.0 else k.binary("Pow", x, k.graph.scalar(one_less, x.dtype))
            dx = k.mul(k.mul(dy, base), number)
        else:
            exponent = k.cast(e, x.dtype)
            dx = k.mul(k.mul(dy, exponent), k.binary("Pow", x, _add_scalar(k, exponent, -1.0)))
    if op.need(1):
        k = op.emit("grad_exponent")
        safe = k.where(k.compare("Greater", x, 0.0), x, 1.0)
        de = masked(k, k.mul(dy, op.y), k.unary("Log", safe))
    return dx, de


@register_vjp("Where", since=9)
def where(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dY for each choice where it was chosen."""
    dy, condition = op.only(cotangents), op.input(0)
    da = db = None
    if op.need(1):
        k = op.emit("grad_input")
        da = masked(k, dy, k.cast(condition, dy.dtype))
    if op.need(2):
        k = op.emit("grad_input")
        refused = k.node("Not", [condition], condition.shape, "bool")
        db = masked(k, dy, k.cast(refused, dy.dtype))
    return None, da, db


def _extreme(op: Primal, cotangents: Cotangents) -> Gradients:
    """Share the gradient among the operands that equal the result."""
    dy = op.only(cotangents)
    operands = [op.input(i) for i in range(len(op.inputs))]
    required = [index for index in range(len(operands)) if op.need(index)]
    gradients: list[Tensor | None] = [None] * len(operands)
    # up to four operands have one operator per gradient; more operands share one operator, which compares once
    for group in [required] if len(required) > 4 else [[index] for index in required]:
        k = op.emit("grad_input")
        # all operands are read, so the result can be recomputed instead of being kept
        y = op.y if op.builder.kept(op.y) else k.node(op.node.op_type, operands, op.y.shape, op.y.dtype)
        masks = [k.cast(k.compare("Equal", operand, y), dy.dtype) for operand in operands]
        winners = masks[0]
        for mask in masks[1:]:
            winners = k.add(winners, mask)
        for index in group:
            gradients[index] = k.div(masked(k, dy, masks[index]), winners)
    return tuple(gradients)


for _op in ("Max", "Min"):
    register_vjp(_op, since=8)(_extreme)


def _exponential(k: OperatorBuilder, op: Primal, dy: Tensor, above: float, alpha: float) -> Tensor:
    """Return dX = above dY where X > 0, else offset dY exp(X) = dY (Y + offset).

    For usual settings Y has the sign of X.
    """
    offset = above * op.attr_float("alpha", alpha)
    if above <= 0 or offset < 0:
        below = k.mul(k.unary("Exp", k.binary("Min", op.x, k.graph.scalar(0.0, op.x.dtype))), offset)
        return k.mul(dy, k.add(below, k.mul(positive(k, op.x), above - offset)))
    y = op.result(k)
    factor = _add_scalar(k, k.binary("Min", y, k.graph.scalar(0.0, y.dtype)), offset)
    if above != offset:
        factor = k.add(factor, k.mul(positive(k, y), above - offset))
    return k.mul(dy, factor)


@single("Softplus", since=1)
def softplus(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY sigmoid(X), or from Y without cancellation 1 - exp(-Y) = 2 t / (1 + t), t = tanh(Y / 2)."""
    if not op.reads_output(k, default=False):
        return k.mul(dy, k.unary("Sigmoid", op.x))
    t = k.unary("Tanh", k.mul(op.y, 0.5))
    return k.mul(dy, k.div(k.mul(t, 2.0), _add_scalar(k, t, 1.0)))


@register_vjp("HardSwish", since=1, domain=DOMAIN)
@single("HardSwish", since=14)
def hard_swish(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY (X / 3 + 1/2) within (-3, 3), dY above, 0 below."""
    x = op.x
    middle = k.mul(_add_scalar(k, k.mul(x, 1 / 3), 0.5), _is_inside(k, x, -3.0, 3.0))
    return masked(k, dy, k.add(middle, k.cast(k.compare("GreaterOrEqual", x, 3.0), x.dtype)))


@register_vjp("Mish", since=1, domain=DOMAIN)
@single("Mish", since=18)
def mish(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY (t + X sigmoid(X) (1 - t^2)) with t = tanh(softplus(X))."""
    x = op.x
    t = k.unary("Tanh", k.unary("Softplus", x))
    slope = k.mul(k.mul(x, k.unary("Sigmoid", x)), k.sub(k.graph.scalar(1.0, x.dtype), k.mul(t, t)))
    return k.mul(dy, k.add(slope, t))


@register_vjp("PRelu", since=7)
def prelu(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY where X > 0, else slope dY; dSlope = dY min(X, 0)."""
    dy, x, slope = op.only(cotangents), op.input(0), op.input(1)
    dx = dslope = None
    if op.need(0):
        k = op.emit("grad_input")
        rest = k.sub(k.graph.scalar(1.0, x.dtype), slope)
        dx = k.mul(dy, k.add(k.mul(positive(k, x), rest), slope))
    if op.need(1):
        k = op.emit("grad_weight")
        dslope = masked(k, dy, k.binary("Min", x, k.graph.scalar(0.0, x.dtype)))
    return dx, dslope


def _square(k: OperatorBuilder, x: Tensor, scale: float, bias: float) -> Tensor:
    """Return scale x^2 + bias."""
    return affine(k, k.mul(x, x), scale, bias)


SINGLE: Mapping[tuple[str, int], Single] = {
    ("Neg", 6): lambda k, op, dy: k.neg(dy),
    ("Cast", 9): lambda k, op, dy: k.cast(dy, op.x.dtype),
    ("CastLike", 15): lambda k, op, dy: k.cast(dy, op.x.dtype),
    ("Abs", 6): lambda k, op, dy: masked(k, dy, sign(k, op.x)),
    ("Sqrt", 6): lambda k, op, dy: k.div(k.mul(dy, 0.5), op.result(k)),
    ("Exp", 6): lambda k, op, dy: k.mul(dy, op.result(k)),
    ("Log", 6): lambda k, op, dy: (
        k.mul(dy, k.unary("Exp", k.neg(op.y))) if op.reads_output(k, default=False) else k.div(dy, op.x)
    ),
    ("Sin", 7): lambda k, op, dy: k.mul(dy, k.unary("Cos", op.x)),
    ("Cos", 7): lambda k, op, dy: k.mul(dy, k.neg(k.unary("Sin", op.x))),
    ("Tan", 7): lambda k, op, dy: k.mul(dy, _square(k, op.y, 1.0, 1.0)),
    ("Sinh", 9): lambda k, op, dy: k.mul(dy, k.unary("Cosh", op.x)),
    ("Cosh", 9): lambda k, op, dy: k.mul(dy, k.unary("Sinh", op.x)),
    ("Asin", 7): lambda k, op, dy: k.div(dy, k.unary("Sqrt", _square(k, op.x, -1.0, 1.0))),
    ("Acos", 7): lambda k, op, dy: k.div(dy, k.neg(k.unary("Sqrt", _square(k, op.x, -1.0, 1.0)))),
    ("Atan", 7): lambda k, op, dy: k.div(dy, _square(k, op.x, 1.0, 1.0)),
    ("Asinh", 9): lambda k, op, dy: k.div(dy, k.unary("Sqrt", _square(k, op.x, 1.0, 1.0))),
    ("Acosh", 9): lambda k, op, dy: k.div(dy, k.unary("Sqrt", _square(k, op.x, 1.0, -1.0))),
    ("Atanh", 9): lambda k, op, dy: k.div(dy, _square(k, op.x, -1.0, 1.0)),
    ("Erf", 9): lambda k, op, dy: k.mul(dy, k.unary("Exp", _square(k, op.x, -1.0, math.log(2 / math.sqrt(math.pi))))),
    ("Elu", 6): lambda k, op, dy: _exponential(k, op, dy, 1.0, 1.0),
    ("Selu", 6): lambda k, op, dy: _exponential(
        k, op, dy, op.attr_float("gamma", 1.0507009873554805), 1.6732632423543772
    ),
    # alpha dY where 0 < Y < 1
    ("HardSigmoid", 6): lambda k, op, dy: k.mul(
        masked(k, dy, _is_inside(k, op.result(k), 0.0, 1.0)), op.attr_float("alpha", 0.2)
    ),
}
for (_op, _since), _rule in SINGLE.items():
    single(_op, since=_since)(_rule)
