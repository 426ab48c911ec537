"""onnxruntime's fused operators, written out as the operators that its optimizer made them of.

Constants have the type of the network's first float input, as such files have one. In attention, heads that have a
key in common go with it as an axis of their own, so that no key is repeated. Sizes that nobody says come from Shape,
which the reader folds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from poetopt.frontends.places import FLOATS
from poetopt.frontends.proto import attribute_int, dtype_name, unique
from poetopt.frontends.read import Document
from poetopt.frontends.structure import describe
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array

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
    """Say if a node of `TAKEN` is written out here."""
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


OWN = "com.microsoft"
_SAME_AXES = frozenset({"Add", "Cast", "Div", "LayerNormalization", "Mul", "Sub"})
"""Ops whose result has as many axes as their first operand."""


def spell_out_fused(document: Document) -> list[str]:
    """Write onnxruntime's own activations, normalizations and attention in standard operators. Returns notes.

    Raises `ModelError` where one of them lacks operands.
    """
    nodes = document.proto.graph.node
    fused = [node for node in nodes if _form(node) is not None]
    if not fused:
        return []
    taken, made = document.names, list[NodeProto]()
    for node in nodes:
        form = _form(node)
        if form is None:
            made.append(node)
            continue
        writer = NodeWriter(document, node, taken)
        try:
            form(writer)
        except IndexError:
            at = describe(document.where, node, document.opset)
            raise ModelError(f"{at}: it lacks operands; export it again") from None
        made += writer.nodes
    document.put_nodes(made)
    kinds = ", ".join(dict.fromkeys(node.op_type for node in fused))
    whole = "; all tokens count, whatever seqlens_k says" if "GroupQueryAttention" in kinds else ""
    return [f"onnxruntime's own {kinds} were written out in standard operators{whole}"]


class NodeWriter:
    """The nodes that one operator is written out in."""

    def __init__(self, document: Document, node: NodeProto, taken: set[str]) -> None:
        self.node, self.taken = node, taken
        self.document = document
        # the opset since which ReduceMean has them so
        self.axes = document.opset < 18
        inputs = document.proto.graph.input
        kinds = (entry.type.tensor_type.elem_type for entry in inputs)
        found = (*(kind for kind in kinds if kind in FLOATS), *(p.data_type for p in document.weights.values()))
        self.element = next((kind for kind in found if kind in FLOATS), 1)
        self.dtype = dtype_name(self.element)
        self.nodes: list[NodeProto] = []

    def has(self, k: int) -> bool:
        """Say whether there is an input `k`."""
        return len(self.node.input) > k and bool(self.node.input[k])

    def given(self, k: int) -> str:
        """Input `k`. Raises IndexError where it isn't there."""
        if not self.has(k):
            raise IndexError(k)
        return str(self.node.input[k])

    def number(self, name: str, default: float) -> float:
        """An attribute."""
        return next((float(a.f) for a in self.node.attribute if a.name == name), default)

    def add(self, op: str, *inputs: str, output: int | None = None, **attributes: object) -> str:
        """A node, whose result is an output of the operator, or one between."""
        if output is not None and len(self.node.output) > output and self.node.output[output]:
            name = str(self.node.output[output])
        else:
            name = unique(f"{self.node.output[0]}.{op.lower()}", self.taken)
            self.taken.add(name)
        node = helper.make_node(op, inputs, [name], name=unique(name, self.taken), **attributes)  # type: ignore[arg-type]
        self.nodes.append(node)
        return name

    def constant(self, value: float | list[int]) -> str:
        """A number of the network's type, or a list of whole ones."""
        return self._stored(np.array(value, np.int64 if isinstance(value, list) else self.dtype))

    def _stored(self, array: Array) -> str:
        return self.add("Constant", value=numpy_helper.from_array(array))

    def whole(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        return attribute_int(self.node, name, default)

    def number_of(self, value: int) -> str:
        """A whole number."""
        return self._stored(np.array(value, np.int64))

    def size_of(self, x: str, axis: int) -> str:
        """Steps of an axis."""
        return self.add("Gather", self.add("Shape", x), self.number_of(axis))

    def shaped(self, x: str, shape: list[int]) -> str:
        """Under another shape, of which 0 keeps a size and -1 takes the rest."""
        return self.add("Reshape", x, self.constant(shape))

    def transposed(self, x: str, *perm: int) -> str:
        """With its axes in another order."""
        return self.add("Transpose", x, perm=list(perm))

    def columns(self, name: str) -> int:
        """Of a stored table. Raises IndexError where it isn't stored."""
        if name not in self.document.weights:
            raise IndexError(name)
        return int(self.document.weights[name].dims[-1])

    def axes_of(self, name: str, unknown: int) -> int:
        """The rank of a stored tensor, an input, of what a Transpose or elementwise ops write; else `unknown`."""
        given = {info.name: info.type.tensor_type.shape.dim for info in self.document.proto.graph.input}
        given |= {one: proto.dims for one, proto in self.document.weights.items()}
        writers = {made: node for node in self.document.proto.graph.node for made in node.output}
        while name not in given:
            node = writers.get(name)
            order = [list(a.ints) for a in node.attribute if a.name == "perm"] if node is not None else []
            if node is None or order or node.op_type not in _SAME_AXES:
                return len(order[0]) if order else unknown
            name = node.input[0]
        return len(given[name])

    def mean(self, x: str) -> str:
        """Over the last axis."""
        if self.axes:
            return self.add("ReduceMean", x, axes=[-1], keepdims=1)
        return self.add("ReduceMean", x, self.constant([-1]), keepdims=1)

    def normalized(self, x: str, scale: str, shift: str, *, centred: bool) -> None:
        """(x - mean) / deviation * scale + shift over the last axis; without the mean where not `centred`."""
        part = self.add("Sub", x, self.mean(x)) if centred else x
        square = self.mean(self.add("Mul", part, part))
        root = self.add("Sqrt", self.add("Add", square, self.constant(self.number("epsilon", 1e-5))))
        found = self.add("Div", part, root)
        if shift:
            self.add("Add", self.add("Mul", found, scale), shift, output=0)
        else:
            self.add("Mul", found, scale, output=0)


def _gelu(w: NodeWriter) -> None:
    x = w.add("Add", w.given(0), w.given(1)) if w.node.op_type == "BiasGelu" else w.given(0)
    one = w.add("Add", w.add("Erf", w.add("Div", x, w.constant(math.sqrt(2)))), w.constant(1.0))
    w.add("Mul", w.add("Mul", x, one), w.constant(0.5), output=0)


def _fast_gelu(w: NodeWriter) -> None:
    x = w.add("Add", w.given(0), w.given(1)) if w.has(1) else w.given(0)
    cube = w.add("Mul", w.add("Mul", x, w.add("Mul", x, x)), w.constant(0.044715))
    inner = w.add("Mul", w.add("Add", x, cube), w.constant(math.sqrt(2 / math.pi)))
    one = w.add("Add", w.add("Tanh", inner), w.constant(1.0))
    w.add("Mul", w.add("Mul", x, one), w.constant(0.5), output=0)


def _quick_gelu(w: NodeWriter) -> None:
    scaled = w.add("Mul", w.given(0), w.constant(w.number("alpha", 1.702)))
    w.add("Mul", w.given(0), w.add("Sigmoid", scaled), output=0)


def _simplified(w: NodeWriter) -> None:
    w.normalized(w.given(0), w.given(1), "", centred=False)


def _skip(w: NodeWriter) -> None:
    centred = w.node.op_type == "SkipLayerNormalization"
    bias = 4 if centred else 3
    first = w.add("Add", w.given(0), w.given(bias)) if w.has(bias) else w.given(0)  # a layer's own
    whole = w.add("Add", first, w.given(1), output=3)
    w.normalized(whole, w.given(2), w.given(3) if centred and w.has(3) else "", centred=centred)


_FORMS: Mapping[str, Callable[[NodeWriter], None]] = {
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified,
    "SkipLayerNormalization": _skip,
    "SkipSimplifiedLayerNormalization": _skip,
    "RotaryEmbedding": rotary,
    "MultiHeadAttention": multi_head,
    "GroupQueryAttention": group_query,
}


def _form(node: NodeProto) -> Callable[[NodeWriter], None] | None:
    """What writes a node out; None for a standard one, and where it gives or takes more than is known here."""
    if node.op_type not in _FORMS or node.domain not in ((OWN, "") if "Simplified" in node.op_type else (OWN,)):
        return None
    if node.op_type in TAKEN:
        return _FORMS[node.op_type] if known(node) else None
    if attribute_int(node, "axis", -1) != -1 or any(node.output[1:3]):
        return None
    return _FORMS[node.op_type]
