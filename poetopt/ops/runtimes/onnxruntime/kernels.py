"""Bytes that onnxruntime's CPU kernels allocate while they run, beside their inputs and outputs.

The rules hold for one intra-op thread, graph optimisations off, onnxruntime 1.31 on x86-64. Each rule was measured over
random shapes by an allocator that counts. Memory that kernels take from the heap directly (marked *heap*) was measured
by the process's peak. A rule is exact or an upper bound. An op's declaration names its rule; an op without one
allocates nothing.

Each block counts in multiples of `BLOCK`. Few operators have kernels in half precision: onnxruntime casts to float32
and back around the others. So all operators in half precision count float32 copies of their operands and results, and
the memory of the float32 kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from poetopt.graph import Node, Tensor
from poetopt.ops.nodes import Call
from poetopt.ops.op import op_of
from poetopt.ops.runtimes.contract import Operands

MEASURED = "1.31"
"""The version of onnxruntime that the rules were measured on."""

BLOCK = 64
"""Each of a kernel's blocks is rounded up to a multiple of so many bytes."""

CONV_SLICE = 128 * 128 * 4
"""The slice of the unfolded input that one thread works on, in bytes."""

PLANNED = 256
"""Temporaries of an op that onnxruntime expands into others are rounded up to a multiple of so many bytes."""


