"""Col2Im (torch's `fold`): windows are added up in an image; each of their elements gets the gradient of its place."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.geometry import Window
from poetopt.errors import MissingVjpError, ModelError
from poetopt.graph import Tensor


@register_vjp("Col2Im", since=18)
def col2im(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = the windows of dY (im2col): one Gather from its padded planes.

    Reads nothing but dY; the padded image, and the place of each element of a plane's windows (4 bytes).
    """
    dy, frame = op.only(cotangents), _frame(op)
    k = op.emit("grad_input")
    planes = math.prod(dy.shape[:2])
    wide = k.pad(k.reshape(dy, (planes, *frame.size)), (0, *frame.before), (0, *frame.declared_after))
    flat = k.reshape(wide, (planes, wide.size // max(planes, 1)))
    places = _places(k, frame, wide.shape[1:])
    columns = k.node("Gather", [flat, places], (planes, *places.shape), dy.dtype, axis=1)
    return k.reshape(columns, op.x.shape), None, None


def _frame(op: Primal) -> Window:
    kernel = tuple(int(n) for n in op.known(2).reshape(-1))
    size, rank = op.y.shape[2:], len(kernel)
    strides, dilations = (op.attr_ints(name) or (1,) * rank for name in ("strides", "dilations"))
    pads = op.attr_ints("pads") or (0,) * (2 * rank)
    if rank != 2 and any(d > 1 for d in dilations):
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for dilations over {rank} axes, where onnxruntime computes "
            "something else than ONNX says; fold over two axes, or without dilations"
        )
    out = tuple(
        (n + before + after - d * (k - 1) - 1) // s + 1
        for n, before, after, d, k, s in zip(size, pads[:rank], pads[rank:], dilations, kernel, strides, strict=True)
    )
    frame = Window(kernel, strides, dilations, pads[:rank], pads[rank:], size, out)
    if op.x.shape[1:] != (op.y.shape[1] * frame.taps, math.prod(out)):
        raise ModelError(
            f"{op.where}: columns of shape {list(op.x.shape)} don't fit {math.prod(out)} windows of {frame.taps} "
            "elements"
        )
    return frame


def _places(k: OperatorBuilder, frame: Window, padded: tuple[int, ...]) -> Tensor:
    """Where in a plane each element of each window lies: [taps of each axis, positions of each axis]."""
    parts: list[Tensor] = []
    for axis in range(frame.rank):
        taps, positions = np.arange(frame.kernel[axis]), np.arange(frame.out[axis])
        lines = taps[:, None] * frame.dilations[axis] + positions * frame.strides[axis]
        shape = [1] * (2 * frame.rank)
        shape[axis], shape[frame.rank + axis] = lines.shape
        strided = lines * math.prod(padded[axis + 1 :])
        parts.append(k.graph.constant(strided.reshape(shape).astype(np.int32)))
    return reduce(k.add, parts)
