"""Element-wise functions of one input, and softmax.

Each rule reads the output where a formula in it exists: the next layer's weight gradient needs that
tensor anyway. Formulas keep at most one temporary of the input's size alive where they can.
"""

from __future__ import annotations

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp


@register_vjp("Relu", since=6)
def relu(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY sign(Y): Y is never negative, and Sign needs no bool mask beside the float one."""
    k = op.emit("grad_input")
    return (k.mul(op.only(cotangents), k.sign(op.y)),)


@register_vjp("LeakyRelu", since=6)
def leaky_relu(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY where X >= 0, else alpha dY. The sign of dY decides nothing, so PRelu of the sign gives the factor."""
    dy, x = op.only(cotangents), op.x
    alpha = op.attr_float("alpha", 0.01)
    k = op.emit("grad_input")
    positive = k.cast(k.compare("GreaterOrEqual", x, 0.0), x.dtype)
    factor = k.add(k.mul(positive, 1.0 - alpha), k.graph.scalar(alpha, x.dtype))
    return (k.mul(dy, factor),)


@register_vjp("Sigmoid", since=6)
def sigmoid(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY Y (1 - Y)."""
    dy, y = op.only(cotangents), op.y
    k = op.emit("grad_input")
    return (k.mul(k.mul(dy, y), k.sub(k.graph.scalar(1.0, y.dtype), y)),)


@register_vjp("Tanh", since=6)
def tanh(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY (1 - Y^2)."""
    dy, y = op.only(cotangents), op.y
    k = op.emit("grad_input")
    return (k.mul(dy, k.sub(k.graph.scalar(1.0, y.dtype), k.mul(y, y))),)


@register_vjp("Softmax", since=13)
def softmax(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = Y (dY - sum(dY Y)) along the axis."""
    dy, y = op.only(cotangents), op.y
    k = op.emit("grad_input")
    inner = k.reduce_sum(k.mul(dy, y), [op.attr_int("axis", -1)])
    return (k.mul(k.sub(dy, inner), y),)


@register_vjp("LogSoftmax", since=13)
def log_softmax(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY - exp(Y) sum(dY) along the axis."""
    dy, y = op.only(cotangents), op.y
    k = op.emit("grad_input")
    total = k.reduce_sum(dy, [op.attr_int("axis", -1)])
    return (k.sub(dy, k.mul(k.unary("Exp", y), total)),)
