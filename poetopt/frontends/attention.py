"""onnxruntime's attention and rotary embedding, in the words of `poetopt.frontends.fused`.

Heads that have a key in common go with it as an axis of their own, so that no key is repeated. The sizes that nobody
says come from Shape, which the reader folds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from onnx import NodeProto

from poetopt.frontends.proto import attribute_int

if TYPE_CHECKING:
    from poetopt.frontends.fused import NodeWriter

TAKEN: Mapping[str, tuple[int, Collection[int]]] = {
    "RotaryEmbedding": (1, (0, 1, 2, 3)),
    "MultiHeadAttention": (1, (0, 1, 2, 3, 5)),
    "GroupQueryAttention": (3, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)),
}
"""By op: how many outputs it may give, and the operands that are known here."""
_PLAIN: Mapping[str, int] = {
    "causal": 1, "is_packed_batching": 0, "local_window_size": -1, "qk_output": 0, "sliding_window_cache": 0,
    "smooth_softmax": 0,
}  # fmt: skip
"""Attributes that have to be so."""


def known(node: NodeProto) -> bool:
    """Says whether a node of `TAKEN` is written out here."""
    outputs, operands = TAKEN[node.op_type]
    more = any(node.output[outputs:]) or any(name and k not in operands for k, name in enumerate(node.input))
    return not more and all(attribute_int(node, name, value) == value for name, value in _PLAIN.items())


def rotary(w: NodeWriter) -> None:
    """RotaryEmbedding of [batch, heads, tokens, size], or of [batch, tokens, heads size]."""
    x, four = w.given(0), w.axes_of(w.given(0), 3) == 4
    if not four:
        heads, size = w.whole("num_heads", 0), 2 * w.columns(w.given(2))
        x = w.transposed(w.shaped(x, [0, 0, heads or -1, -1 if heads else size]), 0, 2, 1, 3)
    if w.axes_of(w.given(1), 2) == 1:  # where the first token stands
        count = w.size_of(x, 2)
        places = w.add("Range", w.number_of(0), count, w.number_of(1))
        places = w.add("Add", places, w.given(1))
        cos, sin = (w.add("Gather", w.given(k), places) for k in (2, 3))
    else:
        cos, sin = (w.add("Unsqueeze", w.add("Gather", w.given(k), w.given(1)), w.constant([1])) for k in (2, 3))
    scale = w.number("scale", 1.0)
    y = turned(w, x, (cos, sin), w.whole("interleaved", 0), w.whole("rotary_embedding_dim", 0), 4)
    y = y if scale in (0.0, 1.0) else w.add("Mul", y, w.constant(scale))
    if four:
        w.add("Identity", y, output=0)
    else:
        w.add("Reshape", w.transposed(y, 0, 2, 1, 3), w.constant([0, 0, -1]), output=0)


def turned(w: NodeWriter, x: str, by: tuple[str, str], interleaved: int, part: int, axes: int) -> str:
    """Pairs of elements of the last axis of `x` by their angles; of the first `part` elements, if that isn't 0."""
    rest, last = "", w.constant([axes - 1])
    if part:
        at, end = w.constant([part]), w.constant([2**31 - 1])
        x, rest = w.add("Slice", x, w.constant([0]), at, last), w.add("Slice", x, at, end, last)
    same = [0] * (axes - 1)
    pairs, axis = w.shaped(x, [*same, -1, 2] if interleaved else [*same, 2, -1]), axes - 1 + bool(interleaved)
    one, two = (w.add("Gather", pairs, w.number_of(k), axis=axis) for k in (0, 1))
    cos, sin = by
    first = w.add("Sub", w.add("Mul", one, cos), w.add("Mul", two, sin))
    second = w.add("Add", w.add("Mul", one, sin), w.add("Mul", two, cos))
    behind = w.constant([axis])
    both = w.add("Concat", w.add("Unsqueeze", first, behind), w.add("Unsqueeze", second, behind), axis=axis)
    y = w.shaped(both, [*same, -1])
    return y if not rest else w.add("Concat", y, rest, axis=axes - 1)


