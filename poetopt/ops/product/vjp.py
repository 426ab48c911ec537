"""Gradients of products: matrices, Einsum, attention, Fourier transforms.

Each operand's gradient of an Einsum is a product of dY with the other operands, by Transpose and MatMul. The gradient
is never an Einsum, whose kernel permutes copies of all operands. The operator reads dY and the other operands.
Temporaries are their transposes (if axes move), and partial products of more than two operands.

A DFT is linear, so that its gradient is the transform of dY with the conjugate matrix. With the length n of the
transform, its matrix F, and x cut or filled up with zeros to n:

| setting | y | dX |
|---|---|---|
| | F x | n F^-1 dY |
| inverse | F^-1 x | F dY / n |
| onesided | the first half of F x | n F^-1 of dY and zeros |
| onesided, inverse | F^-1 of x and its mirrored conjugate | the first half of F dY times 2 / n, at its ends 1 / n |

A real x gets the real part. Elements that were filled up or cut get none. The operator reads only dY; one or two
temporaries of its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, single
from poetopt.frontends import checks
from poetopt.graph import Tensor
from poetopt.ops import flops
from poetopt.ops.flops import labels
from poetopt.ops.op import Op, Steps, declare
from poetopt.ops.pieces import affine
from poetopt.ops.runtimes.onnxruntime import axes, kernels
from poetopt.util.errors import MissingVjpError

product = partial(Op, evaluation=Steps.COUNTED, is_product=True)

declare("Attention", op=Op(
    flops=flops.attention, evaluation=Steps.UNKNOWN, is_heavy=True, settings=(3,), learnable=(3,), looks="past first",
    attributes={"kv_num_heads": 0, "q_num_heads": 0}, settings_check=checks.attention, workspace=kernels.attention,
))  # fmt: skip
declare("DFT", op=Op(
    flops=flops.fourier, blocked=(1, 2), attributes={"inverse": (0, 1), "onesided": (0, 1)}, workspace=kernels.dft,
))  # fmt: skip
declare("Einsum", op=product(
    flops=flops.einsum, is_heavy=True, weights=(0, 1, 2, 3), operands_check=checks.einsum, workspace=kernels.permuted,
))  # fmt: skip
declare("Gemm", op=product(
    flops=flops.gemm, weights=(0, 1, 2), reads_quantized=True, in_place=(2,), letters=axes.gemm,
))  # fmt: skip
declare("MatMul", op=product(
    flops=lambda c: 2 * c.n * c.inputs[0][-1], weights=(0, 1), reads_quantized=True, workspace=kernels.matmul,
    letters=axes.matmul,
))  # fmt: skip
declare("RotaryEmbedding", op=Op(
    flops=lambda c: 3 * c.x, blocked=(1, 2, 3), missing=(1, 2), settings=(1, 2),
    attributes={"num_heads": 0, "rotary_embedding_dim": 0}, settings_check=checks.rotary,
))  # fmt: skip
declare("STFT", op=Op(evaluation=Steps.UNKNOWN))


@register_vjp("Gemm", since=7)
def gemm(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dA' = alpha dY B'^T, dB' = alpha A'^T dY, dC = beta dY for Y = alpha A' B' + beta C."""
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
    """Return dA = dY B^T and dB = A^T dY; vectors are matrices with one row or column.

    A matrix B that all of A's batch shares is multiplied by A as one tall matrix, so that dB is one Gemm without a
    transpose.
    """
    dy = op.only(cotangents)
    a, b = op.input(0), op.input(1)
    rows_shape = (1, *a.shape) if len(a.shape) == 1 else a.shape
    columns_shape = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    if len(columns_shape) == 2:
        return _shared_matrix(op, dy, rows_shape, columns_shape)
    batch = dy.shape[: max(len(rows_shape), len(columns_shape)) - 2]
    full = (*batch, rows_shape[-2], columns_shape[-1])
    alike = a.shape[:-2] == b.shape[:-2]
    da = db = None
    if op.need(0):
        k = op.emit("grad_input")
        da = k.matmul(
            k.reshape(dy, full), k.transpose(k.reshape(b, columns_shape), _swap_last_axes(len(columns_shape)))
        )
        da = k.reshape(k.sum_to(da, rows_shape), a.shape)
        if alike:
            k.amounts_to("MatMul.grad_input", [dy, b], [da])
    if op.need(1):
        k = op.emit("grad_weight")
        db = k.matmul(k.transpose(k.reshape(a, rows_shape), _swap_last_axes(len(rows_shape))), k.reshape(dy, full))
        db = k.reshape(k.sum_to(db, columns_shape), b.shape)
        if alike:
            k.amounts_to("MatMul.grad_weight", [dy, a], [db])
    return da, db


