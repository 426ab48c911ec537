"""What onnxruntime's CPU kernels allocate for themselves while they run, beside their inputs and outputs.

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

Each block counts in multiples of `BLOCK`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from poetopt.graph import Node, Tensor
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
    return rule(node, inputs, outputs) if rule else 0


def _round(nbytes: int, block: int = BLOCK) -> int:
    return -(-nbytes // block) * block


def _shape(operands: Operands, index: int) -> tuple[int, ...]:
    tensor = operands[index] if index < len(operands) else None
    return tensor.shape if tensor else ()


def _nbytes(operands: Operands, index: int) -> int:
    tensor = operands[index] if index < len(operands) else None
    return tensor.nbytes if tensor else 0


def _integers(node: Node, name: str) -> tuple[int, ...]:
    value = node.attributes.get(name, ())
    return tuple(int(v) for v in value) if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _integer(node: Node, name: str, default: int) -> int:
    value = node.attributes.get(name, default)
    return int(value) if isinstance(value, (int, float)) else default


def _conv(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    weight = _shape(inputs, 1)
    groups = _integer(node, "group", 1)
    taps, positions = math.prod(weight[1:]), math.prod(outputs[0].shape[2:])
    plain = set(_integers(node, "strides")) <= {1} and not any(_integers(node, "pads"))
    if plain and str(node.attributes.get("auto_pad", "NOTSET")) in ("NOTSET", "VALID"):
        data = _shape(inputs, 0)
        if math.prod(weight[2:]) == 1:
            return 0
        if weight[1] == 1 and len(weight) <= 4 and weight[-1] == data[-1]:
            # windows as wide as the plane: each is a run of the input as it lies there
            return 0
    if weight[0] // groups > positions:
        return _round(4 * taps * positions)
    return CONV_SLICE


def _conv_transpose(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    data, weight = _shape(inputs, 0), _shape(inputs, 1)
    return _round(4 * math.prod(weight[1:]) * math.prod(data[2:]))


def _softmax(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    rank = len(_shape(inputs, 0))
    if rank == 0 or _integer(node, "axis", -1) % rank == rank - 1:
        return 0
    return 2 * _round(_nbytes(inputs, 0))


def _cross_entropy(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    # of planes, the labels' copies come to what freed temporaries still hold on the heap
    planes = 2 * _round(4 * math.prod(_shape(inputs, 1)), PLANNED) if len(_shape(inputs, 0)) > 2 else 0
    return 2 * _round(_nbytes(inputs, 0), PLANNED) + planes + PLANNED + _loss(node, inputs)


def _nll(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return 2 * _round(4 * math.prod(_shape(inputs, 1)), PLANNED) + _loss(node, inputs)


def _loss(node: Node, inputs: Operands) -> int:
    # weights bring their own value for each label; an ignored class a mask and a choice
    labels = math.prod(_shape(inputs, 1))
    each = _round(4 * labels, PLANNED) + PLANNED
    weighted = each if _nbytes(inputs, 2) else 0
    ignored = (
        each + 2 * _round(8 * labels, PLANNED) + 2 * _round(8 * labels) if "ignore_index" in node.attributes else 0
    )
    return weighted + ignored


def _where(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    # each choice is masked by the condition first, in the shape that the two broadcast to
    size = outputs[0].nbytes // max(outputs[0].size, 1)
    return sum(_round(size * math.prod(_broadcast(_shape(inputs, 0), _shape(inputs, k)))) for k in (1, 2))


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    return tuple(max(pair) if 0 not in pair else 0 for pair in pairs)


def _scatter_elements(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return _round(8 * math.prod(_shape(inputs, 1)))


def _einsum(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return sum(_round(_nbytes(inputs, k)) for k in range(len(inputs))) + 2 * _round(outputs[0].nbytes)


def _batch_normalization(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return (5 if _integer(node, "training_mode", 0) else 3) * _round(_nbytes(inputs, 1))


def _lrn(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    shape = _shape(inputs, 0)
    padded = shape[1] + _integer(node, "size", 1) - 1
    return _round(_nbytes(inputs, 0)) + _round(4 * padded * math.prod(shape[2:]))


def _variadic(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    # folded two by two: each partial result lives until the next is there, and the last is the output
    size = outputs[0].nbytes // max(outputs[0].size, 1)
    shape, partial = _shape(inputs, 0), []
    for k in range(1, len(inputs) - 1):
        shape = _broadcast(shape, _shape(inputs, k))
        partial.append(_round(size * math.prod(shape)))
    return max((a + b for a, b in zip([0, *partial], partial, strict=False)), default=0)


def _expanded_once(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return _round(outputs[0].nbytes, PLANNED)


def _group_normalization(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    statistics = 4 * _shape(inputs, 0)[0] * _integer(node, "num_groups", 1)
    small = 2 * _round(_nbytes(inputs, 1), PLANNED) + 4 * _round(statistics, PLANNED)
    return 3 * _round(_nbytes(inputs, 0), PLANNED) + small


def _mean_variance(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return 3 * _round(_nbytes(inputs, 0))


def _attention(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    queries, keys = _shape(inputs, 0), _shape(inputs, 1)
    heads = queries[1] if len(queries) == 4 else _integer(node, "q_num_heads", 1)
    plane = 4 * queries[-2] * keys[-2]
    return _round(queries[0] * heads * plane) + (_round(plane) if _integer(node, "is_causal", 0) else 0)


def _recurrent(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    data, recurrent = _shape(inputs, 0), _shape(inputs, 2)
    directions, gates, hidden = recurrent
    rows = math.prod(data[:-1])
    states = 8 * _round(4 * data[1] * gates) * directions
    turned = str(node.attributes.get("direction", "forward")) != "forward"
    again = _round(_nbytes(inputs, 0)) + _round(4 * rows * hidden) if turned else 0
    return directions * _round(4 * rows * gates) + again + states


def _rnn(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    # the second direction takes the first one's room
    directions, hidden, _ = _shape(inputs, 2)
    whole = _round(4 * math.prod(_shape(inputs, 0)[:-1]) * hidden)
    return whole + (0 if node.outputs and node.outputs[0] else directions * whole)


def _dropout(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    # a mask that nobody asked for is made all the same
    return 0 if len(outputs) > 1 else _round(outputs[0].size)


def _resize(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    shape = outputs[0].shape
    inner = sum(shape[2:])
    mode = str(node.attributes.get("mode", "nearest"))
    if mode == "cubic":
        return _round(256 * inner)
    if mode == "nearest":
        return _round(8 * sum(shape))
    return _round({4: 16 * inner, 5: 24 * inner}.get(len(shape), 24 * sum(shape)))


def _dft(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    # the axis may be an input: the one that changes, else any of them
    pairs = list(zip(_shape(inputs, 0)[:-1], outputs[0].shape[:-1], strict=True))
    pairs = [(a, b) for a, b in pairs if a != b] or pairs
    onesided = bool(_integer(node, "onesided", 0))
    if onesided and not _integer(node, "inverse", 0):
        lengths = [a if a // 2 + 1 == b else 2 * b - 1 for a, b in pairs]
    else:
        lengths = [b for _, b in pairs]
    size = 2 * outputs[0].nbytes // max(outputs[0].size, 1)
    return max((_round(size * _line(n, onesided)) for n in lengths), default=0)


def _line(length: int, onesided: bool) -> int:
    # a power of two has n factors, and the whole spectrum where half of it is written; else a convolution is made of it
    return (1 + onesided) * length if length & (length - 1) == 0 else 5 * (1 << (2 * length - 2).bit_length())


def _matmul(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    # one descriptor a product; a product with a matrix is one, with a vector one for each row
    right = len(_shape(inputs, 1))
    products = outputs[0].size if right == 1 else math.prod(outputs[0].shape[:-2]) if right > 2 else 1
    return _round(96 * products) if products > 1 else 0


_RULES: Mapping[str, Callable[[Node, Operands, Sequence[Tensor]], int]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Hardmax": _softmax,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": _nll,
    "Where": _where,
    "ScatterElements": _scatter_elements,
    "Einsum": _einsum,
    "BatchNormalization": _batch_normalization,
    "LRN": _lrn,
    "Sum": _variadic,
    "Max": _variadic,
    "Min": _variadic,
    "Mean": _variadic,
    "HardSwish": _expanded_once,
    "Mish": _expanded_once,
    "Swish": _expanded_once,
    "Attention": _attention,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _rnn,
    "GroupNormalization": _group_normalization,
    "MeanVarianceNormalization": _mean_variance,
    "Dropout": _dropout,
    "Resize": _resize,
    "MatMul": _matmul,
    "DFT": _dft,
}