def kernel_bytes(node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
    """Return the most bytes that the kernel of one ONNX node holds at once beside its inputs and outputs.

    Parameters
    ----------
    inputs
        Its inputs in order, None for an absent one.
    outputs
        Its outputs in order.
    """
    op = op_of("" if node.domain else node.op_type)
    copies = 0
    if not op.any_type:
        halves = [tensor for tensor in (*inputs, *outputs) if tensor is not None and tensor.dtype in _HALF]
        copies = sum(_round_up(4 * tensor.size) for tensor in halves)
        if node.op_type == "Gelu":  # in half precision onnxruntime expands it into others
            copies += sum(_round_up(4 * tensor.size) for tensor in halves[:1])
        inputs, outputs = (
            [_as_float32(one) for one in inputs],
            [one for one in map(_as_float32, outputs) if one is not None],
        )
    return copies + (op.workspace(Call(node, tuple(inputs), tuple(outputs))) if op.workspace else 0)


_HALF = frozenset({"float16", "bfloat16"})


def _as_float32(tensor: Tensor | None) -> Tensor | None:
    return replace(tensor, dtype="float32") if tensor is not None and tensor.dtype in _HALF else tensor


def _round_up(nbytes: int, block: int = BLOCK) -> int:
    return -(-nbytes // block) * block


def _item_bytes(c: Call) -> int:
    return c.output().nbytes // max(c.output().size, 1)


def conv(c: Call) -> int:
    """Return the unfolded input: 4 taps x positions if channels exceed positions, else a slice; 0 without unfolding."""
    weight = c.shape(1)
    groups = c.integer("group", 1)
    taps, positions = math.prod(weight[1:]), math.prod(c.output().shape[2:])
    plain = set(c.integers("strides")) <= {1} and not any(c.integers("pads"))
    if plain and c.text("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        data = c.shape(0)
        if math.prod(weight[2:]) == 1:
            return 0
        if weight[1] == 1 and len(weight) <= 4 and weight[-1] == data[-1]:
            # windows as wide as the plane: each is contiguous in the input
            return 0
    if weight[0] // groups > positions:
        return _round_up(4 * taps * positions)
    return CONV_SLICE


def softmax(c: Call) -> int:
    """Return the transposed input and output, unless the axis is the last."""
    rank = len(c.shape(0))
    if rank == 0 or c.integer("axis", -1) % rank == rank - 1:
        return 0
    return 2 * _round_up(c.nbytes(0))


def cross_entropy(c: Call) -> int:
    """Return 2 x the logits; planes add 8 a label, weights 4, ignore_index 36: the op is expanded into others."""
    # with planes, the labels' copies add to freed temporaries that the heap still holds
    planes = 2 * _round_up(4 * math.prod(c.shape(1)), PLANNED) if len(c.shape(0)) > 2 else 0
    return 2 * _round_up(c.nbytes(0), PLANNED) + planes + PLANNED + _loss_bytes(c)


def _loss_bytes(c: Call) -> int:
    # weights add a value for each label; an ignored class adds a mask and a Where
    labels = math.prod(c.shape(1))
    each = _round_up(4 * labels, PLANNED) + PLANNED
    weighted = each if c.nbytes(2) else 0
    ignored = (
        each + 2 * _round_up(8 * labels, PLANNED) + 2 * _round_up(8 * labels)
        if "ignore_index" in c.node.attributes
        else 0
    )
    return weighted + ignored


def where(c: Call) -> int:
    """Return each choice broadcast with the condition, before they are merged."""
    # each choice is masked by the condition first, in their common broadcast shape
    size = _item_bytes(c)
    return sum(_round_up(size * math.prod(_broadcast(c.shape(0), c.shape(k)))) for k in (1, 2))


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    return tuple(max(pair) if 0 not in pair else 0 for pair in pairs)


def lrn(c: Call) -> int:
    """Return the squares and their sums: the input, and one padded image."""
    shape = c.shape(0)
    padded = shape[1] + c.integer("size", 1) - 1
    return _round_up(c.nbytes(0)) + _round_up(4 * padded * math.prod(shape[2:]))


def variadic(c: Call) -> int:
    """Return the largest two successive partial results, from three operands on."""
    # operands are folded in pairs: each partial result lives until the next is computed, and the last is the output
    size = _item_bytes(c)
    shape, partial = c.shape(0), []
    for k in range(1, len(c.inputs) - 1):
        shape = _broadcast(shape, c.shape(k))
        partial.append(_round_up(size * math.prod(shape)))
    return max((a + b for a, b in zip([0, *partial], partial, strict=False)), default=0)


def group_normalization(c: Call) -> int:
    """Return 3 x the input: the op is expanded into others (partly *heap*)."""
    statistics = 4 * c.shape(0)[0] * c.integer("num_groups", 1)
    small = 2 * _round_up(c.nbytes(1), PLANNED) + 4 * _round_up(statistics, PLANNED)
    return 3 * _round_up(c.nbytes(0), PLANNED) + small


def attention(c: Call) -> int:
    """Return the scores of all heads, which are written out; `is_causal` adds one mask."""
    queries, keys = c.shape(0), c.shape(1)
    heads = queries[1] if len(queries) == 4 else c.integer("q_num_heads", 1)
    plane = 4 * queries[-2] * keys[-2]
    return _round_up(queries[0] * heads * plane) + (_round_up(plane) if c.integer("is_causal", 0) else 0)


def recurrent(c: Call) -> int:
    """Return the gates of all steps (inputs times weights); a reversed direction adds its operands and results."""
    data, recurrent = c.shape(0), c.shape(2)
    directions, gates, hidden = recurrent
    rows = math.prod(data[:-1])
    states = 8 * _round_up(4 * data[1] * gates) * directions
    turned = c.text("direction", "forward") != "forward"
    reversed_bytes = _round_up(c.nbytes(0)) + _round_up(4 * rows * hidden) if turned else 0
    return directions * _round_up(4 * rows * gates) + reversed_bytes + states


def rnn(c: Call) -> int:
    """Return one direction's Y, and all of Y if the node doesn't output it: inputs times weights."""
    # the second direction reuses the memory of the first
    directions, hidden, _ = c.shape(2)
    whole = _round_up(4 * math.prod(c.shape(0)[:-1]) * hidden)
    return whole + (0 if c.node.outputs and c.node.outputs[0] else directions * whole)


def resize(c: Call) -> int:
    """Return the positions along each axis with weights (*heap*): 8 (nearest), 16 or 24 (linear), 256 (cubic) each."""
    shape = c.output().shape
    inner = sum(shape[2:])
    mode = c.text("mode", "nearest")
    if mode == "cubic":
        return _round_up(256 * inner)
    if mode == "nearest":
        return _round_up(8 * sum(shape))
    return _round_up({4: 16 * inner, 5: 24 * inner}.get(len(shape), 24 * sum(shape)))


def dft(c: Call) -> int:
    """Return a line's factors: n complex numbers (onesided 2 n) for powers of two, else 5 x the one from 2 n - 1 on."""
    # the axis may be an input: then it is the one whose size changes, else any
    pairs = list(zip(c.shape(0)[:-1], c.output().shape[:-1], strict=True))
    pairs = [(a, b) for a, b in pairs if a != b] or pairs
    onesided = bool(c.integer("onesided", 0))
    if onesided and not c.integer("inverse", 0):
        lengths = [a if a // 2 + 1 == b else 2 * b - 1 for a, b in pairs]
    else:
        lengths = [b for _, b in pairs]
    size = 2 * _item_bytes(c)
    return max((_round_up(size * _line_factors(n, onesided)) for n in lengths), default=0)


def _line_factors(length: int, onesided: bool) -> int:
    # a power of two has n factors, and the whole spectrum if half of it is written; else the kernel convolves
    return (1 + onesided) * length if length & (length - 1) == 0 else 5 * (1 << (2 * length - 2).bit_length())


def matmul(c: Call) -> int:
    """Return 96 bytes per product of a batch (*heap*): descriptors."""
    # one descriptor per product; a product with a matrix is one, a product with a vector one for each row
    right = len(c.shape(1))
    products = c.output().size if right == 1 else math.prod(c.output().shape[:-2]) if right > 2 else 1
    return _round_up(96 * products) if products > 1 else 0


def columns(c: Call) -> int:
    """Return one image's columns before they are folded: 4 k C_out / groups x input positions."""
    return _round_up(4 * math.prod(c.shape(1)[1:]) * math.prod(c.shape(0)[2:]))


def log_likelihood(c: Call) -> int:
    """Return 8 a label, and the extra of `cross_entropy` for weights and ignore_index: the op is expanded."""
    return 2 * _round_up(4 * math.prod(c.shape(1)), PLANNED) + _loss_bytes(c)


def widened_indices(c: Call) -> int:
    """Return 8 bytes per index (*heap*): indices are checked and widened."""
    return _round_up(8 * math.prod(c.shape(1)))


def permuted(c: Call) -> int:
    """Return the permuted copies: the operands' bytes, and twice the output's."""
    return sum(_round_up(c.nbytes(k)) for k in range(len(c.inputs))) + 2 * _round_up(c.output().nbytes)


def statistics(c: Call) -> int:
    """Return 12 a channel (*heap*): deviations, factors, shifts; in training 20, with the batch's sums."""
    return (5 if c.integer("training_mode", 0) else 3) * _round_up(c.nbytes(1))


def expanded(c: Call, temporaries: int = 1) -> int:
    """Return the bytes of so many outputs: the op is expanded into one operator more than that."""
    return temporaries * _round_up(c.output().nbytes, PLANNED)


def mean_variance(c: Call) -> int:
    """Return 3 x the input: the op is expanded into others (partly *heap*)."""
    return 3 * _round_up(c.nbytes(0))


def mask(c: Call) -> int:
    """Return 1 byte per element (*heap*): the kernel computes the mask even if the node doesn't output it."""
    return 0 if len(c.outputs) > 1 else _round_up(c.output().size)