def _swap_last_axes(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _shared_matrix(op: Primal, dy: Tensor, rows_shape: tuple[int, ...], columns_shape: tuple[int, ...]) -> Gradients:
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


@register_vjp("Einsum", since=12)
def einsum(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return all gradients. An operand with a repeated label stands for its diagonal, which has the gradient."""
    dy = op.only(cotangents)
    operands = [op.input(index) for index in range(len(op.inputs))]
    terms, result = labels(op.attr_text("equation", ""), [len(t.shape) for t in operands])
    gradients: list[Tensor | None] = []
    for index, (operand, term) in enumerate(zip(operands, terms, strict=True)):
        if not op.need(index):
            gradients.append(None)
            continue
        if len(set(result)) < len(result):
            raise MissingVjpError(
                f"{op.where}: there is no gradient rule for repeated labels in the result; label each axis once"
            )
        k = op.emit("grad_input")
        others = [pair for at, pair in enumerate(zip(operands, terms, strict=True)) if at != index]
        gradient, labels_now = dy, result
        for at, (other, other_term) in enumerate(others):
            later = {label for _, t in others[at + 1 :] for label in t} | set(term)
            gradient, labels_now = contract(k, (gradient, labels_now), _take_diagonal(k, other, other_term), later)
        once = "".join(dict.fromkeys(term))
        shape = [operand.shape[term.index(label)] for label in once]
        gradients.append(_embed_diagonal(k, _order_axes(k, gradient, labels_now, once, shape), term))
    return tuple(gradients)


def _take_diagonal(k: OperatorBuilder, x: Tensor, term: str) -> tuple[Tensor, str]:
    """Return the diagonal of x over axes of one label: masked, and summed over all of them but the first."""
    for axis in reversed(range(len(term))):
        first = term.index(term[axis])
        if first != axis:
            x = k.reduce_sum(k.mul(x, _equal_indices(k, x, len(term), first, axis)), [axis], keepdims=False)
            term = term[:axis] + term[axis + 1 :]
    return x, term


def _embed_diagonal(k: OperatorBuilder, x: Tensor, term: str) -> Tensor:
    """Apply the transpose of `_take_diagonal`: embed x, whose axes have each label once, in zeros."""
    for axis, label in enumerate(term):
        first = term.index(label)
        if first != axis:
            wider = k.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))
            x = k.mul(wider, _equal_indices(k, x, len(wider.shape), first, axis))
    return x


def _equal_indices(k: OperatorBuilder, x: Tensor, rank: int, first: int, axis: int) -> Tensor:
    """Return 1 where the indices of two axes are equal, else 0; it broadcasts to `rank` axes."""
    length = x.shape[first]
    shape = [length if place in (first, axis) else 1 for place in range(rank)]
    return k.graph.constant(np.eye(length).reshape(shape).astype(x.dtype))


def contract(
    k: OperatorBuilder, left: tuple[Tensor, str], right: tuple[Tensor, str], kept: set[str]
) -> tuple[Tensor, str]:
    """Multiply two tensors with labelled axes, and sum over the labels that are not `kept`: one MatMul."""
    (a, ta), (b, tb) = _sum_unneeded(k, left, kept | set(right[1])), _sum_unneeded(k, right, kept | set(left[1]))
    size = {**dict(zip(tb, b.shape, strict=True)), **{c: d for c, d in zip(ta, a.shape, strict=True) if d != 1}}
    size = {c: size.get(c, 1) for c in dict.fromkeys(ta + tb)}
    shared = [c for c in ta if c in tb and c in kept]
    gone = [c for c in ta if c in tb and c not in kept]
    rows, columns = [c for c in ta if c not in tb], [c for c in tb if c not in ta]
    # an axis of length one that broadcasts (dots) is repeated
    a = k.expand(a, [size[c] for c in ta])
    b = k.expand(b, [size[c] for c in tb])

    def product(group: list[str]) -> int:
        return math.prod(size[c] for c in group)

    batch = [product(shared)] if shared else []
    a = k.transpose(a, [ta.index(c) for c in (*shared, *rows, *gone)])
    b = k.transpose(b, [tb.index(c) for c in (*shared, *gone, *columns)])
    a = k.reshape(a, (*batch, product(rows), product(gone)))
    b = k.reshape(b, (*batch, product(gone), product(columns)))
    term = "".join((*shared, *rows, *columns))
    return k.reshape(k.matmul(a, b), [size[c] for c in term]), term


def _sum_unneeded(k: OperatorBuilder, pair: tuple[Tensor, str], needed: set[str]) -> tuple[Tensor, str]:
    x, term = pair
    axes = [axis for axis, label in enumerate(term) if label not in needed]
    if not axes:
        return pair
    return k.reduce_sum(x, axes, keepdims=False), "".join(label for label in term if label in needed)


def _order_axes(k: OperatorBuilder, x: Tensor, labels_now: str, term: str, shape: Sequence[int]) -> Tensor:
    """Return x in the axis order of `term`; labels that no other operand had are repeated, broadcast ones summed."""
    x = k.transpose(x, [labels_now.index(label) for label in term if label in labels_now])
    sizes = dict(zip((label for label in term if label in labels_now), x.shape, strict=True))
    x = k.reshape(x, [sizes.get(label, 1) for label in term])
    x = k.sum_to(x, [1 if d == 1 else x.shape[axis] for axis, d in enumerate(shape)])
    return k.expand(x, shape)


@register_vjp("Attention", since=23)
def attention(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return all gradients of Y = P V, P = softmax(scale Q K' + mask).

    dV = P' dY, dP = dY V', dS = P (dP - sum(dP P)), dQ = scale dS K, dK = scale dS' Q, dMask = dS. With softcap c, dS
    is multiplied by 1 - tanh^2 for Q and K.

    P is recomputed from Q and K in the operator of all three gradients. Heads that share keys and values are summed.
    There are three temporaries of the size of the scores. Past keys and the outputs behind Y have no rule.
    """
    dy = op.only(cotangents)
    if op.has(4) or op.has(5):
        raise MissingVjpError(f"{op.where}: there is no gradient rule for past keys and values; train without a cache")
    k = op.emit("grad_input")
    heads, kv_heads = op.attr_int("q_num_heads", 0), op.attr_int("kv_num_heads", 0)
    q, key, value = (_split_heads(k, op.input(i), count) for i, count in enumerate((heads, kv_heads, kv_heads)))
    batch, count, queries, depth = q.shape
    shared, length = key.shape[1], key.shape[2]
    scale = op.attr_float("scale", 0.0) or depth**-0.5
    # heads that share keys are rows of one product
    group = count // shared
    q = k.reshape(q, (batch, shared, group * queries, depth))
    d = k.reshape(_split_heads(k, dy, heads), (batch, shared, group * queries, value.shape[3]))
    scores = k.matmul(k.mul(q, scale), k.transpose(key, [0, 1, 3, 2]))
    cap = op.attr_float("softcap", 0.0)
    bent = None
    if cap:
        bent = k.unary("Tanh", k.mul(scores, 1.0 / cap))
        scores = k.mul(bent, cap)
    masked = _mask_scores(op, k, scores, (batch, count, queries, length))
    p = k.unary("Softmax", masked, axis=-1)
    dv = k.matmul(k.transpose(p, [0, 1, 3, 2]), d) if op.need(2) else None
    dp = k.matmul(d, k.transpose(value, [0, 1, 3, 2]))
    ds = k.mul(k.sub(dp, k.reduce_sum(k.mul(dp, p), [3])), p)
    dmask = k.sum_to(k.reshape(ds, (batch, count, queries, length)), op.input(3).shape) if op.need(3) else None
    if bent is not None:
        ds = k.mul(ds, affine(k, k.mul(bent, bent), -1.0, 1.0))
    dq = k.mul(k.matmul(ds, key), scale) if op.need(0) else None
    dk = k.mul(k.matmul(k.transpose(ds, [0, 1, 3, 2]), q), scale) if op.need(1) else None
    if dq is not None:
        dq = k.reshape(dq, (batch, count, queries, depth))
    gradients = zip((dq, dk, dv), range(3), strict=True)
    return (*(None if g is None else _join_heads(k, g, op.input(i)) for g, i in gradients), dmask)


def _split_heads(k: OperatorBuilder, x: Tensor, count: int) -> Tensor:
    """Return [batch, heads, tokens, depth], from this shape or from [batch, tokens, heads depth]."""
    if len(x.shape) == 4:
        return x
    batch, tokens, width = x.shape
    return k.transpose(k.reshape(x, (batch, tokens, count, width // count)), [0, 2, 1, 3])


def _join_heads(k: OperatorBuilder, x: Tensor, like: Tensor) -> Tensor:
    return x if x.shape == like.shape else k.reshape(k.transpose(x, [0, 2, 1, 3]), like.shape)


def _mask_scores(op: Primal, k: OperatorBuilder, scores: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """Return the scores with masked ones far below the rest."""
    full = scores.shape
    least = float(np.finfo(np.float32).min) / 2
    if op.has(3):
        mask = op.input(3)
        if mask.dtype == "bool":
            mask = affine(k, k.cast(mask, scores.dtype), -least, least)
        scores = k.reshape(k.add(k.reshape(scores, shape), mask), full)
    if op.attr_int("is_causal", 0):
        kind = scores.dtype if scores.dtype in {"float32", "float64"} else "float32"
        low = k.expand(k.graph.constant(np.full((1, 1), least, kind)), shape[2:])
        later = k.node("Trilu", [low, k.graph.constant(np.array(1, np.int64))], shape[2:], kind, upper=1)
        scores = k.reshape(k.add(k.reshape(scores, shape), k.cast(later, scores.dtype)), full)
    return scores


@single("RotaryEmbedding", since=23)
def rotary_embedding(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Rotate dY back: the op rotates pairs of elements, so the gradient is the same op with negated sines.

    It reads the tables and positions; no temporary of X's size.
    """
    positions = [op.input(3)] if op.has(3) else []
    back = k.neg(op.input(2))
    settings = dict(op.node.attributes)
    return k.node("RotaryEmbedding", [dy, op.input(1), back, *positions], dy.shape, dy.dtype, **settings)


@register_vjp("DFT", since=17)
def dft(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return the gradient of a DFT whose axis is an attribute."""
    return _dft_gradient(op, op.only(cotangents), op.attr_int("axis", 1)), None


@register_vjp("DFT", since=20)
def dft_of_input_axis(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return the gradient of a DFT whose axis is an input."""
    axis = int(op.known(2).reshape(-1)[0]) if op.has(2) else -2
    return _dft_gradient(op, op.only(cotangents), axis), None, None


def _dft_gradient(op: Primal, dy: Tensor, axis: int) -> Tensor:
    shape = op.x.shape
    axis %= len(shape)
    inverse, onesided = bool(op.attr_int("inverse", 0)), bool(op.attr_int("onesided", 0))
    known_length = int(op.known(1).reshape(-1)[0]) if op.has(1) else None
    k = op.emit("grad_input")
    if inverse and onesided:
        return _real_gradient(op, k, dy, axis)
    length = shape[axis] if known_length is None else known_length
    whole = _fit_length(k, dy, axis, length)
    result = k.mul(_node(k, whole, axis, inverse=not inverse), 1 / length if inverse else float(length))
    last = len(shape) - 1
    return _fit_length(k, k.slice(result, [0], [shape[last]], [last]), axis, shape[axis])


def _real_gradient(op: Primal, k: OperatorBuilder, dy: Tensor, axis: int) -> Tensor:
    length, half = dy.shape[axis], op.x.shape[axis]
    if half != length // 2 + 1 or op.x.shape[-1] != 2:
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for {length} real numbers of {half} frequencies, of which "
            f"onnxruntime doesn't compute a Fourier transform; cut or fill up to {length // 2 + 1} complex numbers "
            "first"
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


def _fit_length(k: OperatorBuilder, x: Tensor, axis: int, length: int) -> Tensor:
    """Cut x to `length` along `axis`, or fill it up with zeros behind."""
    if x.shape[axis] >= length:
        return k.slice(x, [0], [length], [axis])
    after = [length - x.shape[axis] if a == axis else 0 for a in range(len(x.shape))]
    return k.pad(x, [0] * len(after), after)
