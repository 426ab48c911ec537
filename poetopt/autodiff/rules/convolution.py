"""Convolution in one to three dimensions, with any stride, dilation, groups and pads."""

from __future__ import annotations

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.conv_input import input_gradient
from poetopt.autodiff.rules.conv_weight import weight_gradient
from poetopt.autodiff.rules.geometry import Window, window
from poetopt.errors import ModelError


@register_vjp("Conv", since=1)
def conv(op: Primal, cotangents: Cotangents) -> Gradients:
    """Y = X * W + B: three operators, one for each gradient; how each is built is chosen by the shape."""
    dy = op.only(cotangents)
    w = op.input(1)
    frame = window(op, w.shape[2:])
    group = op.attr_int("group", 1)
    dx = dw = db = None
    if op.need(0):
        k = op.emit("grad_input")
        dx = input_gradient(k, dy, w, frame, group)
        k.amounts_to("Conv.grad_input", [dy, w], [dx], **_attributes(frame, group))
    if op.need(1):
        k = op.emit("grad_weight")
        dw = weight_gradient(k, op.x, dy, w, frame, group)
        k.amounts_to("Conv.grad_weight", [dy, op.x], [dw], **_attributes(frame, group))
    if op.need(2):
        axes = [axis for axis in range(len(dy.shape)) if axis != 1]
        db = op.emit("grad_bias").reduce_sum(dy, axes, keepdims=False)
    return dx, dw, db


def _attributes(frame: Window, group: int) -> dict[str, object]:
    """The attributes of the convolution whose gradient it is, with its pads worked out."""
    return {
        "strides": list(frame.strides), "dilations": list(frame.dilations),
        "pads": [*frame.before, *frame.declared_after], "group": group,
    }  # fmt: skip


@register_vjp("ConvTranspose", since=1)
def conv_transpose(op: Primal, cotangents: Cotangents) -> Gradients:
    """The adjoint of a convolution from Y to X with the same W: dX is that convolution, dW its weight gradient."""
    dy, x, w = op.only(cotangents), op.x, op.input(1)
    frame, group = _adjoint_window(op), op.attr_int("group", 1)
    dx = dw = db = None
    if op.need(0):
        dx = op.emit("grad_input").conv(
            dy, w, strides=frame.strides, dilations=frame.dilations, pads=(*frame.before, *frame.declared_after),
            group=group,
        )  # fmt: skip
    if op.need(1):
        k = op.emit("grad_weight")
        dw = weight_gradient(k, dy, x, w, frame, group)
        k.amounts_to("Conv.grad_weight", [x, dy], [dw], **_attributes(frame, group))
    if op.need(2):
        axes = [axis for axis in range(len(dy.shape)) if axis != 1]
        db = op.emit("grad_bias").reduce_sum(dy, axes, keepdims=False)
    return dx, dw, db


def _adjoint_window(op: Primal) -> Window:
    """The window of the convolution from Y to X; pads that make it end at X's last position."""
    rank = len(op.x.shape) - 2
    kernel, size, out = op.input(1).shape[2:], op.y.shape[2:], op.x.shape[2:]
    strides, dilations = op.attr_ints("strides") or (1,) * rank, op.attr_ints("dilations") or (1,) * rank
    auto = op.attr_text("auto_pad", "NOTSET")
    before = (op.attr_ints("pads") or (0,) * (2 * rank))[:rank]
    extent = [(o - 1) * s + (t - 1) * d + 1 for o, s, t, d in zip(out, strides, kernel, dilations, strict=True)]
    extra = op.attr_ints("output_padding") or (0,) * rank
    total = [e + p - n for e, p, n in zip(extent, extra, size, strict=True)]
    if op.attr_ints("output_shape") or auto in {"SAME_UPPER", "SAME_LOWER"}:
        before = tuple(t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total)
    elif auto == "VALID":
        before = (0,) * rank
    after = tuple(t - b - p for t, b, p in zip(total, before, extra, strict=True))
    if min((*before, *(a + p for a, p in zip(after, extra, strict=True))), default=0) < 0:
        raise ModelError(f"{op.where}: its pads are negative; no gradient rule covers that")
    return Window(kernel, strides, dilations, before, tuple(max(a, 0) for a in after), size, out)
