"""Gradient rules: importing this module registers them, which the entry point `poetopt.rules` has done when needed."""

from __future__ import annotations

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp


@register_vjp("Shrink", since=9)
def shrink(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY where |X| > lambd, else 0, as Y = X -/+ bias there, and 0 between."""
    k = op.emit("grad_input")
    beyond = k.compare("Greater", k.unary("Abs", op.x), op.attr_float("lambd", 0.5))
    return (k.where(beyond, op.only(cotangents), 0.0),)
