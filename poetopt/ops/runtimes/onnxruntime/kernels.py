"""Describes what onnxruntime's CPU kernels allocate for themselves while they run, beside their inputs and outputs.

For one intra-op thread, graph optimisations off, onnxruntime 1.31 on x86-64. Each rule was measured over random shapes
by an allocator that counts, and by the process's peak for what kernels take from the heap directly (marked
*heap*); it is exact or an upper bound. With P = output positions of one channel, K = taps of one output:

| op | bytes | what for |
|---|---|---|
| Conv | 4 K P where C_out / groups > P, else `CONV_SLICE`; 0 where nothing has to be unfolded | unfolded input |
| ConvTranspose | 4 k C_out / groups x input positions, of one image | columns before they are folded |
| Softmax, LogSoftmax, Hardmax | 0 over the last axis, else 2 x the input | input and output transposed |
| SoftmaxCrossEntropyLoss | 2 x the logits; planes add 8 a label, weights 4, ignore_index 36 | expanded into others |
| NegativeLogLikelihoodLoss | 8 a label, and the same for weights and ignore_index | it is expanded into others |
| Where | each choice broadcast with the condition | both before they are merged |
| ScatterElements | 8 an index | *heap*: indices checked and widened |
| Sum, Max, Min, Mean | the largest two successive partial results, from three operands on | folding |
| MatMul | 96 a product, where it is a batch of them | *heap*: descriptors |
| Einsum | what operands, and twice what the output takes | permuted copies |
| BatchNormalization | 12 a channel, 20 in training | *heap*: deviations, factors, shifts; batch sums |
| LRN | the input, and one padded image | squares and their sums |
| GroupNormalization, MeanVarianceNormalization | 3 x the input | expanded into others (partly *heap*) |
| HardSwish, Mish, Swish | the output | expanded into others |
| Attention | the scores of all heads; causal adds one mask | they are written out |
| LSTM, GRU | the gates of all steps; a reversed direction adds what it reads and writes | inputs times weights |
| RNN | one direction's Y, and all of Y where nobody asks for it | inputs times weights |
| Dropout without its mask | 1 an element | *heap*: the mask |
| Resize | a position along each axis: 8 (nearest), 16 or 24 (linear), 256 (cubic) | *heap*: positions, weights |
| DFT | complex numbers: n (onesided 2 n) for a power of two, else 5 x the one from 2 n - 1 on | a line's factors |
| anything else | 0 | |

Each block counts in multiples of `BLOCK`. In half precision few operators compute: onnxruntime casts to float32 and
back around the others, so that all do count with float32 copies of their operands and results, and what theirs take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from poetopt.graph import VIEW_OPS, Node, Tensor
from poetopt.ops.nodes import Call
from poetopt.ops.runtimes.contract import Operands

MEASURED = "1.31"
"""The version of onnxruntime that the rules were measured on."""

BLOCK = 64
"""What each of a kernel's blocks is rounded up to."""

CONV_SLICE = 128 * 128 * 4
"""The slice of the unfolded input that one thread works on, in bytes."""

PLANNED = 256
"""What the temporaries of an op that onnxruntime expands into others are rounded up to."""


