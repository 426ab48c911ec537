"""Gradients of losses: nodes of the model, and losses that `poetopt.autodiff.losses` attaches."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.linear_loss import layer_gradient
from poetopt.autodiff.losses import RULED, along_classes, ignoring, kept_labels, label_weights
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, single
from poetopt.frontends import checks
from poetopt.graph import Role, Tensor
from poetopt.ops.losses import LINEAR
from poetopt.ops.op import EXP, Choice, Op, declare
from poetopt.ops.runtimes.onnxruntime import kernels

loss = partial(
    Op, blocked=(1, 2), missing=(2,), settings=(2,), chooses=Choice.LABELS, is_mean=True, operands_check=checks.loss,
    attributes={"reduction": ("mean", "sum", "none")},
)  # fmt: skip

declare("NegativeLogLikelihoodLoss", op=loss(
    flops=lambda c: 2 * math.prod(c.inputs[1]), workspace=kernels.log_likelihood,
))  # fmt: skip
declare("SoftmaxCrossEntropyLoss", op=loss(
    flops=lambda c: c.x * (4 + EXP) + (EXP + 2) * math.prod(c.inputs[1]), workspace=kernels.cross_entropy,
))  # fmt: skip


ATTACHED = frozenset({"MeanSquaredError", "BinaryCrossEntropy", LINEAR, RULED})
"""Kinds of attached losses that have rules, and are no ONNX ops."""


@register_vjp("MeanSquaredError", since=1)
def mean_squared_error(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dY = 2 (Y - target) / size times the loss's gradient."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    difference = k.sub(op.input(0), op.input(1))
    gradient = k.mul(difference, k.mul(dy, 2.0 / op.input(0).size))
    return gradient, (op.emit("grad_input").neg(gradient) if op.need(1) else None)


@register_vjp("BinaryCrossEntropy", since=1)
def binary_cross_entropy(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dZ = (sigmoid(Z) - target) / size times the loss's gradient, for logits Z."""
    k = op.emit("grad_input")
    scale = k.mul(op.only(cotangents), 1.0 / op.input(0).size)
    gradient = k.mul(k.sub(k.unary("Sigmoid", op.input(0)), op.input(1)), scale)
    return gradient, (k.mul(k.neg(op.input(0)), scale) if op.need(1) else None)


