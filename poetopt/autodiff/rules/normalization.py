"""Normalization, and Dropout, its companion in training."""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import masked
from poetopt.graph import Tensor


def _affine(
    op: Primal, k: OperatorBuilder, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    """scale (x - mean) / sqrt(var + epsilon) + bias for each channel, in one pass."""
    epsilon = op.attr_float("epsilon", 1e-5)
    return k.node("BatchNormalization", [x, scale, bias, mean, var], x.shape, x.dtype, epsilon=epsilon)


def _channel_sum(k: OperatorBuilder, x: Tensor) -> Tensor:
    return k.reduce_sum(x, [axis for axis in range(len(x.shape)) if axis != 1], keepdims=False)


def _channel_dot(k: OperatorBuilder, a: Tensor, b: Tensor) -> Tensor:
    """The sum of a b for each channel; the product is written over `a`, where `a` is a temporary.

    Dot products by MatMul write nothing, and take 2.5 to 8 times as long: its kernel is not made for them.
    """
    return _channel_sum(k, k.mul(a, b))


@register_vjp("BatchNormalization", since=9)
def batch_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """Per channel, with x' = (x - mean) / sqrt(var + epsilon) and m elements: dScale = sum(dY x'), dB = sum(dY).

    In training mode dX = scale / sqrt(var + epsilon) (dY - (dB + x' dScale) / m), in two operators: what reads X
    and dY gives the sums and the bracket, and the last factor waits, so that at most three tensors of X's
    size are alive at once. In inference mode dX is dY times a number for each channel, and a mean or variance that the
    network itself computes (a layer without running statistics) has
    dMean = -scale dB / sqrt(var + epsilon), dVar = -scale dScale / (2 (var + epsilon)).
    """
    dy, x, scale = op.only(cotangents), op.x, op.input(1)
    training = bool(op.attr_int("training_mode", 0))
    mean, var = (op.output(1), op.output(2)) if training else (op.input(3), op.input(4))
    ones, zeros = (_vector(op, value, scale) for value in (1.0, 0.0))
    dscale = dbias = dx = dmean = dvar = None
    centred: Tensor = dy
    of_mean, of_var = (not training and op.need(index) for index in (3, 4))
    if op.need(1) or op.need(2) or of_mean or of_var or (training and op.need(0)):
        k = op.emit("grad_weight")
        dbias = _channel_sum(k, dy) if training or op.need(2) or of_mean else None
        whitened = training or op.need(1) or of_var
        dscale = _channel_dot(k, _affine(op, k, x, ones, zeros, mean, var), dy) if whitened else None
        if training and op.need(0) and dscale is not None and dbias is not None:
            share = scale.size / x.size
            centred = k.sub(dy, _affine(op, k, x, k.mul(dscale, share), k.mul(dbias, share), mean, var))
        if training and dscale is not None and dbias is not None:
            written = [centred if op.need(0) else None, dscale, dbias]
            epsilon = op.attr_float("epsilon", 1e-5)
            k.amounts_to("BatchNormalization.grad_weight", [dy, x, mean, var], written, epsilon=epsilon)
    if op.need(0):
        dx = _affine(op, op.emit("grad_input"), centred, scale, zeros, zeros, var)
    if of_mean or of_var:
        k = op.emit("grad_statistics")
        shifted = k.add(var, k.graph.scalar(op.attr_float("epsilon", 1e-5), var.dtype))
        if of_mean and dbias is not None:
            dmean = k.neg(k.div(k.mul(scale, dbias), k.unary("Sqrt", shifted)))
        if of_var and dscale is not None:
            dvar = k.mul(k.div(k.mul(scale, dscale), shifted), -0.5)
    return dx, dscale, dbias, dmean, dvar


def _vector(op: Primal, value: float, like: Tensor) -> Tensor:
    """A constant vector like `like`."""
    return op.builder.constant(np.full(like.shape, value, like.dtype))


@register_vjp("Dropout", since=7)
def dropout(op: Primal, cotangents: Cotangents) -> Gradients:
    """The same mask and scale as forwards; the identity where nothing is dropped."""
    if len(op.operator.nodes) == 1:
        return (cotangents[0],)
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    mask = next(t for t in (op.builder.tensors[name] for name in op.operator.inputs) if t.dtype == "bool")
    scaled = k.node("Mul", [dy, op.input(1)], dy.shape, dy.dtype)
    dx = masked(k, scaled, k.cast(mask, dy.dtype))
    k.amounts_to("Dropout", [dy, op.input(1), mask], [dx])
    return (dx,)
