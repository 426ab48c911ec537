"""Convolution in one to three dimensions, with any stride, dilation, groups and pads."""

from __future__ import annotations

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.conv_input import input_gradient
from poetopt.autodiff.rules.conv_weight import weight_gradient
from poetopt.autodiff.rules.geometry import window


@register_vjp("Conv", since=1)
def conv(op: Primal, cotangents: Cotangents) -> Gradients:
    """Y = X * W + B: three operators, one for each gradient; how each is built is chosen by the shape."""
    dy = op.only(cotangents)
    w = op.input(1)
    frame = window(op, w.shape[2:])
    group = op.attr_int("group", 1)
    dx = input_gradient(op.emit("grad_input"), dy, w, frame, group) if op.need(0) else None
    dw = weight_gradient(op.emit("grad_weight"), op.x, dy, w, frame, group) if op.need(1) else None
    db = None
    if op.need(2):
        axes = [axis for axis in range(len(dy.shape)) if axis != 1]
        db = op.emit("grad_bias").reduce_sum(dy, axes, keepdims=False)
    return dx, dw, db
