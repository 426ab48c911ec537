"""onnxruntime's fused operators, written out as the operators that its optimizer made them of.

Those of attention are in `poetopt.frontends.attention`.
Constants have the type of the network's first float input, as such files have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from poetopt.frontends import attention
from poetopt.frontends.places import FLOATS
from poetopt.frontends.proto import attribute_int, dtype_name, unique
from poetopt.frontends.read import Document
from poetopt.frontends.structure import describe
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array

OWN = "com.microsoft"
_SAME_AXES = frozenset({"Add", "Cast", "Div", "LayerNormalization", "Mul", "Sub"})
"""Ops whose result has as many axes as their first operand."""
_AXES_ARE_AN_INPUT = 18
"""The opset since which ReduceMean has them so."""


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
        self.axes = document.opset < _AXES_ARE_AN_INPUT
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
    "RotaryEmbedding": attention.rotary,
    "MultiHeadAttention": attention.multi_head,
    "GroupQueryAttention": attention.group_query,
}


def _form(node: NodeProto) -> Callable[[NodeWriter], None] | None:
    """What writes a node out; None for a standard one, and where it gives or takes more than is known here."""
    if node.op_type not in _FORMS or node.domain not in ((OWN, "") if "Simplified" in node.op_type else (OWN,)):
        return None
    if node.op_type in attention.TAKEN:
        return _FORMS[node.op_type] if attention.known(node) else None
    if attribute_int(node, "axis", -1) != -1 or any(node.output[1:3]):
        return None
    return _FORMS[node.op_type]
