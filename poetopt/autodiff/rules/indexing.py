"""Expand and Slice."""

from __future__ import annotations

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.graph import Tensor


@register_vjp("Expand", since=8)
def expand(op: Primal, cotangents: Cotangents) -> Gradients:
    """dY; the loop sums it."""
    return op.only(cotangents), None


@register_vjp("Slice", since=10)
def slices(op: Primal, cotangents: Cotangents) -> Gradients:
    """dY with zeros around and, for steps beyond one, between its elements."""
    dy, shape = op.only(cotangents), op.x.shape
    starts, ends = (op.known_ints(index) for index in (1, 2))
    axes = op.known_ints(3) if op.has(3) else list(range(len(starts)))
    steps = op.known_ints(4) if op.has(4) else [1] * len(starts)
    k = op.emit("grad_input")
    before, after = [0] * len(shape), [0] * len(shape)
    for start, end, axis, step in zip(starts, ends, (a % len(shape) for a in axes), steps, strict=True):
        low, high, stride = slice(start, end, step).indices(shape[axis])
        picked = range(low, high, stride)
        if not picked:
            return (k.zeros(shape, dy.dtype), None, None, None, None)
        if stride < 0:
            dy, picked = k.flip(dy, [axis]), picked[::-1]
        dy = _spread(k, dy, axis, abs(stride))
        before[axis], after[axis] = picked[0], shape[axis] - picked[-1] - 1
    return k.pad(dy, before, after), None, None, None, None


def _spread(k: OperatorBuilder, x: Tensor, axis: int, step: int) -> Tensor:
    """`step - 1` zeros between neighbours along `axis`."""
    length = x.shape[axis]
    if step == 1 or length == 1:
        return x
    rank = len(x.shape)
    wide = k.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    after = [step - 1 if a == axis + 1 else 0 for a in range(rank + 1)]
    wide = k.pad(wide, [0] * (rank + 1), after)
    flat = k.reshape(wide, (*x.shape[:axis], length * step, *x.shape[axis + 1 :]))
    return k.slice(flat, [0], [(length - 1) * step + 1], [axis])
