"""Gradients of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from poetopt.autodiff import behind
from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Primal, Single, single
from poetopt.autodiff.vocabulary import normalized
from poetopt.graph import Tensor
from poetopt.ops.op import EXP, Op, Origin, declare
from poetopt.ops.pieces import masked, sign
from poetopt.ops.runtimes.onnxruntime import axes

reduction = partial(Op, blocked=(1,), axes=1, lists=(1,))

declare("ArgMax", "ArgMin", op=Op(flops=(1, 0), blocked=None, looks="axis", axis=0))
declare("CumSum", op=reduction(flops=(1, 0), looks="anywhere", attributes={"exclusive": (0, 1), "reverse": (0, 1)}))
declare("GlobalMaxPool", op=Op(flops=(1, 0), numbers=Origin.BETWEEN, keeps_scores=True))
declare("ReduceL1", op=reduction(flops=(2, 0), range=(0.0, math.inf)))
declare("ReduceL2", op=reduction(flops=(2, 1), range=(0.0, math.inf)))
declare("ReduceLogSum", op=reduction(flops=(1, EXP), pole=0))
declare("ReduceLogSumExp", op=reduction(flops=(1 + EXP, EXP)))
declare("ReduceMax", op=reduction(flops=(1, 0), numbers=Origin.BETWEEN, keeps_scores=True))
declare("ReduceMean", op=reduction(
    flops=(1, 1), sums=True, numbers=Origin.BETWEEN, keeps_scores=True, is_mean=True, letters_streamed=axes.reduction,
))  # fmt: skip
declare("ReduceMin", op=reduction(flops=(1, 0), numbers=Origin.BETWEEN))
declare("ReduceProd", op=reduction(flops=(1, 0)))
declare("ReduceSum", op=reduction(
    flops=(1, 0), sums=True, range=behind.total, letters_streamed=axes.reduction, letters_in_ram=axes.channel_sums,
    exact=True,
))  # fmt: skip
declare("ReduceSumSquare", op=reduction(flops=(2, 0), sums=True, range=(0.0, math.inf)))


def reduced_axes(op: Primal) -> tuple[int, ...]:
    """Return the axes that a reduction sums over: an attribute in older opsets, an input in newer ones."""
    rank = len(op.x.shape)
    axes = op.attr_ints("axes")
    if axes is None and op.has(1):
        axes = tuple(int(a) for a in np.asarray(op.known(1)).reshape(-1))
    if not axes:
        return () if op.attr_int("noop_with_empty_axes", 0) else tuple(range(rank))
    return normalized(axes, rank)


def kept_shape(op: Primal) -> tuple[int, ...]:
    """Return the input's shape with reduced axes of length one."""
    axes = reduced_axes(op)
    return tuple(1 if axis in axes else d for axis, d in enumerate(op.x.shape))


def _share_gradient(k: OperatorBuilder, op: Primal, dy: Tensor, factor: float) -> Tensor:
    """Return for every element the gradient of its sum times `factor`."""
    return k.expand(k.reshape(k.mul(dy, factor), kept_shape(op)), op.x.shape)


def _extreme(k: OperatorBuilder, op: Primal, dy: Tensor, axes: Sequence[int]) -> Tensor:
    """Share the gradient evenly among elements that equal the result. It reads X and Y; two temporaries."""
    shape = tuple(1 if axis in axes else d for axis, d in enumerate(op.x.shape))
    mask = k.cast(k.compare("Equal", op.x, k.reshape(op.y, shape)), dy.dtype)
    winners = k.reduce_sum(mask, axes)
    return masked(k, k.div(k.reshape(dy, shape), winners), mask)


SINGLE: Mapping[str, Single] = {
    "ReduceSum": lambda k, op, dy: _share_gradient(k, op, dy, 1.0),
    "ReduceMean": lambda k, op, dy: _share_gradient(k, op, dy, op.y.size / max(op.x.size, 1)),
    "ReduceMax": lambda k, op, dy: _extreme(k, op, dy, reduced_axes(op)),
    "ReduceMin": lambda k, op, dy: _extreme(k, op, dy, reduced_axes(op)),
    "GlobalMaxPool": lambda k, op, dy: _extreme(k, op, dy, range(2, len(op.x.shape))),
}


def _product(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = dY times the product of all other elements, exact with zeros. It reads X; three temporaries.

    X' is X with ones for its zeros. The product of X' is divided by X' where no other element is zero.
    """
    x, axes = op.x, reduced_axes(op)
    zeros = k.cast(k.compare("Equal", x, 0.0), x.dtype)
    filled = k.add(x, zeros)
    if not axes:  # for ONNX an empty list means all axes
        whole = filled
    elif k.graph.opset >= 18:
        whole = k.node("ReduceProd", [filled, k.graph.ints(axes)], dy.shape, x.dtype)
    else:
        whole = k.node("ReduceProd", [filled], dy.shape, x.dtype, axes=list(axes))
    alone = k.cast(k.compare("Equal", k.reduce_sum(zeros, axes), zeros), x.dtype)
    return masked(k, k.div(k.mul(dy, whole), filled), alone)


OF_KEPT: Mapping[str, Callable[[OperatorBuilder, Primal, Tensor, Tensor], Tensor]] = {
    "ReduceSumSquare": lambda k, op, dy, y: k.mul(op.x, k.mul(dy, 2.0)),
    "ReduceL1": lambda k, op, dy, y: masked(k, dy, sign(k, op.x)),
    # X dY / Y, 0 where Y is
    "ReduceL2": lambda k, op, dy, y: masked(k, k.div(dy, k.add(y, k.cast(k.compare("Equal", y, 0.0), y.dtype))), op.x),
    "ReduceLogSum": lambda k, op, dy, y: k.expand(k.mul(dy, k.unary("Exp", k.neg(y))), op.x.shape),
    "ReduceLogSumExp": lambda k, op, dy, y: k.mul(k.unary("Exp", k.sub(op.x, y)), dy),
    "ReduceProd": lambda k, op, dy, y: _product(k, op, dy),
}
"""Rules for dX from dY and Y whose reduced axes have length one."""


def _kept_rule(name: str) -> Single:
    def rule(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
        shape = kept_shape(op)
        return OF_KEPT[name](k, op, k.reshape(dy, shape), k.reshape(op.y, shape))

    return rule


for _op, _rule in (*SINGLE.items(), *((name, _kept_rule(name)) for name in OF_KEPT)):
    single(_op, since=1)(_rule)


@single("CumSum", since=11)
def running_sum(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return the running sum of dY from the other end. It reads only dY; no temporary."""
    settings: dict[str, object] = {"exclusive": op.attr_int("exclusive", 0), "reverse": 1 - op.attr_int("reverse", 0)}
    return k.node("CumSum", [dy, op.input(1)], dy.shape, dy.dtype, **settings)