@register_vjp("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = (softmax(X) - onehot(label)) w(label) dY, divided by the sum of w if the loss is a mean.

    It reads the log-probabilities if the forward node writes them, else the scores.
    """
    if len(cotangents) > 1 and cotangents[1] is not None:
        op.only(cotangents)
    dy, scores = op.only(cotangents[:1]), op.x
    # an attached loss is LogSoftmax and NegativeLogLikelihoodLoss in one operator
    labels = op.input(1) if op.has(1) else op.builder.tensors[op.operator.nodes[-1].inputs[1]]
    k = op.emit("grad_input")
    has_log = len(op.outputs) > 1 and op.outputs[1] is not None
    softmax = k.unary("Exp", op.output(1)) if has_log else k.unary("Softmax", scores, axis=1)
    rows = (labels.shape[0], 1, *labels.shape[1:])
    safe, factor = _factor(k, op, dy, labels)
    if factor.shape == labels.shape and labels.shape:
        factor = k.reshape(factor, rows)
    minus = k.expand(k.graph.constant(np.full([1] * len(rows), -1.0, scores.dtype)), rows)
    dx = k.mul(k.scatter_add(softmax, k.reshape(safe, rows), minus, 1), factor)
    if has_log and safe is labels and factor.size == 1:
        scaled = any(factor.name in node.inputs for node in k.nodes)
        k.amounts_to("SoftmaxCrossEntropyLoss.grad_input", [op.output(1), labels, factor if scaled else None], [dx])
    return dx, None, None


@register_vjp(RULED, since=1)
def ruled_cross_entropy(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return the gradient of a cross-entropy with label rules.

    dX = m ((1 - e) w(label) (softmax(X) - onehot(label)) + e / C (softmax(X) sum(w) - w)) dY / sum(m w(label)), with
    m = 0 for ignored labels and 1 for others, the smoothing e, and the weights w of the C classes. In a part of a batch
    the divisor is an input.
    """
    dy, rule, dtype = op.only(cotangents[:1]), op.builder.label_rule, op.x.dtype
    whole = {name: op.builder.tensors[name] for name in op.operator.inputs if name not in op.builder.values}
    labels = next(tensor for tensor in whole.values() if tensor.dtype == "int64")
    weights = op.builder.constant(np.array(rule.class_weights, dtype)) if rule.class_weights else None
    k = op.emit("grad_input")
    rows = (labels.shape[0], 1, *labels.shape[1:])
    kept = kept_labels(k, labels, rule.ignore_index)
    safe, weight = label_weights(k, labels, kept, weights, dtype)
    divisor = next((tensor for tensor in whole.values() if tensor.role is Role.INPUT and not tensor.shape), None)
    mean = k.mul(dy, 1.0 / labels.size) if weight is None else k.div(dy, divisor or _total(k, weight))
    factor = mean if weight is None else k.reshape(k.mul(weight, mean), rows)
    at_label = k.expand(k.mul(factor, rule.smoothing - 1.0), rows)
    softmax = k.unary("Exp", op.output(1))
    if weights is None or not rule.smoothing:
        dx = k.mul(softmax, factor)
        dx = k.sub(dx, k.mul(factor, rule.smoothing / softmax.shape[1])) if rule.smoothing else dx
    else:
        each = mean if kept is None else k.reshape(k.mul(k.cast(kept, dtype), mean), rows)
        each = k.mul(each, rule.smoothing / weights.size)
        dx = k.mul(softmax, k.add(k.mul(factor, 1.0 - rule.smoothing), k.mul(each, math.fsum(rule.class_weights))))
        dx = k.sub(dx, k.mul(each, k.reshape(weights, along_classes(weights, labels))))
    return k.scatter_add(dx, k.reshape(safe, rows), at_label, 1), None, None


@register_vjp(LINEAR, since=1)
def linear_cross_entropy(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = G dY, where the forward operator has written G; `poetopt.autodiff.linear_loss` has dW and db."""
    dy, rule = op.only(cotangents[:1]), op.builder.label_rule
    dx = op.emit("grad_input").mul(op.output(1), dy) if op.need(0) else None
    bias = op.input(3) if op.has(3) else None

    def parameter_gradient(kind: str, index: int) -> Tensor | None:
        if not op.need(index):
            return None
        k, read = op.emit(kind), [op.x, op.input(1), op.input(2), op.output(2)]
        _, weight = label_weights(k, read[2], kept_labels(k, read[2], rule.ignore_index), None, op.x.dtype)
        gradient = layer_gradient(k, read, bias, weight, dy, of_bias=index == 3)
        scaled = any(dy.name in node.inputs for node in k.nodes)
        k.amounts_to(f"{LINEAR}.{kind}", [*read, bias, dy if scaled else None], [gradient], **ignoring(rule))
        return gradient

    return dx, parameter_gradient("grad_weight", 1), None, parameter_gradient("grad_bias", 3)


@single("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = -w(label) dY at the label, 0 elsewhere; divided by the sum of w if the loss is a mean."""
    scores, labels = op.x, op.input(1)
    rows = (labels.shape[0], 1, *labels.shape[1:])
    safe, factor = _factor(k, op, dy, labels)
    spread = k.expand(k.reshape(k.neg(factor), rows if factor.size == labels.size else [1] * len(rows)), rows)
    return k.scatter_add(k.zeros(scores.shape, scores.dtype), k.reshape(safe, rows), spread, 1)


def _factor(k: OperatorBuilder, op: Primal, dy: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels to index with, and the factor of each label's gradient: a scalar, or of the labels' shape."""
    safe, weight = _label_weights(k, op, labels)
    mean = op.attr_text("reduction", "mean") == "mean"
    if weight is None:
        return safe, k.mul(dy, 1.0 / labels.size if mean else 1.0)
    return safe, k.mul(k.div(weight, _total(k, weight)) if mean else weight, dy)


def _label_weights(k: OperatorBuilder, op: Primal, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return labels that are safe to index with, and each label's weight (None if all are one)."""
    ignored = op.attr_int("ignore_index", 0) if "ignore_index" in op.node.attributes else None
    return label_weights(k, labels, kept_labels(k, labels, ignored), op.input(2) if op.has(2) else None, op.x.dtype)


def _total(k: OperatorBuilder, weight: Tensor) -> Tensor:
    return k.reduce_sum(weight, range(len(weight.shape)), keepdims=False)
