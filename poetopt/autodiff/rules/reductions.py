"""Reductions beyond sums, and running sums. Each reads what its formula names; the rest is spread or masked."""

from __future__ import annotations

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import masked, sign
from poetopt.autodiff.rules.reduction import kept_shape, reduced_axes
from poetopt.graph import Tensor


def _start(op: Primal, cotangents: Cotangents) -> tuple[OperatorBuilder, Tensor, Tensor]:
    """A builder, dY and Y with the reduced axes of length one."""
    k = op.emit("grad_input")
    shape = kept_shape(op)
    return k, k.reshape(op.only(cotangents), shape), k.reshape(op.y, shape)


@register_vjp("ReduceSumSquare", since=1)
def sum_of_squares(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = 2 X dY. Reads X; no temporary of its size."""
    k, dy, _ = _start(op, cotangents)
    return k.mul(op.x, k.mul(dy, 2.0)), None


@register_vjp("ReduceL1", since=1)
def sum_of_magnitudes(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = sign(X) dY. Reads X; two temporaries."""
    k, dy, _ = _start(op, cotangents)
    return masked(k, dy, sign(k, op.x)), None


@register_vjp("ReduceL2", since=1)
def length(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = X dY / Y, 0 where Y is. Reads X and Y; no temporary of X's size."""
    k, dy, y = _start(op, cotangents)
    return masked(k, k.div(dy, k.add(y, k.cast(k.compare("Equal", y, 0.0), y.dtype))), op.x), None


@register_vjp("ReduceLogSum", since=1)
def log_of_sum(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY exp(-Y). Reads Y; no temporary of X's size."""
    k, dy, y = _start(op, cotangents)
    return k.expand(k.mul(dy, k.unary("Exp", k.neg(y))), op.x.shape), None


@register_vjp("ReduceLogSumExp", since=1)
def log_of_sum_of_exponentials(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = exp(X - Y) dY. Reads X and Y; two temporaries."""
    k, dy, y = _start(op, cotangents)
    return k.mul(k.unary("Exp", k.sub(op.x, y)), dy), None


@register_vjp("ReduceProd", since=1)
def product(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY times the product of all others, also where there are zeros. Reads X; three temporaries.

    With X' = X, its zeros replaced by ones: the product of X' divided by X', where no other element is zero.
    """
    k, dy, _ = _start(op, cotangents)
    x, axes = op.x, reduced_axes(op)
    zeros = k.cast(k.compare("Equal", x, 0.0), x.dtype)
    filled = k.add(x, zeros)
    if not axes:  # an empty list would mean all of them
        whole = filled
    elif k.graph.opset >= 18:
        whole = k.node("ReduceProd", [filled, k.graph.ints(axes)], dy.shape, x.dtype)
    else:
        whole = k.node("ReduceProd", [filled], dy.shape, x.dtype, axes=list(axes))
    alone = k.cast(k.compare("Equal", k.reduce_sum(zeros, axes), zeros), x.dtype)
    return masked(k, k.div(k.mul(dy, whole), filled), alone), None


@register_vjp("GlobalMaxPool", since=1)
def global_max_pool(op: Primal, cotangents: Cotangents) -> Gradients:
    """The largest elements share dY evenly. Reads X and Y; two temporaries."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    mask = k.cast(k.compare("Equal", op.x, op.y), dy.dtype)
    winners = k.reduce_sum(mask, range(2, len(op.x.shape)))
    return (masked(k, k.div(dy, winners), mask),)


@register_vjp("CumSum", since=11)
def running_sum(op: Primal, cotangents: Cotangents) -> Gradients:
    """The running sum of dY from the other end. Reads nothing; no temporary."""
    dy = op.only(cotangents)
    settings: dict[str, object] = {"exclusive": op.attr_int("exclusive", 0), "reverse": 1 - op.attr_int("reverse", 0)}
    k = op.emit("grad_input")
    return k.node("CumSum", [dy, op.input(1)], dy.shape, dy.dtype, **settings), None
