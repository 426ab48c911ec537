"""Floating-point operations and bytes moved of ONNX nodes, from the shapes of their tensors.

A multiply-add is 2 FLOPs. An addition, product, quotient, comparison or root is 1. An exp, log or similar function is
`EXP` (the polynomial that evaluates it). Taps that fall on padding count, as kernels execute them. The formula of
each op is in its declaration (`poetopt.ops.op`): n are the elements of the first output, x those of the first input.

Bytes moved assume a cache with perfect reuse: a node reads and writes each byte once. An op that picks some of its
input reads as much as it writes. Views move nothing.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poetopt.graph import Node, Operator, Tensor, inner_storage
from poetopt.ops.nodes import OfNode, find, is_inner_view
from poetopt.ops.op import EXP, op_of


def labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the terms and the result of an Einsum equation.

    Unused letters replace `...`, and an implicit result is written out.

    Parameters
    ----------
    ranks
        How many axes each operand has.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [c for c in string.ascii_letters if c not in equation]
    widths = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    dots = "".join(free[: max((w for w, t in zip(widths, terms, strict=True) if "..." in t), default=0)])
    spelt = [t.replace("...", dots[len(dots) - w :] if w else "") for t, w in zip(terms, widths, strict=True)]
    if not arrow:
        once = sorted(c for c in set("".join(terms)) - {"."} if "".join(terms).count(c) == 1)
        right = ("..." if dots else "") + "".join(once)
    return spelt, right.replace("...", dots)


Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class ShapedNode(OfNode):
    """A node with the shapes of its inputs, `n` elements of its first output and `x` of its first input."""

    node: Node
    inputs: Shapes
    n: int
    x: int

    def has(self, index: int) -> bool:
        """Return whether there is an input `index`."""
        return len(self.node.inputs) > index and bool(self.node.inputs[index])

    def taps(self, index: int) -> int:
        """Return the products per output of a weight [outputs, inputs of a group, kernel...]."""
        return math.prod(self.inputs[index][1:])

    @property
    def window(self) -> int:
        """Taps of `kernel_shape`."""
        return math.prod(self.integers("kernel_shape"))

    @property
    def axis(self) -> int:
        """The attribute `axis`, -1 by default, counted from the front."""
        return self.integer("axis", -1) % len(self.inputs[0]) if self.inputs[0] else 0

    @property
    def rows(self) -> int:
        """Product of the sizes before `axis`."""
        return math.prod(self.inputs[0][: self.axis])


def node_flops(node: Node, inputs: Shapes, outputs: Shapes) -> int:
    """Return the FLOPs of one ONNX node, by its declaration.

    Parameters
    ----------
    inputs
        Shapes of its inputs, `()` for an absent one.
    outputs
        Shapes of its outputs.
    """
    n = math.prod(outputs[0]) if outputs else 0
    x = math.prod(inputs[0]) if inputs else n
    rule = None if node.domain else op_of(node.op_type).flops
    match rule:
        case None:
            return n
        case int():
            return rule * n
        case (each_input, each_output):
            return each_input * x + each_output * n
    return rule(ShapedNode(node, inputs, n, x))


def gemm(c: ShapedNode) -> int:
    """Return the FLOPs of the products, the addend and the factor."""
    inner = c.inputs[0][0] if c.integer("transA", 0) else c.inputs[0][1]
    return c.n * (2 * inner + c.has(2) + (c.number("alpha", 1.0) != 1.0))


def einsum(c: ShapedNode) -> int:
    """Return the number of operands times the product of all label sizes."""
    terms, _ = labels(c.text("equation", ""), [len(shape) for shape in c.inputs])
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, c.inputs, strict=True):
        for label, size in zip(term, shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    return len(c.inputs) * math.prod(sizes.values())


def mean_variance(c: ShapedNode) -> int:
    """Return 6 per element, and 5 per mean."""
    shape = c.inputs[0]
    gone = {axis % len(shape) for axis in c.integers("axes", (0, 2, 3))} if shape else set()
    return 6 * c.x + 5 * math.prod(d for axis, d in enumerate(shape) if axis not in gone)


def attention(c: ShapedNode) -> int:
    """Return 2 (width of a key + width of a value) + 6 + exp per score."""
    queries, keys, values = c.inputs[:3]
    flat = len(queries) == 3
    heads = c.integer("q_num_heads", 1) if flat else queries[1]
    shared = c.integer("kv_num_heads", 1) if flat else 1
    depth = queries[-1] // (heads if flat else 1) + values[-1] // shared
    return queries[0] * heads * queries[-2] * keys[-2] * (2 * depth + 6 + EXP)


def gated(exponentials: int) -> Callable[[ShapedNode], int]:
    """Return a rule: 2 (inputs + hidden) + 2 per step and gate, and 6 + `exponentials` exp per state."""

    def rule(c: ShapedNode) -> int:
        # W is [directions, gates hidden, inputs], R [directions, gates hidden, hidden]
        (steps, batch), (directions, gates, width), hidden = c.inputs[0][:2], c.inputs[1], c.inputs[2][2]
        state = hidden * (6 + EXP * exponentials)
        return directions * steps * batch * (gates * (2 * (width + hidden) + 2) + state)

    return rule


def rnn(c: ShapedNode) -> int:
    """Return 2 (inputs + hidden) + 2 and the activation per step and unit."""
    (steps, batch), (directions, hidden, width) = c.inputs[0][:2], c.inputs[1]
    attribute = c.node.attributes.get("activations", ())
    names = [str(name) for name in attribute] if isinstance(attribute, Sequence) else []
    costs = [op_of(name).flops for name in (*names, *["Tanh"] * (directions - len(names)))]
    activation_flops = sum(each if isinstance(each, int) else EXP for each in costs)
    return steps * batch * hidden * (directions * (2 * (width + hidden) + 2) + activation_flops)


def logarithms(c: ShapedNode) -> int:
    """Return 4 + exp per element, and a log per row."""
    length = c.inputs[0][c.axis] if c.inputs[0] else 1
    return c.x * (4 + EXP) + (c.x // length if length else 0) * EXP


def interpolated(default: str) -> Callable[[ShapedNode], int]:
    """Return a rule: 2 per neighbour; the mode gives 2 or 4 neighbours along each scaled axis, none for `nearest`."""
    taps = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
    return lambda c: 2 * c.n * taps.get(c.text("mode", default), 0) ** max(len(c.inputs[0]) - 2, 1)


def batch_normalization(c: ShapedNode) -> int:
    """Return 2 per element and 5 per channel; in training 6 and 13."""
    each, channel = (6, 13) if c.integer("training_mode", 0) else (2, 5)
    return each * c.x + channel * math.prod(c.inputs[1])


def scattered(c: ShapedNode) -> int:
    """Return 1 per element of the updates with a reduction, else 0."""
    return math.prod(c.inputs[2]) if c.text("reduction", "none") != "none" else 0


def fourier(c: ShapedNode) -> int:
    """Return 5 per complex number of the result and doubling of the longest axis: the axis itself may be an input."""
    return 5 * -(-c.n // 2) * (max(c.inputs[0][:-1], default=1) - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations of one ONNX node, and the bytes that it reads and writes."""

    flops: int
    nbytes: int


