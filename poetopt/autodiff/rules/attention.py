"""Attention and RotaryEmbedding, the fused operators of opset 23."""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import affine
from poetopt.errors import MissingVjpError
from poetopt.graph import Tensor


@register_vjp("Attention", since=23)
def attention(op: Primal, cotangents: Cotangents) -> Gradients:
    """Y = P V, P = softmax(scale Q K' + mask): dV = P' dY, dP = dY V', dS = P (dP - sum(dP P)), dQ = scale dS K,
    dK = scale dS' Q, dMask = dS; with softcap c, dS is multiplied by 1 - tanh^2 for Q and K.

    P is computed again from Q and K, in the same operator as all three gradients. Heads that share keys and values
    are summed. Three temporaries of the size of the scores. No rule for a past of keys, nor for the outputs behind Y.
    """
    dy = op.only(cotangents)
    if op.has(4) or op.has(5):
        raise MissingVjpError(f"{op.where}: there is no gradient rule for past keys and values; train without a cache")
    k = op.emit("grad_input")
    heads, kv_heads = op.attr_int("q_num_heads", 0), op.attr_int("kv_num_heads", 0)
    q, key, value = (_heads(k, op.input(i), count) for i, count in enumerate((heads, kv_heads, kv_heads)))
    batch, count, queries, depth = q.shape
    shared, length = key.shape[1], key.shape[2]
    scale = op.attr_float("scale", 0.0) or depth**-0.5
    # heads with the same keys are rows of one product
    group = count // shared
    q = k.reshape(q, (batch, shared, group * queries, depth))
    d = k.reshape(_heads(k, dy, heads), (batch, shared, group * queries, value.shape[3]))
    scores = k.matmul(k.mul(q, scale), k.transpose(key, [0, 1, 3, 2]))
    cap = op.attr_float("softcap", 0.0)
    bent = None
    if cap:
        bent = k.unary("Tanh", k.mul(scores, 1.0 / cap))
        scores = k.mul(bent, cap)
    masked = _masked(op, k, scores, (batch, count, queries, length))
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
    return (*(None if g is None else _joined(k, g, op.input(i)) for g, i in gradients), dmask)


def _heads(k: OperatorBuilder, x: Tensor, count: int) -> Tensor:
    """[batch, heads, tokens, depth], from that or from [batch, tokens, heads depth]."""
    if len(x.shape) == 4:
        return x
    batch, tokens, width = x.shape
    return k.transpose(k.reshape(x, (batch, tokens, count, width // count)), [0, 2, 1, 3])


def _joined(k: OperatorBuilder, x: Tensor, like: Tensor) -> Tensor:
    return x if x.shape == like.shape else k.reshape(k.transpose(x, [0, 2, 1, 3]), like.shape)


def _masked(op: Primal, k: OperatorBuilder, scores: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """The scores with what must not be seen far below the rest."""
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


@register_vjp("RotaryEmbedding", since=23)
def rotary_embedding(op: Primal, cotangents: Cotangents) -> Gradients:
    """Pairs of elements are turned by an angle; the gradient is turned back: the same op with sines negated.

    Reads the tables and positions; no temporary of X's size.
    """
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    positions = [op.input(3)] if op.has(3) else []
    back = k.neg(op.input(2))
    settings = dict(op.node.attributes)
    return (k.node("RotaryEmbedding", [dy, op.input(1), back, *positions], dy.shape, dy.dtype, **settings), None, None)
