"""Element-wise functions of one input, and softmax.

Where input and output will both do, a rule reads the one that the backward pass of this graph reads anyway (see
`Primal.reads_output`), else the output. Formulas keep at most one temporary of the input's size alive where they can.

Where nobody but a MaxPool reads the output, only its maxima have a gradient other than 0, and the derivative there can
be had from the maxima: the product is taken with these before it is put in its places (see `Spread`), and the output
itself isn't kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from poetopt.autodiff.emit import OperatorBuilder, Spread
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import affine, masked, positive, strictly_inside
from poetopt.graph import Role, Tensor

if TYPE_CHECKING:
    from poetopt.graph import Array


@register_vjp("Relu", since=6)
def relu(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY where X > 0, and so where Y > 0: either decides."""
    k = op.emit("grad_input")
    spread = _spread(op, cotangents)
    dy, y = (spread.gradient, spread.maxima) if spread else (op.only(cotangents), op.either(k))
    dx = masked(k, dy, positive(k, y))
    k.amounts_to("Relu.grad_input", [dy, y], [dx])
    return (_placed(op, spread, dx),)


def _spread(op: Primal, cotangents: Cotangents) -> Spread | None:
    """How dY comes from a MaxPool, where one alone reads Y."""
    dy = cotangents[0]
    return op.builder.spreads.get(dy.name) if dy is not None and op.builder.maxima else None


def _placed(op: Primal, spread: Spread | None, dx: Tensor) -> Tensor:
    """dX, given that of the maxima where there is a spread."""
    if spread is None:
        return dx
    return spread.put(op.builder.operator(f"{op.operator.name}.grad_places", spread.kind), dx)


@register_vjp("LeakyRelu", since=6)
def leaky_relu(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY where X > 0, else alpha dY. Y has the sign of X where alpha > 0, and serves for it."""
    alpha = op.attr_float("alpha", 0.01)
    k = op.emit("grad_input")
    spread = _spread(op, cotangents) if alpha > 0 else None
    dy = spread.gradient if spread else op.only(cotangents)
    step = positive(k, spread.maxima if spread else op.either(k) if alpha > 0 else op.x)
    dx = k.mul(dy, affine(k, step, 1.0 - alpha, alpha)) if alpha else masked(k, dy, step)
    return (_placed(op, spread, dx),)


@register_vjp("Clip", since=11)
def clip(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY where X, and so Y, lies strictly between the bounds: either decides. Else the bound that Y is gets dY.

    Where the lower bound is above the upper one, Y is the upper one.
    """
    dy = op.only(cotangents)
    if not (op.has(1) or op.has(2)):
        return (dy,)
    return (_clipped(op, cotangents) if op.need(0) else None, *(_bound(op, dy, index) for index in (1, 2)))


def _bound(op: Primal, dy: Tensor, index: int) -> Tensor | None:
    """The sum of dY where Y is the bound that input `index` has."""
    if not op.need(index):
        return None
    k = op.emit("grad_bound")
    off = k.compare("Less", op.y, op.input(2)) if op.has(2) else None
    if index == 2 and off is not None:
        there = k.node("Not", [off], off.shape, "bool")
    else:
        above = k.compare("Greater", op.y, op.input(1))
        there = k.node("Not", [above], above.shape, "bool")
        there = there if off is None else k.binary("And", there, off)
    return k.sum_to(masked(k, dy, k.cast(there, dy.dtype)), op.input(index).shape)


def _clipped(op: Primal, cotangents: Cotangents) -> Tensor:
    """The gradient of X."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    spread = _spread(op, cotangents)
    dy, y = (spread.gradient, spread.maxima) if spread else (dy, op.either(k))
    bounds = [(op.input(index), index == 1) for index in (1, 2) if op.has(index)]
    known = {"low" if below else "high": _constant(op, bound) for bound, below in bounds}
    given = dy
    limited = None if y is op.x else _off_both(k, dy, y, known)
    dy = limited or _off_each(op, k, dy, y, bounds)
    if all(value is not None and value.size == 1 for value in known.values()):
        limits = {name: float(value.reshape(())) for name, value in known.items() if value is not None}
        k.amounts_to("Clip.grad_input", [given, y], [dy], **limits)
    return _placed(op, spread, dy)


def _off_each(op: Primal, k: OperatorBuilder, dy: Tensor, y: Tensor, bounds: Sequence[tuple[Tensor, bool]]) -> Tensor:
    """dY where y lies off each bound, given with whether it is the lower one; else 0."""
    steps = [strictly_inside(k, y, _constant(op, bound), below) for bound, below in bounds]
    for (bound, below), step in zip(bounds, steps, strict=True):
        if step is None:
            step = k.cast(k.binary("Greater" if below else "Less", y, bound, "bool"), dy.dtype)
        dy = masked(k, dy, step)
    return dy


def _off_both(k: OperatorBuilder, dy: Tensor, y: Tensor, known: Mapping[str, Array | None]) -> Tensor | None:
    """The same for y between 0 and a constant, by one temporary instead of two: y is made 0 at its upper bound first.

    None for other bounds. y must be clipped: an infinite one would become NaN.
    """
    low, high = known.get("low"), known.get("high")
    if low is None or high is None or low.size != 1 or low.any():
        return None
    below_high = strictly_inside(k, y, high, below=False)
    return None if below_high is None else masked(k, dy, positive(k, k.mul(y, below_high)))


def _constant(op: Primal, tensor: Tensor) -> Array | None:
    return op.builder.values.get(tensor.name) if tensor.role is Role.CONSTANT else None


@register_vjp("Sigmoid", since=6)
def sigmoid(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY Y (1 - Y)."""
    k = op.emit("grad_input")
    spread = _spread(op, cotangents)
    dy, y = (spread.gradient, spread.maxima) if spread else (op.only(cotangents), op.result(k))
    again = len(k.nodes)
    dx = k.mul(k.mul(dy, y), k.sub(k.graph.scalar(1.0, y.dtype), y))
    if not again:
        k.amounts_to("Sigmoid.grad_input", [dy, y], [dx])
    return (_placed(op, spread, dx),)


@register_vjp("Tanh", since=6)
def tanh(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY (1 - Y^2)."""
    k = op.emit("grad_input")
    spread = _spread(op, cotangents)
    dy, y = (spread.gradient, spread.maxima) if spread else (op.only(cotangents), op.result(k))
    again = len(k.nodes)
    dx = k.mul(dy, k.sub(k.graph.scalar(1.0, y.dtype), k.mul(y, y)))
    if not again:
        k.amounts_to("Tanh.grad_input", [dy, y], [dx])
    return (_placed(op, spread, dx),)


@register_vjp("Softmax", since=13)
def softmax(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = Y (dY - sum(dY Y)) along the axis."""
    dy, y = op.only(cotangents), op.y
    k = op.emit("grad_input")
    inner = k.reduce_sum(k.mul(dy, y), [op.attr_int("axis", -1)])
    dx = k.mul(k.sub(dy, inner), y)
    k.amounts_to("Softmax.grad_input", [dy, y], [dx], axis=op.attr_int("axis", -1))
    return (dx,)


@register_vjp("LogSoftmax", since=13)
def log_softmax(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY - exp(Y) sum(dY) along the axis."""
    dy, y = op.only(cotangents), op.y
    k = op.emit("grad_input")
    total = k.reduce_sum(dy, [op.attr_int("axis", -1)])
    return (k.sub(dy, k.mul(k.unary("Exp", y), total)),)
