"""Matrix products. Weight and input gradients are operators of their own, without temporaries where one Gemm does."""

from __future__ import annotations

import math

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.graph import Tensor


@register_vjp("Gemm", since=7)
def gemm(op: Primal, cotangents: Cotangents) -> Gradients:
    """Y = alpha A' B' + beta C: dA' = alpha dY B'^T, dB' = alpha A'^T dY, dC = beta dY."""
    dy = op.only(cotangents)
    a, b = op.input(0), op.input(1)
    ta, tb = bool(op.attr_int("transA", 0)), bool(op.attr_int("transB", 0))
    alpha, beta = op.attr_float("alpha", 1.0), op.attr_float("beta", 1.0)
    da = db = dc = None
    if op.need(0):
        k = op.emit("grad_input")
        left, right = (b, dy) if ta else (dy, b)
        da = k.gemm(left, right, alpha=alpha, trans_a=ta and tb, trans_b=ta or not tb)
    if op.need(1):
        k = op.emit("grad_weight")
        left, right = (dy, a) if tb else (a, dy)
        db = k.gemm(left, right, alpha=alpha, trans_a=tb or not ta, trans_b=tb and ta)
    if op.need(2):
        k = op.emit("grad_bias")
        dc = k.mul(k.sum_to(dy, op.input(2).shape), beta)
    return da, db, dc


@register_vjp("MatMul", since=1)
def matmul(op: Primal, cotangents: Cotangents) -> Gradients:
    """dA = dY B^T and dB = A^T dY; vectors are matrices with one row or column.

    A matrix B that all of A's batch shares is multiplied by A as one tall matrix, so that dB is one Gemm and no
    transpose is written.
    """
    dy = op.only(cotangents)
    a, b = op.input(0), op.input(1)
    rows_shape = (1, *a.shape) if len(a.shape) == 1 else a.shape
    columns_shape = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    if len(columns_shape) == 2:
        return _shared(op, dy, rows_shape, columns_shape)
    batch = dy.shape[: max(len(rows_shape), len(columns_shape)) - 2]
    full = (*batch, rows_shape[-2], columns_shape[-1])
    alike = a.shape[:-2] == b.shape[:-2]
    da = db = None
    if op.need(0):
        k = op.emit("grad_input")
        da = k.matmul(k.reshape(dy, full), k.transpose(k.reshape(b, columns_shape), _swapped(len(columns_shape))))
        da = k.reshape(k.sum_to(da, rows_shape), a.shape)
        if alike:
            k.amounts_to("MatMul.grad_input", [dy, b], [da])
    if op.need(1):
        k = op.emit("grad_weight")
        db = k.matmul(k.transpose(k.reshape(a, rows_shape), _swapped(len(rows_shape))), k.reshape(dy, full))
        db = k.reshape(k.sum_to(db, columns_shape), b.shape)
        if alike:
            k.amounts_to("MatMul.grad_weight", [dy, a], [db])
    return da, db


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _shared(op: Primal, dy: Tensor, rows_shape: tuple[int, ...], columns_shape: tuple[int, ...]) -> Gradients:
    a, b = op.input(0), op.input(1)
    rows = math.prod(rows_shape[:-1])
    tall = (rows, columns_shape[1])
    da = db = None
    if op.need(0):
        k = op.emit("grad_input")
        da = k.reshape(k.gemm(k.reshape(dy, tall), k.reshape(b, columns_shape), trans_b=True), a.shape)
    if op.need(1):
        k = op.emit("grad_weight")
        db = k.gemm(k.reshape(a, (rows, rows_shape[-1])), k.reshape(dy, tall), trans_a=True)
        db = k.reshape(db, b.shape)
    return da, db
