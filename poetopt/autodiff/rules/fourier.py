"""DFT: linear, so that the gradient is the transform of dY with the conjugate matrix.

With n the length of the transform, F its matrix, and x cut or filled up with zeros to n:

| setting | y | dX |
|---|---|---|
| | F x | n F^-1 dY |
| inverse | F^-1 x | F dY / n |
| onesided | the first half of F x | n F^-1 of dY and zeros |
| onesided, inverse | F^-1 of x and its conjugate, mirrored | the first half of F dY times 2 / n, at its ends 1 / n |

A real x gets the real part, what was filled up or cut nothing. Nothing but dY is read; a temporary or two of its size.
"""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.errors import MissingVjpError
from poetopt.graph import Tensor


@register_vjp("DFT", since=17)
def dft(op: Primal, cotangents: Cotangents) -> Gradients:
    """The axis is an attribute."""
    return _transformed(op, op.only(cotangents), op.attr_int("axis", 1)), None


@register_vjp("DFT", since=20)
def dft_of_input_axis(op: Primal, cotangents: Cotangents) -> Gradients:
    """The axis is an input."""
    axis = int(op.known(2).reshape(-1)[0]) if op.has(2) else -2
    return _transformed(op, op.only(cotangents), axis), None, None


def _transformed(op: Primal, dy: Tensor, axis: int) -> Tensor:
    shape = op.x.shape
    axis %= len(shape)
    inverse, onesided = bool(op.attr_int("inverse", 0)), bool(op.attr_int("onesided", 0))
    given = int(op.known(1).reshape(-1)[0]) if op.has(1) else None
    k = op.emit("grad_input")
    if inverse and onesided:
        return _of_real(op, k, dy, axis)
    length = shape[axis] if given is None else given
    whole = _fitted(k, dy, axis, length)
    found = k.mul(_node(k, whole, axis, inverse=not inverse), 1 / length if inverse else float(length))
    last = len(shape) - 1
    return _fitted(k, k.slice(found, [0], [shape[last]], [last]), axis, shape[axis])


def _of_real(op: Primal, k: OperatorBuilder, dy: Tensor, axis: int) -> Tensor:
    length, half = dy.shape[axis], op.x.shape[axis]
    if half != length // 2 + 1 or op.x.shape[-1] != 2:
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for {length} real numbers of {half} frequencies, for which "
            f"onnxruntime computes something else than a Fourier transform; cut or fill up to {length // 2 + 1} "
            "complex ones first"
        )
    times = np.full(half, 2 / length)
    times[0] = 1 / length
    if length % 2 == 0:
        times[-1] = 1 / length
    wide = times.reshape([half if a == axis else 1 for a in range(len(dy.shape))])
    return k.mul(_node(k, dy, axis, onesided=True), k.graph.constant(wide.astype(dy.dtype)))


def _node(k: OperatorBuilder, x: Tensor, axis: int, *, inverse: bool = False, onesided: bool = False) -> Tensor:
    shape = list(x.shape)
    shape[-1] = 2
    if onesided:
        shape[axis] = shape[axis] // 2 + 1
    settings = {"inverse": int(inverse), "onesided": int(onesided)}
    if k.graph.opset < 20:
        return k.node("DFT", [x], shape, x.dtype, axis=axis, **settings)
    return k.node("DFT", [x, None, k.graph.constant(np.array(axis, np.int64))], shape, x.dtype, **settings)


def _fitted(k: OperatorBuilder, x: Tensor, axis: int, length: int) -> Tensor:
    """The first `length` elements along `axis`, zeros behind."""
    if x.shape[axis] >= length:
        return k.slice(x, [0], [length], [axis])
    after = [length - x.shape[axis] if a == axis else 0 for a in range(len(x.shape))]
    return k.pad(x, [0] * len(after), after)
