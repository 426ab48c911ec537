"""Gelu and Erf.

Gelu's gradient reads X alone: of its forward formula nothing can be had from Y without dividing by X. At most
three temporaries of X's size are alive at once.
"""

from __future__ import annotations

import math

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import affine

_TANH = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


@register_vjp("Gelu", since=20)
def gelu(op: Primal, cotangents: Cotangents) -> Gradients:
    """With erf: dX = dY (P + X p), P and p the normal distribution and its density.

    With tanh, Y = X s(u), s the sigmoid and u = 2 sqrt(2 / pi) (X + 0.044715 X^3): dX = dY (s + X u' s (1 - s)).
    """
    dy, x = op.only(cotangents), op.x
    k = op.emit("grad_input")
    if op.attr_text("approximate", "none") == "tanh":
        square = k.mul(x, x)
        inner = k.mul(x, affine(k, square, 2 * _TANH * _CUBIC, 2 * _TANH))
        slope = k.mul(x, affine(k, square, 6 * _TANH * _CUBIC, 2 * _TANH))
        s = k.unary("Sigmoid", inner)
        rest = k.mul(slope, k.sub(k.graph.scalar(1.0, x.dtype), s))
        dx = k.mul(dy, k.add(s, k.mul(rest, s)))
        k.amounts_to("Gelu.grad_input", [dy, x], [dx], approximate="tanh")
        return (dx,)
    density = k.unary("Exp", affine(k, k.mul(x, x), -0.5, -0.5 * math.log(2 * math.pi)))
    weighted = k.mul(x, density)
    below = affine(k, k.unary("Erf", k.mul(x, math.sqrt(0.5))), 0.5, 0.5)
    dx = k.mul(dy, k.add(below, weighted))
    k.amounts_to("Gelu.grad_input", [dy, x], [dx])
    return (dx,)


@register_vjp("Erf", since=9)
def erf(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY 2 / sqrt(pi) exp(-X^2)."""
    dy, x = op.only(cotangents), op.x
    k = op.emit("grad_input")
    return (k.mul(dy, k.unary("Exp", affine(k, k.mul(x, x), -1.0, math.log(2 / math.sqrt(math.pi))))),)
