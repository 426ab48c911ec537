"""A linear layer with cross-entropy as one operator, which computes the scores in chunks.

The scores of a language model take more RAM than the rest of its step: several tensors with a row of classes for each
token. This operator computes loss and gradient in one pass over chunks of classes instead. For chunk k it computes the
scores z = x W_k' + b_k, their maximum m, the sum s of exp(z - m) and the product u = exp(z - m) W_k. It multiplies the
sums of earlier chunks by exp(m_before - m_after). After the last chunk

    loss = mean(m + log s - z_label),    dx = (u / s - W_label) / rows

It multiplies by W as often as two passes do, and reads W once, chunk by chunk where W is on storage. Kernels can't
gather rows of four-bit elements, so that these are stored as bytes of two.

If the layer is trained, the operator writes each row's l = m + log s. A second operator recomputes the scores, in
chunks of rows, or of classes where it streams W, dW or W's update:

    p = (exp(z - l) - [class = label]) / rows,    dW = p' x

A third operator computes db, the sum of p, likewise.

Source: Milakov and Gimelshein, arXiv 1805.02867; Hsu et al., Liger Kernel, arXiv 2410.10989.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.autodiff.behind import Behind
from poetopt.autodiff.emit import GraphBuilder, OperatorBuilder, finish
from poetopt.graph import PACKED, VIEW_OPS, Operator, Role, Tensor
from poetopt.ops.quantization import Sharing, halves, settings, sharing

if TYPE_CHECKING:
    from poetopt.graph import Array

CLASSES = 2048
"""Classes per chunk."""


@dataclass(frozen=True)
class Head:
    """A linear layer z = x W' + b with cross-entropy.

    Attributes
    ----------
    x
        Its input, in any shape whose last axis is W's.
    weight
        W, [classes, features], or its quantized integers.
    scores
        Name of its product.
    bias
        A number for each class, or None.
    trained
        Whether W or b is trained.
    scales
        Scales and zero points that dequantize W.
    sharing
        The elements of W that share a scale.
    packed
        Whether the elements of W are halves of bytes, low bits first.
    gone
        Constants that `weight` and `scales` replace.
    """

    x: Tensor
    weight: Tensor
    scores: str = ""
    bias: Tensor | None = None
    trained: bool = False
    scales: tuple[Tensor, ...] = ()
    sharing: Sharing = Sharing(None)  # noqa: RUF009
    gone: tuple[str, ...] = ()
    packed: bool = False

    def dequantized_part(self, k: OperatorBuilder, select: Callable[[Tensor], Tensor]) -> Tensor:
        """Write the dequantized part of W that `of` selects from W and its scales."""
        integers, (axis, block) = select(self.weight), self.sharing
        if not self.scales:
            return integers
        if self.packed:
            sixteen = k.graph.constant(np.array(16, np.uint8))
            halves = [k.binary(op, integers, sixteen) for op in ("Mod", "Div")]
            halves = [k.reshape(half, (*half.shape, 1)) for half in halves]
            integers = k.reshape(k.concat(halves, 2), (integers.shape[0], 2 * integers.shape[1]))
        scales = [select(scale) if axis == 0 or block else scale for scale in self.scales]
        attributes = {} if axis is None else {"axis": axis} | ({"block_size": block} if block else {})
        return k.node("DequantizeLinear", [integers, *scales], integers.shape, scales[0].dtype, **attributes)


def picked(k: OperatorBuilder, table: Tensor, labels: Tensor) -> Tensor:
    """Write the rows of a table at the labels."""
    return k.node("Gather", [table, labels], (*labels.shape, *table.shape[1:]), table.dtype, axis=0)


def head_of(scores: Tensor, axis: int, builder: GraphBuilder, behind: Behind) -> Head | None:
    """Return the linear layer that computes `scores` if one operator with the loss takes less RAM, else None.

    The scores must take more than a chunk of scores and weight. If the layer is trained they must also take more than
    the weight, as its gradient needs another product and RAM of the weight's size; and the weight's rows must be
    classes, as a trained weight is not transposed.
    """
    if axis != len(scores.shape) - 1 or scores.shape[axis] <= CLASSES or scores.dtype not in ("float32", "float64"):
        return None
    node, bias = behind.node(scores.name), ""
    while node is not None and (node.op_type in VIEW_OPS or node.op_type == "Add"):
        if node.op_type == "Add":
            bias, *more = [name for name in node.inputs if name in behind.values] or ["", ""]
            if more:
                return None
        node = behind.node(next(name for name in node.inputs if name != bias))
    if node is None or node.op_type not in ("Gemm", "MatMul") or node.domain or (bias and len(node.inputs) > 2):
        return None
    attributes, is_transposed = node.attributes, not node.attributes.get("transB", 0)
    if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0 or attributes.get("transA", 0):
        return None
    bias = bias or "".join(node.inputs[2:])
    x, bias_tensor = builder.tensors[node.inputs[0]], builder.tensors[bias] if bias else None
    if bias_tensor is not None and (bias not in behind.values or bias_tensor.shape != scores.shape[-1:]):
        return None
    rows, classes, features = scores.size // scores.shape[-1], scores.shape[-1], x.shape[-1]
    if rows * classes <= CLASSES * (rows + features):
        return None
    without_bias = _weight(x, node.inputs[1], is_transposed, builder, behind)
    if without_bias is None or without_bias.weight.shape[0] != classes:
        return None
    trained = without_bias.trained or (bias_tensor is not None and bias_tensor.role is Role.PARAMETER)
    if trained and rows <= features:
        return None
    return replace(without_bias, scores=node.outputs[0], bias=bias_tensor, trained=trained)


def _weight(x: Tensor, name: str, is_transposed: bool, builder: GraphBuilder, behind: Behind) -> Head | None:
    """Return the layer without its bias, or None where W is trained and transposed, or its rows share scales."""
    transpose = behind.node(name, "Transpose")
    if transpose is not None and len(builder.tensors[name].shape) == 2:
        name, is_transposed = transpose.inputs[0], not is_transposed
    node, operands = behind.node(name, "DequantizeLinear"), [name]
    if node is not None:
        operands = [name for name in node.inputs if name]
    weight, *scales = tensors = [builder.tensors[name] for name in operands]
    if len(weight.shape) != 2 or any(name not in behind.values for name in operands):
        return None
    if any(behind.constant(name) is None for name in operands):
        return None if scales or is_transposed else Head(x, weight, trained=True)
    axis, block = (None, 0) if node is None else sharing(weight.shape, scales[0].shape, *settings(node))
    axis = axis if axis is None or not is_transposed else 1 - axis
    packed = weight.dtype in PACKED
    if (axis == 0 and block) or (packed and weight.shape[0 if is_transposed else 1] % 2):
        return None
    values = [_unpacked(tensor, builder) for tensor in tensors]
    if packed and weight.dtype == "int4" and len(values) == 2:
        values.append(np.full(values[1].shape, 8, np.uint8))
    values = [value.T if is_transposed and value.ndim == 2 else value for value in values]
    if packed:
        values[0] = values[0][:, ::2] | values[0][:, 1::2] << 4
    constants = [
        _find_or_add_constant(builder, value, f"{name}.rows")
        for value, name in zip(values, (*operands, name), strict=False)
    ]
    replaced = tuple({*operands} - {tensor.name for tensor in constants})
    return Head(
        x, constants[0], scales=tuple(constants[1:]), sharing=Sharing(axis, block), gone=replaced, packed=packed
    )


def _unpacked(tensor: Tensor, builder: GraphBuilder) -> Any:
    """Return the value of a constant; elements of four bits as 0 to 15, one per byte."""
    value: Any = builder.values[tensor.name]
    if tensor.dtype not in PACKED:
        return value
    nibbles = halves(value)[: tensor.size].reshape(tensor.shape)
    return (nibbles + 8) % 16 if tensor.dtype == "int4" else nibbles


def _find_or_add_constant(builder: GraphBuilder, value: Array, name: str) -> Tensor:
    """Return a constant of this value: one that the graph has (for example that of a tied layer), or a new one."""
    for other, array in builder.values.items():
        tensor = builder.tensors[other]
        matches = tensor.shape == value.shape and array.dtype == value.dtype and tensor.role is Role.CONSTANT
        if matches and np.array_equal(array, value):
            return tensor
    return builder.valued(builder.unique(name), np.ascontiguousarray(value), Role.CONSTANT)


def write_loss(k: OperatorBuilder, layer: Head, x: Tensor, labels: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
    """Write the loss, its gradient by `x`, [rows, features], and if the layer is trained each row's l, [rows, 1].

    Parameters
    ----------
    labels
        Labels that are valid indices, [rows].
    weight
        Weight of each row in the mean; None where all are one.
    """
    classes, count, column = layer.weight.shape[0], x.shape[0], (x.shape[0], 1)
    sums: tuple[Tensor, Tensor, Tensor] | None = None
    for begin in range(0, classes, CLASSES):
        chunk = partial(k.slice, starts=[begin], ends=[min(begin + CLASSES, classes)], axes=[0])
        chunk_weight = layer.dequantized_part(k, chunk)
        bias = None if layer.bias is None else chunk(layer.bias)
        scores = k.gemm(x, chunk_weight, bias, trans_b=True)
        axes, attributes = ([], {"axes": [1]}) if k.graph.opset < 18 else ([k.graph.ints([1])], {})
        new_maximum = k.node("ReduceMax", [scores, *axes], column, scores.dtype, keepdims=1, **attributes)
        if sums is None:
            powers = k.unary("Exp", k.sub(scores, new_maximum))
            sums = new_maximum, k.reduce_sum(powers, [1]), k.matmul(powers, chunk_weight)
            continue
        maximum, exp_sum, product = sums
        new_maximum = k.binary("Max", maximum, new_maximum)
        powers, decay = k.unary("Exp", k.sub(scores, new_maximum)), k.unary("Exp", k.sub(maximum, new_maximum))
        exp_sum = k.add(k.mul(exp_sum, decay), k.reduce_sum(powers, [1]))
        sums = new_maximum, exp_sum, k.gemm(powers, chunk_weight, k.mul(product, decay))
    assert sums is not None
    maximum, exp_sum, product = sums
    label_rows = layer.dequantized_part(k, lambda one: picked(k, one, labels))
    label_score = k.reduce_sum(k.mul(x, label_rows), [1])
    if layer.bias is not None:
        label_score = k.add(label_score, k.reshape(picked(k, layer.bias, labels), column))
    log_sum = k.out(column, x.dtype, "loss.log_sum")
    k.write("Add", [maximum, k.unary("Log", exp_sum)], [log_sum])
    row_share = _row_share(k, weight, count, x.dtype)
    loss = k.out((), x.dtype, "loss", Role.LOSS)
    k.write("ReduceSum", [k.mul(k.sub(log_sum, label_score), row_share), k.graph.ints([0, 1])], [loss], keepdims=0)
    gradient = k.out(x.shape, x.dtype, "loss.grad_input")
    k.write("Mul", [k.sub(k.div(product, exp_sum), label_rows), row_share], [gradient])
    return (loss, gradient, log_sum) if layer.trained else (loss, gradient)


def _row_share(k: OperatorBuilder, weight: Tensor | None, rows: int, dtype: str) -> Tensor:
    """Return the share of each row in the mean: a number, or [rows, 1]."""
    if weight is None:
        return k.graph.scalar(1.0 / rows, dtype)
    return k.div(k.reshape(weight, (rows, 1)), k.reduce_sum(weight, [0], keepdims=False))


def layer_gradient(
    k: OperatorBuilder, operands: Sequence[Tensor], bias: Tensor | None, weight: Tensor | None, dy: Tensor, *,
    of_bias: bool,
) -> Tensor:  # fmt: skip
    """Write the gradient by W, or by b.

    Parameters
    ----------
    operands
        x, W, labels, and l of each row from `write_loss`.
    weight
        As in `write_loss`.
    """
    x, w, labels, log_sum = operands
    (rows, features), classes = x.shape, w.shape[0]
    row_share = _row_share(k, weight, rows, x.dtype)
    # the fused kernel expects the node of this product, even of constants
    row_share = row_share if k.graph.is_constant(dy, 1.0) else k.binary("Mul", row_share, dy)
    label_numbers, class_numbers = k.cast(labels, "int32"), k.graph.constant(np.arange(classes, dtype=np.int32))
    parts = max(1, min(-(-rows * classes // (CLASSES * (rows + features))), rows // 2))
    gradient: Tensor | None = None
    for begin, end in pairwise(rows * part // parts for part in range(parts + 1)):
        rows_of = partial(k.slice, starts=[begin], ends=[end], axes=[0])
        chunk_x, column = rows_of(x), (end - begin, 1)
        powers = k.unary("Exp", k.sub(k.gemm(chunk_x, w, bias, trans_b=True), rows_of(log_sum)))
        is_label = k.cast(k.compare("Equal", k.reshape(rows_of(label_numbers), column), class_numbers), x.dtype)
        row_gradients = k.mul(k.sub(powers, is_label), rows_of(row_share) if row_share.shape else row_share)
        if of_bias:
            total = k.reduce_sum(row_gradients, [0], keepdims=False)
            gradient = total if gradient is None else k.add(gradient, total)
        else:
            gradient = k.gemm(row_gradients, chunk_x, gradient, trans_a=True)
    assert gradient is not None
    return gradient


def set_aside(layer: Head, x: Tensor, forward: Sequence[Operator], builder: GraphBuilder) -> list[Operator]:
    """Return the operators that only predictions need: the layer, as a Gemm of `x`, and its followers in `forward`.

    Parameters
    ----------
    x
        Input of the layer, [rows, features].
    """
    layer_operator = next(operator for operator in forward if layer.scores in operator.outputs)
    operators: list[Operator] = []

    def begin(name: str, kind: str, *, view: bool = False) -> OperatorBuilder:
        draft = builder.operator(name, kind, view=view, backward=False, role=Role.ACTIVATION)
        builder.drafts.remove(draft)
        return draft

    weight = layer.weight
    if layer.scales:
        draft = begin(f"{layer_operator.name}.weight", "DequantizeLinear" + ".packed" * layer.packed)
        operators.append(finish(draft, [(weight := layer.dequantized_part(draft, lambda one: one)).name], {}))
    draft = begin(f"{layer_operator.name}.scores", "Gemm")
    bias = layer.bias if len(layer_operator.nodes[0].inputs) > 2 else None  # otherwise a later Add adds the bias
    scores, old_scores = draft.gemm(x, weight, bias, trans_b=True), builder.tensors[layer.scores]
    operators.append(finish(draft, [scores.name], {}))
    draft = begin(layer_operator.name, "Reshape", view=True)
    draft.write("Reshape", [scores, builder.ints(old_scores.shape)], [old_scores])
    operators.append(finish(draft, [old_scores.name], {}))
    recomputed = {old_scores.name}
    for operator in forward:
        if recomputed.intersection(operator.inputs):
            recomputed.update(operator.outputs)
            operators.append(operator)
    return operators


def apart(
    forward: Sequence[Operator], loss: Sequence[Operator], aside: Sequence[Operator]
) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Return the operators of `forward` that a step runs, and those that only predictions need.

    Parameters
    ----------
    loss
        The operators of the loss.
    aside
        Operators that only predictions need; those that compute their inputs alone are moved to them.
    """
    if not aside:
        return tuple(forward), ()
    set_aside_outputs = {name for operator in aside for name in operator.outputs}
    read_in_forward = {name for operator in forward for name in operator.inputs}
    read = {name for operator in loss for name in operator.inputs}
    needed = {name for operator in aside for name in operator.inputs}
    kept: list[Operator] = []
    moved: list[Operator] = []
    for operator in reversed(forward):
        written = {*operator.outputs}
        if written & set_aside_outputs:
            continue
        if written & read_in_forward and not written & read:  # all its readers are set aside
            if written & needed:
                moved.append(operator)
                needed.update(operator.inputs)
            continue
        kept.append(operator)
        read.update(operator.inputs)
    return tuple(reversed(kept)), (*reversed(moved), *aside)
