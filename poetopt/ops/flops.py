"""Floating-point operations of an ONNX node, from the shapes of its tensors.

A multiply-add is 2 FLOPs; adding, multiplying, dividing, comparing, taking a root are 1; exp, log and their kin are
`TRANSCENDENTAL` (the polynomial that evaluates them). Taps that fall on padding count, as kernels execute
them. With n = elements of the first output, x = elements of the first input, k = taps of a window:

| op | FLOPs |
|---|---|
| Conv | n (2 k C_in / groups + 1 with a bias) |
| ConvTranspose | 2 x k C_out / groups, + n with a bias |
| ConvInteger, QLinearConv, MatMulInteger, QLinearMatMul | as those of floats: no rate is known for integers |
| Gemm, MatMul | 2 n K, + n where Gemm has a C, + n where alpha is not 1 |
| Einsum | operands x the product of all label sizes |
| Col2Im | x |
| elementwise | a constant an element: `ELEMENTWISE`; Sum, Max, Min: n (operands - 1); Mean: n operands |
| ReduceSum, Max, Min, Prod, L1, ArgMax, CumSum | x (L1: 2 x) |
| ReduceMean | x + n |
| ReduceSumSquare, ReduceL2 | 2 x (L2: + n) |
| ReduceLogSum, LogSumExp | x (1 + exp for LogSumExp) + n log |
| MaxPool | n k |
| AveragePool, LpPool | n (k + 1) (Lp: 2 k + 1) |
| GlobalAveragePool, GlobalMaxPool | x + n, x |
| BatchNormalization | inference 2 x + 5 C; training 6 x + 13 C |
| LayerNormalization | x (7, or 8 with a bias) + 5 a row |
| RMSNormalization | 4 x + 4 a row |
| InstanceNormalization, GroupNormalization | 8 x + 5 a row |
| MeanVarianceNormalization | 6 x + 5 a row |
| LpNormalization | 3 x |
| Softmax, LogSoftmax | x (4 + exp), + log a row |
| SoftmaxCrossEntropyLoss | x (4 + exp) + (log + 2) a label |
| NegativeLogLikelihoodLoss | 2 a label |
| LRN | x (size + 4 + pow) |
| Dropout | 2 x in training, else 0 |
| ScatterElements, ScatterND | an element of the updates with a reduction, else 0 |
| Attention | a score 2 (width of a key + of a value) + 6 + exp |
| RotaryEmbedding | 3 x |
| LSTM, GRU | a step and gate: 2 (inputs + hidden) + 2; a state 6 + 5 exp, or 6 + 3 exp |
| RNN | a step and unit: 2 (inputs + hidden) + 2, and the activation |
| Resize | n times 0 (nearest), 2 x 2^d (linear), 2 x 4^d (cubic), d = scaled axes |
| GridSample | n times 0 (nearest), 2 x 2^d (linear), 2 x 4^d (cubic), d = sampled axes |
| DFT | 5 a complex number of y and doubling of the longest axis |
| moving data (`MOVES`) | 0 |
| anything else | n: one an element |

What an operator does: floating-point operations, and bytes moved, node by node.

Bytes moved are all that a node reads and writes once: a cache's view of perfect reuse. An op that picks some of
its input (`PICKS`) reads as much as it writes. Views move nothing.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poetopt.graph import Node, Operator, Tensor, inner_storage
from poetopt.ops.nodes import OfNode, find, is_inner_view


def labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The terms and the result of an equation, with `...` spelt out by unused letters, and an implicit result given.

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


TRANSCENDENTAL = 10
"""FLOPs of one exp, log, sine or power: a range reduction and a polynomial."""

_T = TRANSCENDENTAL
ELEMENTWISE: Mapping[str, int] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Sign", "Relu", "Floor", "Ceil", "Round"), 1),
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "Not", "And", "Or", "Xor"), 1),
    **dict.fromkeys(("Sqrt", "Reciprocal", "Where", "IsNaN", "IsInf", "ThresholdedRelu", "Shrink"), 1),
    **dict.fromkeys(("Clip", "LeakyRelu", "PRelu"), 2),
    **dict.fromkeys(("HardSigmoid", "Softsign"), 3),
    "HardSwish": 4,
    **dict.fromkeys(("Exp", "Log", "Sin", "Cos", "Pow"), _T),
    **dict.fromkeys(("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"), 2 * _T),
    **dict.fromkeys(("Elu", "Celu", "Selu"), _T + 3),
    "Sigmoid": _T + 3,
    "Tanh": _T + 5,
    "Erf": 2 * _T,
    "Softplus": 2 * _T + 1,
    "Mish": 3 * _T,
    "Swish": _T + 5,
    "Gelu": 2 * _T + 4,
}
"""FLOPs an element of the output."""

MOVES = frozenset(
    {"Cast", "CastLike", "Compress", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "EyeLike", "Expand"}
    | {"Flatten", "Gather", "GatherElements", "GatherND", "Identity", "NonZero", "OneHot", "Pad", "RandomNormal"}
    | {"RandomNormalLike", "RandomUniform", "RandomUniformLike", "Range", "Reshape", "ReverseSequence", "Shape"}
    | {"Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"}
)
"""Ops that compute nothing with their data."""

REDUCED: Mapping[str, tuple[int, int]] = {
    "ReduceSum": (1, 0),
    "ReduceMax": (1, 0),
    "ReduceMin": (1, 0),
    "ReduceProd": (1, 0),
    "ReduceMean": (1, 1),
    "ReduceL1": (2, 0),
    "ReduceSumSquare": (2, 0),
    "ReduceL2": (2, 1),
    "ReduceLogSum": (1, _T),
    "ReduceLogSumExp": (1 + _T, _T),
    "ArgMax": (1, 0),
    "ArgMin": (1, 0),
    "CumSum": (1, 0),
    "GlobalAveragePool": (1, 1),
    "GlobalMaxPool": (1, 0),
}
"""FLOPs an element of the input, and an element of the output."""

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class _Seen(OfNode):
    """A node with the shapes of its inputs, `n` elements of its first output and `x` of its first input."""

    node: Node
    inputs: Shapes
    n: int
    x: int

    def has(self, index: int) -> bool:
        """Says whether there is an input `index`."""
        return len(self.node.inputs) > index and bool(self.node.inputs[index])

    def taps(self, index: int) -> int:
        """Products of a weight [outputs, inputs of a group, kernel...] for each of its outputs."""
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
        """Gives what is before that axis."""
        return math.prod(self.inputs[0][: self.axis])


def node_flops(node: Node, inputs: Shapes, outputs: Shapes) -> int:
    """FLOPs of one ONNX node by the table above.

    inputs
        Shapes of its inputs, `()` for an absent one.
    outputs
        Shapes of the outputs it has.
    """
    op = node.op_type if not node.domain else ""
    n = math.prod(outputs[0]) if outputs else 0
    x = math.prod(inputs[0]) if inputs else n
    if op in MOVES:
        return 0
    if op in ELEMENTWISE:
        return ELEMENTWISE[op] * n
    if op in REDUCED:
        each_input, each_output = REDUCED[op]
        return each_input * x + each_output * n
    rule = _RULES.get(op)
    return rule(_Seen(node, inputs, n, x)) if rule else n


def _gemm(c: _Seen) -> int:
    inner = c.inputs[0][0] if c.integer("transA", 0) else c.inputs[0][1]
    return c.n * (2 * inner + c.has(2) + (c.number("alpha", 1.0) != 1.0))


def _einsum(c: _Seen) -> int:
    terms, _ = labels(c.text("equation", ""), [len(shape) for shape in c.inputs])
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, c.inputs, strict=True):
        for label, size in zip(term, shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    return len(c.inputs) * math.prod(sizes.values())


def _mean_variance(c: _Seen) -> int:
    shape = c.inputs[0]
    gone = {axis % len(shape) for axis in c.integers("axes", (0, 2, 3))} if shape else set()
    return 6 * c.x + 5 * math.prod(d for axis, d in enumerate(shape) if axis not in gone)


def _attention(c: _Seen) -> int:
    queries, keys, values = c.inputs[:3]
    flat = len(queries) == 3
    heads = c.integer("q_num_heads", 1) if flat else queries[1]
    shared = c.integer("kv_num_heads", 1) if flat else 1
    depth = queries[-1] // (heads if flat else 1) + values[-1] // shared
    return queries[0] * heads * queries[-2] * keys[-2] * (2 * depth + 6 + _T)


def _gated(exponentials: int) -> Callable[[_Seen], int]:
    def rule(c: _Seen) -> int:
        # W is [directions, gates hidden, inputs], R [directions, gates hidden, hidden]
        (steps, batch), (directions, gates, width), hidden = c.inputs[0][:2], c.inputs[1], c.inputs[2][2]
        state = hidden * (6 + _T * exponentials)
        return directions * steps * batch * (gates * (2 * (width + hidden) + 2) + state)

    return rule


def _rnn(c: _Seen) -> int:
    (steps, batch), (directions, hidden, width) = c.inputs[0][:2], c.inputs[1]
    given = c.node.attributes.get("activations", ())
    names = [str(name) for name in given] if isinstance(given, Sequence) else []
    bent = sum(ELEMENTWISE.get(name, _T) for name in (*names, *["Tanh"] * (directions - len(names))))
    return steps * batch * hidden * (directions * (2 * (width + hidden) + 2) + bent)


def _logarithms(c: _Seen) -> int:
    length = c.inputs[0][c.axis] if c.inputs[0] else 1
    return c.x * (4 + _T) + (c.x // length if length else 0) * _T


def _interpolated(default: str) -> Callable[[_Seen], int]:
    taps = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
    return lambda c: 2 * c.n * taps.get(c.text("mode", default), 0) ** max(len(c.inputs[0]) - 2, 1)


_RULES: Mapping[str, Callable[[_Seen], int]] = {
    "Conv": lambda c: c.n * (2 * c.taps(1) + c.has(2)),
    "ConvInteger": lambda c: 2 * c.n * c.taps(1),
    # x, scale, zero point, W, scale, zero point, scale, zero point, bias
    "QLinearConv": lambda c: c.n * (2 * c.taps(3) + c.has(8)),
    "ConvTranspose": lambda c: 2 * c.x * c.taps(1) + c.n * c.has(2),
    "Gemm": _gemm,
    **dict.fromkeys(("MatMul", "QLinearMatMul", "MatMulInteger"), lambda c: 2 * c.n * c.inputs[0][-1]),
    "Einsum": _einsum,
    "Col2Im": lambda c: c.x,
    **dict.fromkeys(("Sum", "Max", "Min"), lambda c: c.n * (len(c.inputs) - 1)),
    "Mean": lambda c: c.n * len(c.inputs),
    "MaxPool": lambda c: c.n * c.window,
    "AveragePool": lambda c: c.n * (c.window + 1),
    "LpPool": lambda c: c.n * (2 * c.window + 1),
    "BatchNormalization": lambda c: (
        6 * c.x + 13 * math.prod(c.inputs[1]) if c.integer("training_mode", 0) else 2 * c.x + 5 * math.prod(c.inputs[1])
    ),
    "LayerNormalization": lambda c: c.x * (7 + c.has(2)) + 5 * c.rows,
    "RMSNormalization": lambda c: 4 * c.x + 4 * c.rows,
    **dict.fromkeys(
        ("InstanceNormalization", "GroupNormalization"),
        lambda c: 8 * c.x + 5 * c.inputs[0][0] * c.integer("num_groups", c.inputs[0][1]),
    ),
    "MeanVarianceNormalization": _mean_variance,
    **dict.fromkeys(("LpNormalization", "RotaryEmbedding"), lambda c: 3 * c.x),
    "Attention": _attention,
    "LSTM": _gated(5),
    "GRU": _gated(3),
    "RNN": _rnn,
    "Softmax": lambda c: c.x * (4 + _T),
    "LogSoftmax": _logarithms,
    "SoftmaxCrossEntropyLoss": lambda c: c.x * (4 + _T) + (_T + 2) * math.prod(c.inputs[1]),
    "NegativeLogLikelihoodLoss": lambda c: 2 * math.prod(c.inputs[1]),
    "LRN": lambda c: c.x * (c.integer("size", 1) + 4 + _T),
    # training_mode is an input; whoever gives it as a third input means it
    "Dropout": lambda c: 2 * c.x if c.has(2) else 0,
    **dict.fromkeys(
        ("ScatterElements", "ScatterND"),
        lambda c: math.prod(c.inputs[2]) if c.text("reduction", "none") != "none" else 0,
    ),
    "Resize": _interpolated("nearest"),
    "GridSample": _interpolated("linear"),
    # the axis may be an input, and so unknown here
    "DFT": lambda c: 5 * -(-c.n // 2) * (max(c.inputs[0][:-1], default=1) - 1).bit_length(),
}


PICKS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Compress"})
"""Ops that read only what they deliver of their first input."""


@dataclass(frozen=True, slots=True)
class Work:
    """Holds what one ONNX node does: floating-point operations, and bytes read and written."""

    flops: int
    nbytes: int


def work(operator: Operator, tensors: Mapping[str, Tensor]) -> tuple[Work, ...]:
    """FLOPs and bytes moved of each node of an operator, in order; a view costs nothing.

    tensors
        All tensors of the graph by name, the temporaries of the operator among them.

    Raises `ModelError` where a node names a tensor that `tensors` lacks.
    """
    if operator.view:
        return tuple(Work(0, 0) for _ in operator.nodes)
    group = inner_storage(operator)
    return tuple(_node_work(operator, node, group, tensors) for node in operator.nodes)


def flops(operator: Operator, tensors: Mapping[str, Tensor]) -> int:
    """FLOPs of an operator: the sum over its nodes."""
    return sum(node.flops for node in work(operator, tensors))


def _node_work(operator: Operator, node: Node, group: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Work:
    inputs = [find(operator, node, name, tensors) if name else None for name in node.inputs]
    outputs = [find(operator, node, name, tensors) for name in node.outputs if name]
    if is_inner_view(node, group):
        return Work(0, 0)
    read = [tensor.nbytes if tensor else 0 for tensor in inputs]
    written = sum(tensor.nbytes for tensor in outputs)
    if node.op_type in PICKS and not node.domain and read:
        read[0] = min(read[0], written)
    elif node.op_type in ("Shape", "Size"):
        read = []
    shapes = [tensor.shape if tensor else () for tensor in inputs]
    return Work(node_flops(node, shapes, [tensor.shape for tensor in outputs]), sum(read) + written)
