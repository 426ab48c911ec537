"""Ops that pick, repeat or surround elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.choice import FLOPS_PER_NS, Candidate, choose
from poetopt.errors import MissingVjpError
from poetopt.graph import Tensor


@register_vjp("Expand", since=8)
def expand(op: Primal, cotangents: Cotangents) -> Gradients:
    """dY; the loop sums it."""
    return op.only(cotangents), None


@register_vjp("Slice", since=10)
def slices(op: Primal, cotangents: Cotangents) -> Gradients:
    """dY with zeros around and, for steps beyond one, between its elements."""
    dy, shape = op.only(cotangents), op.x.shape
    starts, ends = (_list(op, index) for index in (1, 2))
    axes = _list(op, 3) if op.has(3) else list(range(len(starts)))
    steps = _list(op, 4) if op.has(4) else [1] * len(starts)
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


def _list(op: Primal, index: int) -> list[int]:
    return [int(v) for v in np.asarray(op.known(index)).reshape(-1)]


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


@register_vjp("Pad", since=11)
def pad(op: Primal, cotangents: Cotangents) -> Gradients:
    """The part of dY that is X; for constant padding."""
    mode = op.attr_text("mode", "constant")
    if mode != "constant":
        raise MissingVjpError(
            f"{op.where}: there is a gradient rule for mode 'constant' only, not for {mode!r}; pad with constants"
        )
    dy, shape = op.only(cotangents), op.x.shape
    pads = _list(op, 1)
    axes = [a % len(shape) for a in _list(op, 3)] if op.has(3) else list(range(len(shape)))
    k = op.emit("grad_input")
    before, after = [0] * len(shape), [0] * len(shape)
    for index, axis in enumerate(axes):
        before[axis], after[axis] = -pads[index], -pads[len(axes) + index]
    return k.pad(dy, before, after), None, None, None


@register_vjp("Gather", since=1)
def gather(op: Primal, cotangents: Cotangents) -> Gradients:
    """dY added up at the places that were read. One known place is a Pad; else by scatter, or one-hot and Gemm.

    The scatter holds zeros of X's size beside dX, and 64-bit indices for every element of dY; a product with the
    one-hot matrix [places, reads] holds that matrix. The choice is by shape.
    """
    dy, x, indices = op.only(cotangents), op.x, op.input(1)
    axis = op.attr_int("axis", 0) % len(x.shape)
    known = op.value(1)
    k = op.emit("grad_input")
    if known is not None and known.size == 1:
        place = int(np.asarray(known).reshape(-1)[0]) % x.shape[axis]
        row = k.reshape(dy, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
        before = [place if a == axis else 0 for a in range(len(x.shape))]
        after = [x.shape[axis] - 1 - place if a == axis else 0 for a in range(len(x.shape))]
        return k.pad(row, before, after), None
    room = k.graph.floor_bytes - dy.nbytes - (0 if op.node.inputs[0] in k.graph.values else x.nbytes)
    return choose(_gather(dy, x, indices, axis), room).build(k), None


def _gather(dy: Tensor, x: Tensor, indices: Tensor, axis: int) -> Iterator[Candidate]:
    item = x.nbytes // max(x.size, 1)
    flat = (*x.shape[:axis], indices.size, *x.shape[axis + 1 :])
    yield Candidate(
        "scatter",
        0.5 * x.size + 4.0 * dy.size,
        x.nbytes + (8 + indices.nbytes // max(indices.size, 1)) * dy.size,
        partial(_scattered, dy=dy, x=x, indices=indices, axis=axis, flat=flat),
    )
    if axis == 0 and len(x.shape) == 2:
        yield Candidate(
            "one-hot",
            2.0 * x.size * indices.size / FLOPS_PER_NS + 0.5 * x.size,
            (1 + item) * x.shape[0] * indices.size,
            partial(_one_hot, dy=dy, x=x, indices=indices),
        )


def _scattered(k: OperatorBuilder, *, dy: Tensor, x: Tensor, indices: Tensor, axis: int, flat: Sequence[int]) -> Tensor:
    column = [indices.size if a == axis else 1 for a in range(len(x.shape))]
    places = k.expand(k.reshape(indices, column), flat)
    return k.scatter_add(k.zeros(x.shape, x.dtype), places, k.reshape(dy, flat), axis)


def _one_hot(k: OperatorBuilder, *, dy: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    places, width = x.shape
    reads = k.reshape(indices, (indices.size, 1))
    negative = k.compare("Less", reads, k.graph.constant(np.array(0, indices.dtype)))
    wrapped = k.add(reads, k.mul(k.cast(negative, indices.dtype), k.graph.constant(np.array(places, indices.dtype))))
    row = k.graph.constant(np.arange(places, dtype=indices.dtype).reshape(1, places))
    matrix = k.cast(k.binary("Equal", wrapped, row, "bool"), x.dtype)
    return k.gemm(matrix, k.reshape(dy, (math.prod(indices.shape), width)), trans_a=True)
