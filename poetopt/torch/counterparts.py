"""Which operators of the ONNX file a function of torch is: both come from one program, in one order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from poetopt.graph import Graph, Operator

COUNTERPARTS: Mapping[str, tuple[str, ...]] = {
    "_adaptive_avg_pool2d": (
        "GlobalAveragePool",
        "AveragePool",
    ),
    "_log_softmax": ("LogSoftmax",),
    "_native_batch_norm_legit": ("BatchNormalization",),
    "_scaled_dot_product_flash_attention_for_cpu": (
        "MatMul Softmax MatMul",
        "MatMul Add Softmax MatMul",
    ),
    "_softmax": ("Softmax",),
    "abs": ("Abs",),
    "add": ("Add",),
    "addmm": (
        "Gemm",
        "MatMul Add",
    ),
    "amax": ("ReduceMax",),
    "avg_pool2d": ("AveragePool",),
    "bmm": ("MatMul",),
    "cat": ("Concat",),
    "clamp": ("Clip",),
    "clamp_min": (
        "Clip",
        "Max",
    ),
    "constant_pad_nd": ("Pad",),
    "convolution": (
        "Conv",
        "ConvTranspose",
    ),
    "div": ("Div",),
    "elu": (
        "Elu",
        "Selu",
    ),
    "embedding": ("Gather",),
    "erf": ("Erf",),
    "exp": ("Exp",),
    "gelu": ("Gelu",),
    "hardsigmoid": ("HardSigmoid",),
    "hardswish": ("HardSwish",),
    "hardtanh": ("Clip",),
    "index": (
        "GatherND",
        "Gather",
    ),
    "leaky_relu": ("LeakyRelu",),
    "log": ("Log",),
    "masked_fill": ("Where",),
    "max_pool2d_with_indices": ("MaxPool",),
    "mean": (
        "ReduceMean",
        "GlobalAveragePool",
    ),
    "mm": (
        "MatMul",
        "Gemm",
    ),
    "mul": ("Mul",),
    "native_batch_norm": ("BatchNormalization",),
    "native_dropout": ("Dropout",),
    "native_group_norm": ("GroupNormalization",),
    "native_layer_norm": ("LayerNormalization",),
    "neg": ("Neg",),
    "pow": (
        "Pow",
        "Mul",
    ),
    "reflection_pad2d": ("Pad",),
    "relu": ("Relu",),
    "roll": ("Concat",),
    "rsqrt": (
        "Sqrt Reciprocal",
        "Reciprocal",
    ),
    "sigmoid": ("Sigmoid",),
    "silu": (
        "Swish",
        "Sigmoid Mul",
    ),
    "softplus": ("Softplus",),
    "sqrt": ("Sqrt",),
    "sub": ("Sub",),
    "sum": ("ReduceSum",),
    "tanh": ("Tanh",),
    "upsample_bilinear2d": ("Resize",),
    "upsample_nearest2d": ("Resize",),
    "where": ("Where",),
}
"""For each function of ATen that computes: the operators that an exporter writes for it, the likeliest way first."""
MASK = "bernoulli_"
"""What draws a Dropout's mask; its module's functions are one Dropout."""
MOVES = frozenset({
    "Cast", "CastLike", "Constant", "ConstantOfShape", "Expand", "Flatten", "Identity", "Reshape", "Shape", "Slice",
    "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Kinds of ONNX that torch does by looking at the same bytes otherwise."""


@dataclass(frozen=True)
class Call:
    """One function that ran.

    name
        As in `COUNTERPARTS`; in place with a `_` behind it.
    place
        Of the module's node in its program, as messages call it.
    scope
        The layer that it is in.
    node
        Its number.
    moves
        Whether what it returns has the bytes of what it was given, or none that anybody computed.
    """

    name: str
    place: str
    scope: str
    node: int
    moves: bool


Matches = dict[int, tuple[str, ...]]
"""By a call's index: the operators that it is, of which it returns the last one's output."""


def matched(calls: Sequence[Call], network: Graph) -> Matches:
    """The operators that calls are.

    Where every call has its counterparts in order, that is it. Else as many as can be are matched in order, within the
    layers that the operators' names tell (`layer.0/Relu`): a function of its own, as in attention, stays without.
    """
    operators = [entry for entry in network.operators if not entry.view and entry.kind not in MOVES]
    ways = dict(_ways(calls))
    computing = [index for index in range(len(calls)) if ways[index]]
    found: Matches = {}
    at = 0
    for index in computing:
        count = next((n for n in ways[index] if _fits(calls[index], operators[at : at + n], ways[index][n])), 0)
        if not count:
            return _most(calls, ways, operators)
        found[index] = tuple(entry.name for entry in operators[at : at + count])
        at += count
    return found if at == len(operators) else _most(calls, ways, operators)


def _ways(calls: Sequence[Call]) -> Iterator[tuple[int, dict[int, set[tuple[str, ...]]]]]:
    """For each call the kinds of its counterparts, by their number; empty where it computes nothing known.

    The functions of a Dropout, which draws its mask among them, are one.
    """
    masks = {call.node for call in calls if call.name == MASK}
    last = {call.node: index for index, call in enumerate(calls)}
    for index, call in enumerate(calls):
        if call.node in masks:
            texts: tuple[str, ...] = ("Dropout",) if index == last[call.node] else ()
        else:
            texts = () if call.moves else COUNTERPARTS.get(call.name.removesuffix("_"), ())
        ways: dict[int, set[tuple[str, ...]]] = {}
        for text in texts:
            kinds = tuple(text.split())
            ways.setdefault(len(kinds), set()).add(kinds)
        yield index, ways


def _fits(call: Call, operators: Sequence[Operator], ways: set[tuple[str, ...]]) -> bool:
    """Whether these operators may be the call's counterpart: of the right kinds, and in its layer."""
    return tuple(entry.kind for entry in operators) in ways and all(_inside(entry, call) for entry in operators)


def _inside(operator: Operator, call: Call) -> bool:
    layer, named, _ = operator.name.rpartition("/")
    return not named or not call.scope or layer == call.scope or layer.startswith(f"{call.scope}.")


def _most(
    calls: Sequence[Call], ways: Mapping[int, Mapping[int, set[tuple[str, ...]]]], operators: Sequence[Operator]
) -> Matches:
    """The longest common subsequence: best[i][j] is how many operators from j on have a call from the i-th on."""
    computing = [index for index in range(len(calls)) if ways[index]]
    best = [[0] * (len(operators) + 1) for _ in range(len(computing) + 1)]
    taken: dict[tuple[int, int], int] = {}
    for i in reversed(range(len(computing))):
        call, of_call, later, row = calls[computing[i]], ways[computing[i]], best[i + 1], best[i]
        for j in reversed(range(len(operators))):
            row[j] = max(later[j], row[j + 1])
            for count, kinds in of_call.items():
                fits = j + count <= len(operators) and _fits(call, operators[j : j + count], kinds)
                if fits and later[j + count] + count > row[j]:
                    row[j], taken[i, j] = later[j + count] + count, count
    found: Matches = {}
    i = j = 0
    while i < len(computing) and j < len(operators):
        if (i, j) in taken:
            found[computing[i]] = tuple(entry.name for entry in operators[j : j + taken[i, j]])
            i, j = i + 1, j + taken[i, j]
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return found
