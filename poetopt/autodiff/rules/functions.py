"""Functions of one input that few networks use. A formula in Y is taken where there is one."""

from __future__ import annotations

from collections.abc import Callable

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import affine, masked, positive
from poetopt.graph import Tensor

Slope = Callable[[OperatorBuilder, Tensor, Tensor], Tensor]
"""dY/dX, given x and y."""


def _times(slope: Slope) -> Callable[[Primal, Cotangents], Gradients]:
    def rule(op: Primal, cotangents: Cotangents) -> Gradients:
        k = op.emit("grad_input")
        return (k.mul(op.only(cotangents), slope(k, op.x, op.y)),)

    return rule


def _over(slope: Slope) -> Callable[[Primal, Cotangents], Gradients]:
    def rule(op: Primal, cotangents: Cotangents) -> Gradients:
        k = op.emit("grad_input")
        return (k.div(op.only(cotangents), slope(k, op.x, op.y)),)

    return rule


def _square(k: OperatorBuilder, x: Tensor, scale: float, bias: float) -> Tensor:
    """scale x^2 + bias."""
    return affine(k, k.mul(x, x), scale, bias)


register_vjp("Tan", since=7)(_times(lambda k, x, y: _square(k, y, 1.0, 1.0)))
register_vjp("Sinh", since=9)(_times(lambda k, x, y: k.unary("Cosh", x)))
register_vjp("Cosh", since=9)(_times(lambda k, x, y: k.unary("Sinh", x)))
register_vjp("Atan", since=7)(_over(lambda k, x, y: _square(k, x, 1.0, 1.0)))
register_vjp("Atanh", since=9)(_over(lambda k, x, y: _square(k, x, -1.0, 1.0)))
register_vjp("Asin", since=7)(_over(lambda k, x, y: k.unary("Sqrt", _square(k, x, -1.0, 1.0))))
register_vjp("Acos", since=7)(_over(lambda k, x, y: k.neg(k.unary("Sqrt", _square(k, x, -1.0, 1.0)))))
register_vjp("Asinh", since=9)(_over(lambda k, x, y: k.unary("Sqrt", _square(k, x, 1.0, 1.0))))
register_vjp("Acosh", since=9)(_over(lambda k, x, y: k.unary("Sqrt", _square(k, x, 1.0, -1.0))))


@register_vjp("Softsign", since=1)
def softsign(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY (1 - |Y|)^2. Reads Y; two temporaries."""
    k = op.emit("grad_input")
    rest = affine(k, k.unary("Abs", op.result(k)), -1.0, 1.0)
    return (k.mul(k.mul(op.only(cotangents), rest), rest),)


@register_vjp("ThresholdedRelu", since=10)
def thresholded_relu(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY where X > alpha, which is where Y > 0 unless alpha is negative. Reads X or Y; two temporaries."""
    k = op.emit("grad_input")
    alpha = op.attr_float("alpha", 1.0)
    if alpha >= 0 and op.reads_output(k):
        return (masked(k, op.only(cotangents), positive(k, op.y)),)
    return (masked(k, op.only(cotangents), positive(k, affine(k, op.x, 1.0, -alpha))),)


@register_vjp("Celu", since=12)
def celu(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY where X > 0, else dY (Y / alpha + 1). Reads Y; two temporaries."""
    k = op.emit("grad_input")
    below = k.binary("Min", op.result(k), k.graph.scalar(0.0, op.y.dtype))
    return (k.mul(op.only(cotangents), affine(k, below, 1.0 / op.attr_float("alpha", 1.0), 1.0)),)


@register_vjp("Swish", since=24)
def swish(op: Primal, cotangents: Cotangents) -> Gradients:
    """With s = sigmoid(alpha X) and Y = X s: dX = dY (s + alpha Y (1 - s)). Reads X, and Y where it is kept anyway.

    Three temporaries.
    """
    alpha = op.attr_float("alpha", 1.0)
    k = op.emit("grad_input")
    s = k.unary("Sigmoid", k.mul(op.x, alpha))
    y = op.y if op.builder.kept(op.y) else k.mul(op.x, s)
    return (k.mul(op.only(cotangents), k.add(s, k.mul(k.mul(y, alpha), affine(k, s, -1.0, 1.0)))),)


@register_vjp("Mean", since=8)
def mean(op: Primal, cotangents: Cotangents) -> Gradients:
    """Every operand gets its share of dY."""
    share = op.emit("grad_input").mul(op.only(cotangents), 1.0 / len(op.inputs))
    return (share,) * len(op.inputs)


@register_vjp("CastLike", since=15)
def cast_like(op: Primal, cotangents: Cotangents) -> Gradients:
    """Back to the input's type."""
    return op.emit("grad_input").cast(op.only(cotangents), op.x.dtype), None
