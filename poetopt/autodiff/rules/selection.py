"""Ops that take one of several values: the gradient goes to the one that was taken."""

from __future__ import annotations

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp


@register_vjp("Where", since=9)
def where(op: Primal, cotangents: Cotangents) -> Gradients:
    """dA = dY where the condition holds, dB = dY where it does not. Reads the condition; one temporary of its shape."""
    dy, condition = op.only(cotangents), op.input(0)
    da = db = None
    if op.need(1):
        k = op.emit("grad_input")
        da = k.mul(dy, k.cast(condition, dy.dtype))
    if op.need(2):
        k = op.emit("grad_input")
        db = k.mul(dy, k.cast(k.unary("Not", condition), dy.dtype))
    return None, da, db


@register_vjp("Max", since=8)
@register_vjp("Min", since=8)
def extreme(op: Primal, cotangents: Cotangents) -> Gradients:
    """Each operand gets dY where it equals Y, divided by how many do. Reads Y and the operands.

    Temporaries: a mask (and where several operands get gradients, the count). Where all but one operand are known,
    ties are left to that one.
    """
    dy, y = op.only(cotangents), op.y
    if len(op.inputs) == 1:
        return (dy,)
    gradients = []
    open_inputs = [index for index in range(len(op.inputs)) if op.need(index)]
    for index in range(len(op.inputs)):
        if not op.need(index):
            gradients.append(None)
            continue
        k = op.emit("grad_input")
        mine = k.cast(k.compare("Equal", op.input(index), y), dy.dtype)
        if len(open_inputs) > 1:
            total = mine
            for other in range(len(op.inputs)):
                if other != index:
                    total = k.add(total, k.cast(k.compare("Equal", op.input(other), y), dy.dtype))
            mine = k.div(mine, total)
        gradients.append(k.mul(dy, mine))
    return tuple(gradients)
