"""Element-wise arithmetic of several operands. Broadcasting is the loop's business."""

from __future__ import annotations

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.errors import ModelError


@register_vjp("Add", since=7)
def add(op: Primal, cotangents: Cotangents) -> Gradients:
    """Both operands get dY itself."""
    dy = op.only(cotangents)
    return dy, dy


@register_vjp("Sub", since=7)
def sub(op: Primal, cotangents: Cotangents) -> Gradients:
    """dA = dY, dB = -dY."""
    dy = op.only(cotangents)
    db = None
    if op.need(1):
        k = op.emit("grad_input")
        db = k.neg(k.sum_to(dy, op.input(1).shape))
    return dy, db


@register_vjp("Mul", since=7)
def mul(op: Primal, cotangents: Cotangents) -> Gradients:
    """dA = dY B, dB = dY A."""
    dy = op.only(cotangents)
    a, b = op.input(0), op.input(1)
    return (
        op.emit("grad_input").mul(dy, b) if op.need(0) else None,
        op.emit("grad_input").mul(dy, a) if op.need(1) else None,
    )


@register_vjp("Div", since=7)
def div(op: Primal, cotangents: Cotangents) -> Gradients:
    """dA = dY / B, dB = -dY Y / B, or -dY A / B^2 where A is there anyway and Y is not, or is smaller."""
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
    """With Y = A - N B, N the whole part of A / B: dA = dY, dB = -dY N.

    N is (A - Y) / B, rounded: the whole part of the quotient itself would err where that is next to an integer.
    Reads A and B, and Y where it is kept anyway.
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


@register_vjp("Neg", since=6)
def neg(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = -dY."""
    return (op.emit("grad_input").neg(op.only(cotangents)),)


@register_vjp("Sum", since=8)
def sum_of_operands(op: Primal, cotangents: Cotangents) -> Gradients:
    """Every operand gets dY."""
    return (op.only(cotangents),) * len(op.inputs)


@register_vjp("Cast", since=9)
def cast(op: Primal, cotangents: Cotangents) -> Gradients:
    """Back to the input's type; from integers nothing flows."""
    return (op.emit("grad_input").cast(op.only(cotangents), op.x.dtype),)