def kernel_bytes(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    """Most bytes that the kernel of one ONNX node holds at once beyond its inputs and outputs.

    inputs
        Its inputs in order, None for an absent one.
    outputs
        The outputs that it has, in order.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    copies = 0
    if node.op_type not in _ANY_TYPE:
        halves = [tensor for tensor in (*inputs, *outputs) if tensor is not None and tensor.dtype in _HALF]
        copies = sum(_round(4 * tensor.size) for tensor in halves)
        if node.op_type == "Gelu":  # there it is expanded into others
            copies += sum(_round(4 * tensor.size) for tensor in halves[:1])
        inputs, outputs = [_widened(one) for one in inputs], [one for one in map(_widened, outputs) if one is not None]
    return copies + (rule(Call(node, tuple(inputs), tuple(outputs))) if rule else 0)


_HALF = frozenset({"float16", "bfloat16"})
_ANY_TYPE = VIEW_OPS | {
    "Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Gather", "GatherElements", "GatherND", "Identity",
    "Shape", "Size", "Slice", "Split", "Transpose",
}  # fmt: skip
"""Operators that move values of any type as they are."""


def _widened(tensor: Tensor | None) -> Tensor | None:
    return replace(tensor, dtype="float32") if tensor is not None and tensor.dtype in _HALF else tensor


def _round(nbytes: int, block: int = BLOCK) -> int:
    return -(-nbytes // block) * block


def _item_bytes(c: Call) -> int:
    return c.output().nbytes // max(c.output().size, 1)


def _conv(c: Call) -> int:
    weight = c.shape(1)
    groups = c.integer("group", 1)
    taps, positions = math.prod(weight[1:]), math.prod(c.output().shape[2:])
    plain = set(c.integers("strides")) <= {1} and not any(c.integers("pads"))
    if plain and c.text("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        data = c.shape(0)
        if math.prod(weight[2:]) == 1:
            return 0
        if weight[1] == 1 and len(weight) <= 4 and weight[-1] == data[-1]:
            # windows as wide as the plane: each is a run of the input as it lies there
            return 0
    if weight[0] // groups > positions:
        return _round(4 * taps * positions)
    return CONV_SLICE


def _softmax(c: Call) -> int:
    rank = len(c.shape(0))
    if rank == 0 or c.integer("axis", -1) % rank == rank - 1:
        return 0
    return 2 * _round(c.nbytes(0))


def _cross_entropy(c: Call) -> int:
    # of planes, the labels' copies come to what freed temporaries still hold on the heap
    planes = 2 * _round(4 * math.prod(c.shape(1)), PLANNED) if len(c.shape(0)) > 2 else 0
    return 2 * _round(c.nbytes(0), PLANNED) + planes + PLANNED + _loss(c)


def _loss(c: Call) -> int:
    # weights bring their own value for each label; an ignored class a mask and a choice
    labels = math.prod(c.shape(1))
    each = _round(4 * labels, PLANNED) + PLANNED
    weighted = each if c.nbytes(2) else 0
    ignored = (
        each + 2 * _round(8 * labels, PLANNED) + 2 * _round(8 * labels) if "ignore_index" in c.node.attributes else 0
    )
    return weighted + ignored


def _where(c: Call) -> int:
    # each choice is masked by the condition first, in the shape that the two broadcast to
    size = _item_bytes(c)
    return sum(_round(size * math.prod(_broadcast(c.shape(0), c.shape(k)))) for k in (1, 2))


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    return tuple(max(pair) if 0 not in pair else 0 for pair in pairs)


def _lrn(c: Call) -> int:
    shape = c.shape(0)
    padded = shape[1] + c.integer("size", 1) - 1
    return _round(c.nbytes(0)) + _round(4 * padded * math.prod(shape[2:]))


def _variadic(c: Call) -> int:
    # folded two by two: each partial result lives until the next is there, and the last is the output
    size = _item_bytes(c)
    shape, partial = c.shape(0), []
    for k in range(1, len(c.inputs) - 1):
        shape = _broadcast(shape, c.shape(k))
        partial.append(_round(size * math.prod(shape)))
    return max((a + b for a, b in zip([0, *partial], partial, strict=False)), default=0)


def _group_normalization(c: Call) -> int:
    statistics = 4 * c.shape(0)[0] * c.integer("num_groups", 1)
    small = 2 * _round(c.nbytes(1), PLANNED) + 4 * _round(statistics, PLANNED)
    return 3 * _round(c.nbytes(0), PLANNED) + small


def _attention(c: Call) -> int:
    queries, keys = c.shape(0), c.shape(1)
    heads = queries[1] if len(queries) == 4 else c.integer("q_num_heads", 1)
    plane = 4 * queries[-2] * keys[-2]
    return _round(queries[0] * heads * plane) + (_round(plane) if c.integer("is_causal", 0) else 0)


def _recurrent(c: Call) -> int:
    data, recurrent = c.shape(0), c.shape(2)
    directions, gates, hidden = recurrent
    rows = math.prod(data[:-1])
    states = 8 * _round(4 * data[1] * gates) * directions
    turned = c.text("direction", "forward") != "forward"
    again = _round(c.nbytes(0)) + _round(4 * rows * hidden) if turned else 0
    return directions * _round(4 * rows * gates) + again + states


def _rnn(c: Call) -> int:
    # the second direction takes the first one's room
    directions, hidden, _ = c.shape(2)
    whole = _round(4 * math.prod(c.shape(0)[:-1]) * hidden)
    return whole + (0 if c.node.outputs and c.node.outputs[0] else directions * whole)


def _resize(c: Call) -> int:
    shape = c.output().shape
    inner = sum(shape[2:])
    mode = c.text("mode", "nearest")
    if mode == "cubic":
        return _round(256 * inner)
    if mode == "nearest":
        return _round(8 * sum(shape))
    return _round({4: 16 * inner, 5: 24 * inner}.get(len(shape), 24 * sum(shape)))


def _dft(c: Call) -> int:
    # the axis may be an input: the one that changes, else any of them
    pairs = list(zip(c.shape(0)[:-1], c.output().shape[:-1], strict=True))
    pairs = [(a, b) for a, b in pairs if a != b] or pairs
    onesided = bool(c.integer("onesided", 0))
    if onesided and not c.integer("inverse", 0):
        lengths = [a if a // 2 + 1 == b else 2 * b - 1 for a, b in pairs]
    else:
        lengths = [b for _, b in pairs]
    size = 2 * _item_bytes(c)
    return max((_round(size * _line(n, onesided)) for n in lengths), default=0)


def _line(length: int, onesided: bool) -> int:
    # a power of two has n factors, and the whole spectrum where half of it is written; else a convolution is made of it
    return (1 + onesided) * length if length & (length - 1) == 0 else 5 * (1 << (2 * length - 2).bit_length())


def _matmul(c: Call) -> int:
    # one descriptor a product; a product with a matrix is one, with a vector one for each row
    right = len(c.shape(1))
    products = c.output().size if right == 1 else math.prod(c.output().shape[:-2]) if right > 2 else 1
    return _round(96 * products) if products > 1 else 0


_RULES: Mapping[str, Callable[[Call], int]] = {
    "Conv": _conv,
    "ConvTranspose": lambda c: _round(4 * math.prod(c.shape(1)[1:]) * math.prod(c.shape(0)[2:])),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": lambda c: 2 * _round(4 * math.prod(c.shape(1)), PLANNED) + _loss(c),
    "Where": _where,
    "ScatterElements": lambda c: _round(8 * math.prod(c.shape(1))),
    "Einsum": lambda c: sum(_round(c.nbytes(k)) for k in range(len(c.inputs))) + 2 * _round(c.output().nbytes),
    "BatchNormalization": lambda c: (5 if c.integer("training_mode", 0) else 3) * _round(c.nbytes(1)),
    "LRN": _lrn,
    **dict.fromkeys(("Sum", "Max", "Min", "Mean"), _variadic),
    **dict.fromkeys(("HardSwish", "Mish", "Swish"), lambda c: _round(c.output().nbytes, PLANNED)),
    "Attention": _attention,
    **dict.fromkeys(("LSTM", "GRU"), _recurrent),
    "RNN": _rnn,
    "GroupNormalization": _group_normalization,
    "MeanVarianceNormalization": lambda c: 3 * _round(c.nbytes(0)),
    # a mask that nobody asked for is made all the same
    "Dropout": lambda c: 0 if len(c.outputs) > 1 else _round(c.output().size),
    "Resize": _resize,
    "MatMul": _matmul,
    "DFT": _dft,
}
