"""A linear layer under cross-entropy as one operator, which never has all scores at once.

The scores of a language model take more than all else of its step: a row of classes for each token, several times.
Loss and gradient are computed in one pass over chunks of classes instead. Of each chunk there are the scores
z = x W_k' + b_k, their maximum m, sum s of exp(z - m) and product u = exp(z - m) W_k; what is there already is
multiplied by exp(m_before - m_after). Behind the last chunk

    loss = mean(m + log s - z_label),    dx = (u / s - W_label) / rows

The layer is multiplied as often as in two passes, read once, and chunk by chunk where it is on storage. Elements of
four bits, of which no kernel takes rows, are bytes of two.

Where the layer is trained, each row's l = m + log s is kept, and one more operator makes the scores again, by chunks of
rows, or by classes where it streams W, dW or W's update:

    p = (exp(z - l) - [class = label]) / rows,    dW = p' x

and so does another that makes db, the sum of p.

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
"""Classes of a chunk."""


@dataclass(frozen=True)
class Head:
    """A linear layer z = x W' + b under cross-entropy.

    x
        What it reads, under any shape whose last axis is W's.
    weight
        W, [classes, features], or the integers that stand for it.
    scores
        What its product writes.
    bias
        A number for each class, or None.
    trained
        Whether W or b is.
    scales
        Scales and zero points that dequantize it.
    sharing
        Which of its elements have those in common.
    packed
        Whether its elements are the halves of bytes, low bits first.
    gone
        Constants that `weight` and `scales` stand for.
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

    def floats(self, k: OperatorBuilder, of: Callable[[Tensor], Tensor]) -> Tensor:
        """The part of W that `of` takes of each of its operands."""
        weight, (axis, block) = of(self.weight), self.sharing
        if not self.scales:
            return weight
        if self.packed:
            sixteen = k.graph.constant(np.array(16, np.uint8))
            halves = [k.binary(op, weight, sixteen) for op in ("Mod", "Div")]
            halves = [k.reshape(half, (*half.shape, 1)) for half in halves]
            weight = k.reshape(k.concat(halves, 2), (weight.shape[0], 2 * weight.shape[1]))
        scales = [of(one) if axis == 0 or block else one for one in self.scales]
        along = {} if axis is None else {"axis": axis} | ({"block_size": block} if block else {})
        return k.node("DequantizeLinear", [weight, *scales], weight.shape, scales[0].dtype, **along)


def picked(k: OperatorBuilder, table: Tensor, labels: Tensor) -> Tensor:
    """The rows of a table that labels name."""
    return k.node("Gather", [table, labels], (*labels.shape, *table.shape[1:]), table.dtype, axis=0)