def work(operator: Operator, tensors: Mapping[str, Tensor]) -> tuple[Work, ...]:
    """Return the FLOPs and bytes moved of each node of an operator, in order; a view costs nothing.

    Parameters
    ----------
    tensors
        All tensors of the graph by name, with the temporaries of the operator.

    Raises
    ------
    ModelError
        A node names a tensor that `tensors` lacks.
    """
    if operator.view:
        return tuple(Work(0, 0) for _ in operator.nodes)
    group = inner_storage(operator)
    return tuple(_node_work(operator, node, group, tensors) for node in operator.nodes)


def flops(operator: Operator, tensors: Mapping[str, Tensor]) -> int:
    """Return the FLOPs of an operator: the sum over its nodes."""
    return sum(node.flops for node in work(operator, tensors))


def _node_work(operator: Operator, node: Node, group: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Work:
    inputs = [find(operator, node, name, tensors) if name else None for name in node.inputs]
    outputs = [find(operator, node, name, tensors) for name in node.outputs if name]
    if is_inner_view(node, group):
        return Work(0, 0)
    read = [tensor.nbytes if tensor else 0 for tensor in inputs]
    written = sum(tensor.nbytes for tensor in outputs)
    op = op_of("" if node.domain else node.op_type)
    if op.picks and read:
        read[0] = min(read[0], written)
    elif op.asks_shape:
        read = []
    shapes = [tensor.shape if tensor else () for tensor in inputs]
    return Work(node_flops(node, shapes, [tensor.shape for tensor in outputs]), sum(read) + written)
