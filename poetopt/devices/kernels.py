"""What onnxruntime's CPU kernels allocate for themselves while they run, beside their inputs and outputs.

Upper bounds for one intra-op thread, graph optimisations off (onnxruntime 1.31), each measured: a session's
allocator was replaced by one that counts.

| op | bytes | what for |
|---|---|---|
| Conv | 0 for a 1x1 kernel at stride 1 without pads; else 4 K P where C_out / groups > P; else `CONV_SLICE` | \
unfolded input (K taps of one output, P output positions), or a slice of it |
| ConvTranspose | 4 k C_out / groups x input positions, of one image | columns before they are folded |
| Softmax, LogSoftmax | 0 over the last axis, else 2 x the input | the input and output transposed |
| SoftmaxCrossEntropyLoss | 2 x the logits + 12 a label + `FUNCTION_PADS` | it is expanded into LogSoftmax and a loss |
| NegativeLogLikelihoodLoss | 8 a label | the picked values |
| Where | 2 x the output | both choices before they are merged |
| ScatterElements | 8 an index | indices checked and widened (on the heap, not by the allocator) |
| Einsum | what its operands and its output take, permuted | one permuted copy of each |
| BatchNormalization | 8 a channel in training | batch sums |
| LRN | 1 image's channels, padded | squares |
| anything else | 0 | |

Each block counts in multiples of `BLOCK`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from poetopt.graph import Node, Tensor

BLOCK = 64
"""What each of a kernel's blocks is rounded up to."""

CONV_SLICE = 128 * 128 * 4
"""The slice of the unfolded input that one thread works on, in bytes."""

FUNCTION_PADS = 1024
"""Rounding between the temporaries of an op that onnxruntime expands into others."""

Operands = Sequence[Tensor | None]


def kernel_bytes(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    """Most bytes that the kernel of one ONNX node holds at once beyond its inputs and outputs.

    inputs
        Its inputs in order, None for an absent one.
    outputs
        The outputs that it has, in order.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    return rule(node, inputs, outputs) if rule else 0


def _round(nbytes: int) -> int:
    return -(-nbytes // BLOCK) * BLOCK


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
    if math.prod(weight[2:]) == 1 and plain and str(node.attributes.get("auto_pad", "NOTSET")) != "SAME":
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
    return _round(2 * _nbytes(inputs, 0) + 12 * math.prod(_shape(inputs, 1)) + FUNCTION_PADS)


def _nll(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return _round(8 * math.prod(_shape(inputs, 1)))


def _where(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return 2 * _round(outputs[0].nbytes)


def _scatter_elements(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return _round(8 * math.prod(_shape(inputs, 1)))


def _einsum(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return sum(_round(_nbytes(inputs, k)) for k in range(len(inputs))) + 2 * _round(outputs[0].nbytes)


def _batch_normalization(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    return 2 * _round(_nbytes(inputs, 1)) if _integer(node, "training_mode", 0) else 0


def _lrn(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    shape = _shape(inputs, 0)
    plane = 4 * math.prod(shape[2:])
    return _round(plane * (shape[1] + _integer(node, "size", 1) - 1)) + _round(plane * shape[1])


_RULES: Mapping[str, Callable[[Node, Operands, Sequence[Tensor]], int]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": _nll,
    "Where": _where,
    "ScatterElements": _scatter_elements,
    "Einsum": _einsum,
    "BatchNormalization": _batch_normalization,
    "LRN": _lrn,
}
