"""Expand onnxruntime's fused operators into the standard operators that its optimizer fused.

Constants have the type of the network's first float input: such files have only one float type. In attention, heads
that share a key get an axis of their own, so that no key is repeated. Unknown sizes come from Shape, which the reader
folds.
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
"""Supported number of outputs and supported operands by op."""
_REQUIRED: Mapping[str, int] = {
    "causal": 1, "is_packed_batching": 0, "local_window_size": -1, "qk_output": 0, "sliding_window_cache": 0,
    "smooth_softmax": 0,
}  # fmt: skip
"""Required values of attributes."""


def known(node: NodeProto) -> bool:
    """Return whether the outputs, operands and attributes of a node of `TAKEN` are supported."""
    outputs, operands = TAKEN[node.op_type]
    has_more = any(node.output[outputs:]) or any(name and k not in operands for k, name in enumerate(node.input))
    return not has_more and all(attribute_int(node, name, value) == value for name, value in _REQUIRED.items())


def rotary(w: NodeWriter) -> None:
    """Expand RotaryEmbedding of [batch, heads, tokens, size], or of [batch, tokens, heads size]."""
    x, has_four_axes = w.input(0), w.rank_of(w.input(0), 3) == 4
    if not has_four_axes:
        heads, size = w.int_attribute("num_heads", 0), 2 * w.columns(w.input(2))
        x = w.transpose(w.reshape(x, [0, 0, heads or -1, -1 if heads else size]), 0, 2, 1, 3)
    if w.rank_of(w.input(1), 2) == 1:  # the position of the first token
        count = w.axis_size(x, 2)
        positions = w.add("Range", w.int_constant(0), count, w.int_constant(1))
        positions = w.add("Add", positions, w.input(1))
        cos, sin = (w.add("Gather", w.input(k), positions) for k in (2, 3))
    else:
        cos, sin = (w.add("Unsqueeze", w.add("Gather", w.input(k), w.input(1)), w.constant([1])) for k in (2, 3))
    scale = w.float_attribute("scale", 1.0)
    y = turned(w, x, (cos, sin), w.int_attribute("interleaved", 0), w.int_attribute("rotary_embedding_dim", 0), 4)
    y = y if scale in (0.0, 1.0) else w.add("Mul", y, w.constant(scale))
    if has_four_axes:
        w.add("Identity", y, output=0)
    else:
        w.add("Reshape", w.transpose(y, 0, 2, 1, 3), w.constant([0, 0, -1]), output=0)


def turned(w: NodeWriter, x: str, by: tuple[str, str], interleaved: int, part: int, axes: int) -> str:
    """Rotate pairs of elements of the last axis of `x` by their angles; only the first `part` elements if not 0."""
    rest, last = "", w.constant([axes - 1])
    if part:
        at, end = w.constant([part]), w.constant([2**31 - 1])
        x, rest = w.add("Slice", x, w.constant([0]), at, last), w.add("Slice", x, at, end, last)
    same = [0] * (axes - 1)
    pairs, axis = w.reshape(x, [*same, -1, 2] if interleaved else [*same, 2, -1]), axes - 1 + bool(interleaved)
    one, two = (w.add("Gather", pairs, w.int_constant(k), axis=axis) for k in (0, 1))
    cos, sin = by
    first = w.add("Sub", w.add("Mul", one, cos), w.add("Mul", two, sin))
    second = w.add("Add", w.add("Mul", one, sin), w.add("Mul", two, cos))
    behind = w.constant([axis])
    both = w.add("Concat", w.add("Unsqueeze", first, behind), w.add("Unsqueeze", second, behind), axis=axis)
    y = w.reshape(both, [*same, -1])
    return y if not rest else w.add("Concat", y, rest, axis=axes - 1)


def attended(w: NodeWriter, q: str, k: str, v: str, *, causal: bool, bias: str = "") -> str:
    """Return softmax(scale q k' + bias) v over the last two axes, [..., tokens, size]."""
    scale, cap = w.float_attribute("scale", 0.0), w.float_attribute("softcap", 0.0)
    axes = 5 if w.node.op_type == "GroupQueryAttention" else 4
    root = w.add("Sqrt", w.add("Cast", w.axis_size(q, axes - 1), to=w.element))
    q = w.add("Mul", q, w.constant(scale)) if scale else w.add("Div", q, root)
    scores = w.add("MatMul", q, w.transpose(k, *range(axes - 2), axes - 1, axes - 2))
    scores = w.add("Mul", w.add("Tanh", w.add("Div", scores, w.constant(cap))), w.constant(cap)) if cap else scores
    scores = w.add("Add", scores, bias) if bias else scores
    if causal:
        tokens, all_ = (w.add("Unsqueeze", w.axis_size(x, axes - 2), w.constant([0])) for x in (q, k))
        shape = w.add("Concat", tokens, all_, axis=0)
        low = w.add("Expand", w.constant(w.float_attribute("mask_filter_value", -10000.0)), shape)
        first = w.add("Add", w.add("Sub", w.axis_size(k, axes - 2), w.axis_size(q, axes - 2)), w.int_constant(1))
        scores = w.add("Add", scores, w.add("Trilu", low, first, upper=1))
    return w.add("MatMul", w.add("Softmax", scores, axis=-1), v)


def multi_head(w: NodeWriter) -> None:
    """Expand MultiHeadAttention of [batch, tokens, heads size], with biases of projections and scores."""
    heads, parts = w.int_attribute("num_heads", 0), [w.input(k) for k in range(3)]
    if w.has(3):
        width = w.add("Unsqueeze", w.axis_size(parts[0], 2), w.constant([0]))
        ends = [w.constant([0]), width, w.add("Mul", width, w.constant([2])), w.constant([2**31 - 1])]
        biases = [w.add("Slice", w.input(3), *ends[k : k + 2], w.constant([0])) for k in range(3)]
        parts = [w.add("Add", part, bias) for part, bias in zip(parts, biases, strict=True)]
    parts = [w.transpose(w.reshape(part, [0, 0, heads, -1]), 0, 2, 1, 3) for part in parts]
    bias = w.input(5) if w.has(5) else ""
    q, k, v = parts
    y = attended(w, q, k, v, causal=bool(w.int_attribute("unidirectional", 0)), bias=bias)
    w.add("Reshape", w.transpose(y, 0, 2, 1, 3), w.constant([0, 0, -1]), output=0)


def group_query(w: NodeWriter) -> None:
    """Expand causal GroupQueryAttention: all tokens count, even those that `seqlens_k` marks as padding."""
    heads, keys = w.int_attribute("num_heads", 0), w.int_attribute("kv_num_heads", 0)
    if w.has(1):
        parts = [w.input(k) for k in range(3)]
    else:
        packed, axis = w.reshape(w.input(0), [0, 0, heads + 2 * keys, -1]), w.constant([2])
        ends = [w.constant([k]) for k in (0, heads, heads + keys, heads + 2 * keys)]
        parts = [w.add("Slice", packed, *ends[k : k + 2], axis) for k in range(3)]
    each = (heads // max(keys, 1), 1, 1)  # heads that share a key
    split = [w.reshape(part, [0, 0, keys, n, -1]) for part, n in zip(parts, each, strict=True)]
    q, k, v = (w.transpose(part, 0, 2, 3, 1, 4) for part in split)
    pasts = [w.add("Unsqueeze", w.input(n), w.constant([2])) for n in (3, 4) if w.has(n)]
    if w.int_attribute("do_rotary", 0):
        if w.has(9):
            angles = [w.add("Unsqueeze", w.add("Gather", w.input(n), w.input(9)), w.constant([1, 2])) for n in (7, 8)]
        else:
            begin = w.axis_size(pasts[0], 3) if pasts else w.int_constant(0)
            begin, count = (w.add("Unsqueeze", x, w.constant([0])) for x in (begin, w.axis_size(q, 3)))
            ends = [begin, w.add("Add", begin, count), w.constant([0])]
            angles = [w.add("Slice", w.input(n), *ends) for n in (7, 8)]
        by, interleaved = (angles[0], angles[1]), w.int_attribute("rotary_interleaved", 0)
        q, k = (turned(w, x, by, interleaved, 0, 5) for x in (q, k))
    if pasts:
        k, v = (w.add("Concat", past, x, axis=3) for past, x in zip(pasts, (k, v), strict=True))
    for output, x in ((1, k), (2, v)):
        if len(w.node.output) > output and w.node.output[output]:
            w.add("Squeeze", x, w.constant([2]), output=output)
    y = attended(w, q, k, v, causal=True)
    w.add("Reshape", w.transpose(y, 0, 3, 1, 2, 4), w.constant([0, 0, -1]), output=0)


OWN = "com.microsoft"
_SAME_AXES = frozenset({"Add", "Cast", "Div", "LayerNormalization", "Mul", "Sub"})
"""Ops whose result has the rank of their first operand."""


def spell_out_fused(document: Document) -> list[str]:
    """Expand onnxruntime's activations, normalizations and attention into standard operators; return notes.

    Raise `ModelError` if one of them lacks operands.
    """
    nodes = document.proto.graph.node
    fused = [node for node in nodes if _expansion_of(node) is not None]
    if not fused:
        return []
    used_names, expanded = document.names, list[NodeProto]()
    for node in nodes:
        expand = _expansion_of(node)
        if expand is None:
            expanded.append(node)
            continue
        writer = NodeWriter(document, node, used_names)
        try:
            expand(writer)
        except IndexError:
            at = describe(document.where, node, document.opset)
            raise ModelError(f"{at}: it lacks operands. Export it again") from None
        expanded += writer.nodes
    document.put_nodes(expanded)
    kinds = ", ".join(dict.fromkeys(node.op_type for node in fused))
    remark = "; all tokens count, even those that seqlens_k marks as padding" if "GroupQueryAttention" in kinds else ""
    return [f"expanded onnxruntime's own {kinds} into standard operators{remark}"]


class NodeWriter:
    """Emitter of the nodes that replace one fused operator."""

    def __init__(self, document: Document, node: NodeProto, used_names: set[str]) -> None:
        self.node, self.used_names = node, used_names
        self.document = document
        # before opset 18, the axes of ReduceMean are an attribute
        self.axes_are_attributes = document.opset < 18
        inputs = document.proto.graph.input
        input_types = (entry.type.tensor_type.elem_type for entry in inputs)
        types = (*(kind for kind in input_types if kind in FLOATS), *(p.data_type for p in document.weights.values()))
        self.element = next((kind for kind in types if kind in FLOATS), 1)
        self.dtype = dtype_name(self.element)
        self.nodes: list[NodeProto] = []

    def has(self, k: int) -> bool:
        """Return whether the operator has input `k`."""
        return len(self.node.input) > k and bool(self.node.input[k])

    def input(self, k: int) -> str:
        """Return the name of input `k`. Raise IndexError if it is absent."""
        if not self.has(k):
            raise IndexError(k)
        return str(self.node.input[k])

    def float_attribute(self, name: str, default: float) -> float:
        """Return a float attribute."""
        return next((float(a.f) for a in self.node.attribute if a.name == name), default)

    def add(self, op: str, *inputs: str, output: int | None = None, **attributes: object) -> str:
        """Emit a node, and return its result: output `output` of the operator, or an intermediate tensor."""
        if output is not None and len(self.node.output) > output and self.node.output[output]:
            name = str(self.node.output[output])
        else:
            name = unique(f"{self.node.output[0]}.{op.lower()}", self.used_names)
            self.used_names.add(name)
        node = helper.make_node(op, inputs, [name], name=unique(name, self.used_names), **attributes)  # type: ignore[arg-type]
        self.nodes.append(node)
        return name

    def constant(self, value: float | list[int]) -> str:
        """Emit a scalar of the network's float type, or a list of int64."""
        return self._emit_constant(np.array(value, np.int64 if isinstance(value, list) else self.dtype))

    def _emit_constant(self, array: Array) -> str:
        return self.add("Constant", value=numpy_helper.from_array(array))

    def int_attribute(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return attribute_int(self.node, name, default)

    def int_constant(self, value: int) -> str:
        """Emit an int64 scalar."""
        return self._emit_constant(np.array(value, np.int64))

    def axis_size(self, x: str, axis: int) -> str:
        """Emit the size of an axis."""
        return self.add("Gather", self.add("Shape", x), self.int_constant(axis))

    def reshape(self, x: str, shape: list[int]) -> str:
        """Emit a Reshape: in `shape`, 0 keeps a size and -1 takes the rest."""
        return self.add("Reshape", x, self.constant(shape))

    def transpose(self, x: str, *perm: int) -> str:
        """Emit a Transpose."""
        return self.add("Transpose", x, perm=list(perm))

    def columns(self, name: str) -> int:
        """Return the number of columns of a stored table. Raise IndexError if it isn't stored."""
        if name not in self.document.weights:
            raise IndexError(name)
        return int(self.document.weights[name].dims[-1])

    def rank_of(self, name: str, unknown: int) -> int:
        """Return the rank of a stored tensor, an input, or a result of Transpose or elementwise ops; else `unknown`."""
        dims_by_name = {info.name: info.type.tensor_type.shape.dim for info in self.document.proto.graph.input}
        dims_by_name |= {weight: proto.dims for weight, proto in self.document.weights.items()}
        writers = {written: node for node in self.document.proto.graph.node for written in node.output}
        while name not in dims_by_name:
            node = writers.get(name)
            order = [list(a.ints) for a in node.attribute if a.name == "perm"] if node is not None else []
            if node is None or order or node.op_type not in _SAME_AXES:
                return len(order[0]) if order else unknown
            name = node.input[0]
        return len(dims_by_name[name])

    def mean(self, x: str) -> str:
        """Emit the mean over the last axis."""
        if self.axes_are_attributes:
            return self.add("ReduceMean", x, axes=[-1], keepdims=1)
        return self.add("ReduceMean", x, self.constant([-1]), keepdims=1)

    def normalize(self, x: str, scale: str, shift: str, *, centred: bool) -> None:
        """Emit (x - mean) / deviation * scale + shift over the last axis; without the mean unless `centred`."""
        part = self.add("Sub", x, self.mean(x)) if centred else x
        square = self.mean(self.add("Mul", part, part))
        root = self.add("Sqrt", self.add("Add", square, self.constant(self.float_attribute("epsilon", 1e-5))))
        quotient = self.add("Div", part, root)
        if shift:
            self.add("Add", self.add("Mul", quotient, scale), shift, output=0)
        else:
            self.add("Mul", quotient, scale, output=0)


def _gelu(w: NodeWriter) -> None:
    x = w.add("Add", w.input(0), w.input(1)) if w.node.op_type == "BiasGelu" else w.input(0)
    one = w.add("Add", w.add("Erf", w.add("Div", x, w.constant(math.sqrt(2)))), w.constant(1.0))
    w.add("Mul", w.add("Mul", x, one), w.constant(0.5), output=0)


def _fast_gelu(w: NodeWriter) -> None:
    x = w.add("Add", w.input(0), w.input(1)) if w.has(1) else w.input(0)
    cube = w.add("Mul", w.add("Mul", x, w.add("Mul", x, x)), w.constant(0.044715))
    inner = w.add("Mul", w.add("Add", x, cube), w.constant(math.sqrt(2 / math.pi)))
    one = w.add("Add", w.add("Tanh", inner), w.constant(1.0))
    w.add("Mul", w.add("Mul", x, one), w.constant(0.5), output=0)


def _quick_gelu(w: NodeWriter) -> None:
    scaled = w.add("Mul", w.input(0), w.constant(w.float_attribute("alpha", 1.702)))
    w.add("Mul", w.input(0), w.add("Sigmoid", scaled), output=0)


def _simplified_norm(w: NodeWriter) -> None:
    w.normalize(w.input(0), w.input(1), "", centred=False)


def _skip_norm(w: NodeWriter) -> None:
    centred = w.node.op_type == "SkipLayerNormalization"
    bias = 4 if centred else 3
    first = w.add("Add", w.input(0), w.input(bias)) if w.has(bias) else w.input(0)  # the layer's bias
    total = w.add("Add", first, w.input(1), output=3)
    w.normalize(total, w.input(2), w.input(3) if centred and w.has(3) else "", centred=centred)


_EXPANSIONS: Mapping[str, Callable[[NodeWriter], None]] = {
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified_norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "RotaryEmbedding": rotary,
    "MultiHeadAttention": multi_head,
    "GroupQueryAttention": group_query,
}


def _expansion_of(node: NodeProto) -> Callable[[NodeWriter], None] | None:
    """Return the function that expands a node; None for a standard or an unsupported one."""
    if node.op_type not in _EXPANSIONS or node.domain not in ((OWN, "") if "Simplified" in node.op_type else (OWN,)):
        return None
    if node.op_type in TAKEN:
        return _EXPANSIONS[node.op_type] if known(node) else None
    if attribute_int(node, "axis", -1) != -1 or any(node.output[1:3]):
        return None
    return _EXPANSIONS[node.op_type]