def attended(w: NodeWriter, q: str, k: str, v: str, *, causal: bool, bias: str = "") -> str:
    """softmax(scale q k' + bias) v over the last two of so many axes, [..., tokens, size]."""
    scale, cap = w.number("scale", 0.0), w.number("softcap", 0.0)
    axes = 5 if w.node.op_type == "GroupQueryAttention" else 4
    root = w.add("Sqrt", w.add("Cast", w.size_of(q, axes - 1), to=w.element))
    q = w.add("Mul", q, w.constant(scale)) if scale else w.add("Div", q, root)
    scores = w.add("MatMul", q, w.transposed(k, *range(axes - 2), axes - 1, axes - 2))
    scores = w.add("Mul", w.add("Tanh", w.add("Div", scores, w.constant(cap))), w.constant(cap)) if cap else scores
    scores = w.add("Add", scores, bias) if bias else scores
    if causal:
        tokens, all_ = (w.add("Unsqueeze", w.size_of(x, axes - 2), w.constant([0])) for x in (q, k))
        shape = w.add("Concat", tokens, all_, axis=0)
        low = w.add("Expand", w.constant(w.number("mask_filter_value", -10000.0)), shape)
        first = w.add("Add", w.add("Sub", w.size_of(k, axes - 2), w.size_of(q, axes - 2)), w.number_of(1))
        scores = w.add("Add", scores, w.add("Trilu", low, first, upper=1))
    return w.add("MatMul", w.add("Softmax", scores, axis=-1), v)


def multi_head(w: NodeWriter) -> None:
    """MultiHeadAttention of [batch, tokens, heads size], with a bias of the projections and one of the scores."""
    heads, parts = w.whole("num_heads", 0), [w.given(k) for k in range(3)]
    if w.has(3):
        width = w.add("Unsqueeze", w.size_of(parts[0], 2), w.constant([0]))
        ends = [w.constant([0]), width, w.add("Mul", width, w.constant([2])), w.constant([2**31 - 1])]
        own = [w.add("Slice", w.given(3), *ends[k : k + 2], w.constant([0])) for k in range(3)]
        parts = [w.add("Add", part, bias) for part, bias in zip(parts, own, strict=True)]
    parts = [w.transposed(w.shaped(part, [0, 0, heads, -1]), 0, 2, 1, 3) for part in parts]
    bias = w.given(5) if w.has(5) else ""
    q, k, v = parts
    y = attended(w, q, k, v, causal=bool(w.whole("unidirectional", 0)), bias=bias)
    w.add("Reshape", w.transposed(y, 0, 2, 1, 3), w.constant([0, 0, -1]), output=0)


def group_query(w: NodeWriter) -> None:
    """GroupQueryAttention, causal: all that is given counts, whatever `seqlens_k` says of what stands behind it."""
    heads, keys = w.whole("num_heads", 0), w.whole("kv_num_heads", 0)
    if w.has(1):
        parts = [w.given(k) for k in range(3)]
    else:
        every, axis = w.shaped(w.given(0), [0, 0, heads + 2 * keys, -1]), w.constant([2])
        ends = [w.constant([k]) for k in (0, heads, heads + keys, heads + 2 * keys)]
        parts = [w.add("Slice", every, *ends[k : k + 2], axis) for k in range(3)]
    each = (heads // max(keys, 1), 1, 1)  # heads that have a key in common
    split = [w.shaped(part, [0, 0, keys, n, -1]) for part, n in zip(parts, each, strict=True)]
    q, k, v = (w.transposed(part, 0, 2, 3, 1, 4) for part in split)
    pasts = [w.add("Unsqueeze", w.given(n), w.constant([2])) for n in (3, 4) if w.has(n)]
    if w.whole("do_rotary", 0):
        if w.has(9):
            angles = [w.add("Unsqueeze", w.add("Gather", w.given(n), w.given(9)), w.constant([1, 2])) for n in (7, 8)]
        else:
            begin = w.size_of(pasts[0], 3) if pasts else w.number_of(0)
            begin, count = (w.add("Unsqueeze", x, w.constant([0])) for x in (begin, w.size_of(q, 3)))
            ends = [begin, w.add("Add", begin, count), w.constant([0])]
            angles = [w.add("Slice", w.given(n), *ends) for n in (7, 8)]
        by, interleaved = (angles[0], angles[1]), w.whole("rotary_interleaved", 0)
        q, k = (turned(w, x, by, interleaved, 0, 5) for x in (q, k))
    if pasts:
        k, v = (w.add("Concat", past, x, axis=3) for past, x in zip(pasts, (k, v), strict=True))
    for place, x in ((1, k), (2, v)):
        if len(w.node.output) > place and w.node.output[place]:
            w.add("Squeeze", x, w.constant([2]), output=place)
    y = attended(w, q, k, v, causal=True)
    w.add("Reshape", w.transposed(y, 0, 3, 1, 2, 4), w.constant([0, 0, -1]), output=0)
