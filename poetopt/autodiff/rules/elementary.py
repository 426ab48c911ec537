"""Elementary functions of one input. Where a formula in the output exists, it is used: Y is often kept anyway."""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp


@register_vjp("Exp", since=6)
def exp(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY Y. Reads Y; no temporary."""
    return (op.emit("grad_input").mul(op.only(cotangents), op.y),)


@register_vjp("Log", since=6)
def log(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY / X. Reads X; no temporary."""
    return (op.emit("grad_input").div(op.only(cotangents), op.x),)


@register_vjp("Sqrt", since=6)
def sqrt(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY / (2 Y). Reads Y; one temporary."""
    k = op.emit("grad_input")
    return (k.div(k.mul(op.only(cotangents), 0.5), op.y),)


@register_vjp("Reciprocal", since=6)
def reciprocal(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = -dY Y^2. Reads Y; two temporaries."""
    k = op.emit("grad_input")
    return (k.mul(k.neg(k.mul(op.only(cotangents), op.y)), op.y),)


@register_vjp("Abs", since=6)
def absolute(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY sign(X). Reads X; one temporary."""
    k = op.emit("grad_input")
    return (k.mul(op.only(cotangents), k.sign(op.x)),)


@register_vjp("Sin", since=7)
def sin(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY cos X. Reads X; one temporary."""
    k = op.emit("grad_input")
    return (k.mul(op.only(cotangents), k.unary("Cos", op.x)),)


@register_vjp("Cos", since=7)
def cos(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = -dY sin X. Reads X; two temporaries."""
    k = op.emit("grad_input")
    return (k.mul(op.only(cotangents), k.neg(k.unary("Sin", op.x))),)


@register_vjp("Pow", since=7)
def power(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY E X^(E - 1), dE = dY Y log X (0 where X is not positive). Reads X, for dE also Y; two temporaries.

    Squares, roots and reciprocals (E known to be 2, 1/2 or -1) take no power.
    """
    dy, x, exponent = op.only(cotangents), op.x, op.input(1)
    dx = de = None
    if op.need(0):
        k = op.emit("grad_input")
        known = op.value(1)
        e = float(np.asarray(known).reshape(-1)[0]) if known is not None and exponent.size == 1 else None
        if e == 2.0:
            dx = k.mul(dy, k.mul(x, 2.0))
        elif e == 1.0:
            dx = dy
        elif e == 0.5:
            dx = k.div(k.mul(dy, 0.5), op.y)
        elif e == -1.0:
            dx = k.mul(k.neg(k.mul(dy, op.y)), op.y)
        elif e is not None:
            dx = k.mul(dy, k.mul(k.binary("Pow", x, k.graph.scalar(e - 1.0, x.dtype)), e))
        else:
            exact = k.cast(exponent, x.dtype)
            lower = k.binary("Pow", x, k.sub(exact, k.graph.scalar(1.0, x.dtype)))
            dx = k.mul(k.mul(dy, lower), exact)
    if op.need(1):
        k = op.emit("grad_exponent")
        tiny = k.graph.scalar(float(np.finfo(np.float32).tiny), x.dtype)
        one = k.graph.scalar(1.0, x.dtype)
        # log of a positive X, 0 elsewhere: Max keeps what is positive, and the rest becomes one
        outside = k.cast(k.compare("LessOrEqual", x, 0.0), x.dtype)
        safe = k.add(k.binary("Max", x, tiny), k.mul(outside, one))
        de = k.mul(k.mul(dy, op.y), k.unary("Log", safe))
    return dx, de