def head_of(scores: Tensor, axis: int, builder: GraphBuilder, behind: Behind) -> Head | None:
    """The layer that `scores` are of, where they take more than a chunk of them and of its weight.

    Where it is trained they must take more than the weight, which has a gradient of its size: making them again is a
    product more. Such a weight stays as it lies, so that its rows must be classes.
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
    given, turned = node.attributes, not node.attributes.get("transB", 0)
    if given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0 or given.get("transA", 0):
        return None
    bias = bias or "".join(node.inputs[2:])
    x, vector = builder.tensors[node.inputs[0]], builder.tensors[bias] if bias else None
    if vector is not None and (bias not in behind.values or vector.shape != scores.shape[-1:]):
        return None
    rows, classes, features = scores.size // scores.shape[-1], scores.shape[-1], x.shape[-1]
    if rows * classes <= CLASSES * (rows + features):
        return None
    layer = _weight(x, node.inputs[1], turned, builder, behind)
    if layer is None or layer.weight.shape[0] != classes:
        return None
    trained = layer.trained or (vector is not None and vector.role is Role.PARAMETER)
    if trained and rows <= features:
        return None
    return replace(layer, scores=node.outputs[0], bias=vector, trained=trained)


def _weight(x: Tensor, name: str, turned: bool, builder: GraphBuilder, behind: Behind) -> Head | None:
    """The layer without its bias; None where it is trained and turned, or where rows of W have scales in common."""
    transpose = behind.node(name, "Transpose")
    if transpose is not None and len(builder.tensors[name].shape) == 2:
        name, turned = transpose.inputs[0], not turned
    node, operands = behind.node(name, "DequantizeLinear"), [name]
    if node is not None:
        operands = [name for name in node.inputs if name]
    weight, *scales = tensors = [builder.tensors[name] for name in operands]
    if len(weight.shape) != 2 or any(name not in behind.values for name in operands):
        return None
    if any(behind.constant(name) is None for name in operands):
        return None if scales or turned else Head(x, weight, trained=True)
    axis, block = (None, 0) if node is None else sharing(weight.shape, scales[0].shape, *settings(node))
    axis = axis if axis is None or not turned else 1 - axis
    packed = weight.dtype in PACKED
    if (axis == 0 and block) or (packed and weight.shape[0 if turned else 1] % 2):
        return None
    values = [_elements(one, builder) for one in tensors]
    if packed and weight.dtype == "int4" and len(values) == 2:
        values.append(np.full(values[1].shape, 8, np.uint8))
    values = [value.T if turned and value.ndim == 2 else value for value in values]
    if packed:
        values[0] = values[0][:, ::2] | values[0][:, 1::2] << 4
    found = [_held(builder, value, f"{name}.rows") for value, name in zip(values, (*operands, name), strict=False)]
    gone = tuple({*operands} - {one.name for one in found})
    return Head(x, found[0], scales=tuple(found[1:]), sharing=Sharing(axis, block), gone=gone, packed=packed)


def _elements(tensor: Tensor, builder: GraphBuilder) -> Any:
    """The value of a constant; of four bits from 0 to 15, one to a byte."""
    value: Any = builder.values[tensor.name]
    if tensor.dtype not in PACKED:
        return value
    found = halves(value)[: tensor.size].reshape(tensor.shape)
    return (found + 8) % 16 if tensor.dtype == "int4" else found


def _held(builder: GraphBuilder, value: Array, name: str) -> Tensor:
    """The constant of this value: one that is there already, as of a tied layer, or a new one."""
    for other, known in builder.values.items():
        tensor = builder.tensors[other]
        like = tensor.shape == value.shape and known.dtype == value.dtype and tensor.role is Role.CONSTANT
        if like and np.array_equal(known, value):
            return tensor
    return builder.valued(builder.unique(name), np.ascontiguousarray(value), Role.CONSTANT)


def write_loss(k: OperatorBuilder, layer: Head, x: Tensor, labels: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
    """The loss, its gradient by `x`, [rows, features], and each row's l, [rows, 1], where the layer is trained.

    labels
        That are safe to index with, [rows].
    weight
        Of each row in the mean; None where all are one.
    """
    classes, count, column = layer.weight.shape[0], x.shape[0], (x.shape[0], 1)
    sums: tuple[Tensor, Tensor, Tensor] | None = None
    for begin in range(0, classes, CLASSES):
        some = partial(k.slice, starts=[begin], ends=[min(begin + CLASSES, classes)], axes=[0])
        part = layer.floats(k, some)
        bias = None if layer.bias is None else some(layer.bias)
        scores = k.gemm(x, part, bias, trans_b=True)
        axes, said = ([], {"axes": [1]}) if k.graph.opset < 18 else ([k.graph.ints([1])], {})
        greatest = k.node("ReduceMax", [scores, *axes], column, scores.dtype, keepdims=1, **said)
        if sums is None:
            powers = k.unary("Exp", k.sub(scores, greatest))
            sums = greatest, k.reduce_sum(powers, [1]), k.matmul(powers, part)
            continue
        most, total, product = sums
        greatest = k.binary("Max", most, greatest)
        powers, shrunk = k.unary("Exp", k.sub(scores, greatest)), k.unary("Exp", k.sub(most, greatest))
        total = k.add(k.mul(total, shrunk), k.reduce_sum(powers, [1]))
        sums = greatest, total, k.gemm(powers, part, k.mul(product, shrunk))
    assert sums is not None
    most, total, product = sums
    own = layer.floats(k, lambda one: picked(k, one, labels))
    score = k.reduce_sum(k.mul(x, own), [1])
    if layer.bias is not None:
        score = k.add(score, k.reshape(picked(k, layer.bias, labels), column))
    whole = k.out(column, x.dtype, "loss.log_sum")
    k.write("Add", [most, k.unary("Log", total)], [whole])
    share = _share(k, weight, count, x.dtype)
    loss = k.out((), x.dtype, "loss", Role.LOSS)
    k.write("ReduceSum", [k.mul(k.sub(whole, score), share), k.graph.ints([0, 1])], [loss], keepdims=0)
    gradient = k.out(x.shape, x.dtype, "loss.grad_input")
    k.write("Mul", [k.sub(k.div(product, total), own), share], [gradient])
    return (loss, gradient, whole) if layer.trained else (loss, gradient)


def _share(k: OperatorBuilder, weight: Tensor | None, rows: int, dtype: str) -> Tensor:
    """The share that each row has in the mean: a number, or [rows, 1]."""
    if weight is None:
        return k.graph.scalar(1.0 / rows, dtype)
    return k.div(k.reshape(weight, (rows, 1)), k.reduce_sum(weight, [0], keepdims=False))


def layer_gradient(
    k: OperatorBuilder, operands: Sequence[Tensor], bias: Tensor | None, weight: Tensor | None, dy: Tensor, *,
    of_bias: bool,
) -> Tensor:  # fmt: skip
    """The gradient by W, or by b.

    operands
        x, W, labels, and l of each row, as `write_loss` has it.
    weight
        See `write_loss`.
    """
    x, w, labels, whole = operands
    (rows, features), classes = x.shape, w.shape[0]
    share = _share(k, weight, rows, x.dtype)
    share = share if k.graph.is_constant(dy, 1.0) else k.binary("Mul", share, dy)  # as it is told to a kernel
    own, numbers = k.cast(labels, "int32"), k.graph.constant(np.arange(classes, dtype=np.int32))
    parts = max(1, min(-(-rows * classes // (CLASSES * (rows + features))), rows // 2))
    gradient: Tensor | None = None
    for begin, end in pairwise(rows * part // parts for part in range(parts + 1)):
        some = partial(k.slice, starts=[begin], ends=[end], axes=[0])
        given, column = some(x), (end - begin, 1)
        powers = k.unary("Exp", k.sub(k.gemm(given, w, bias, trans_b=True), some(whole)))
        hits = k.cast(k.compare("Equal", k.reshape(some(own), column), numbers), x.dtype)
        each = k.mul(k.sub(powers, hits), some(share) if share.shape else share)
        if of_bias:
            total = k.reduce_sum(each, [0], keepdims=False)
            gradient = total if gradient is None else k.add(gradient, total)
        else:
            gradient = k.gemm(each, given, gradient, trans_a=True)
    assert gradient is not None
    return gradient


def set_aside(layer: Head, x: Tensor, forward: Sequence[Operator], builder: GraphBuilder) -> list[Operator]:
    """The operators that predictions alone need: the layer, as a Gemm of `x`, and those of `forward` behind it.

    x
        What the layer reads, [rows, features].
    """
    own = next(operator for operator in forward if layer.scores in operator.outputs)
    made: list[Operator] = []

    def begin(name: str, kind: str, *, view: bool = False) -> OperatorBuilder:
        draft = builder.operator(name, kind, view=view, backward=False, role=Role.ACTIVATION)
        builder.drafts.remove(draft)
        return draft

    weight = layer.weight
    if layer.scales:
        draft = begin(f"{own.name}.weight", "DequantizeLinear" + ".packed" * layer.packed)
        made.append(finish(draft, [(weight := layer.floats(draft, lambda one: one)).name], {}))
    draft = begin(f"{own.name}.scores", "Gemm")
    bias = layer.bias if len(own.nodes[0].inputs) > 2 else None  # else an Add behind it has it
    scores, wrote = draft.gemm(x, weight, bias, trans_b=True), builder.tensors[layer.scores]
    made.append(finish(draft, [scores.name], {}))
    draft = begin(own.name, "Reshape", view=True)
    draft.write("Reshape", [scores, builder.ints(wrote.shape)], [wrote])
    made.append(finish(draft, [wrote.name], {}))
    late = {wrote.name}
    for operator in forward:
        if late.intersection(operator.inputs):
            late.update(operator.outputs)
            made.append(operator)
    return made


def apart(
    forward: Sequence[Operator], loss: Sequence[Operator], aside: Sequence[Operator]
) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """The operators of `forward` that a step runs, and those that predictions alone need: `aside`, and what they read.

    loss
        The operators of the loss, which read what the step has.
    """
    if not aside:
        return tuple(forward), ()
    late = {name for operator in aside for name in operator.outputs}
    left = {name for operator in forward for name in operator.inputs}
    read = {name for operator in loss for name in operator.inputs}
    needed = {name for operator in aside for name in operator.inputs}
    run: list[Operator] = []
    moved: list[Operator] = []
    for operator in reversed(forward):
        written = {*operator.outputs}
        if written & late:
            continue
        if written & left and not written & read:  # what others read, which are all set aside
            if written & needed:
                moved.append(operator)
                needed.update(operator.inputs)
            continue
        run.append(operator)
        read.update(operator.inputs)
    return tuple(reversed(run)), (*reversed(moved), *aside)
