"""Losses, as nodes of the model or as attached by `poetopt.autodiff.losses`."""

from __future__ import annotations

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, single
from poetopt.graph import Tensor

ATTACHED = frozenset({"MeanSquaredError", "BinaryCrossEntropy"})
"""Rules of operators that `--loss` makes, and of no ONNX op."""


@register_vjp("MeanSquaredError", since=1)
def mean_squared_error(op: Primal, cotangents: Cotangents) -> Gradients:
    """dY = 2 (Y - target) / size times the loss's gradient."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    difference = k.sub(op.input(0), op.input(1))
    gradient = k.mul(difference, k.mul(dy, 2.0 / op.input(0).size))
    return gradient, (op.emit("grad_input").neg(gradient) if op.need(1) else None)


@register_vjp("BinaryCrossEntropy", since=1)
def binary_cross_entropy(op: Primal, cotangents: Cotangents) -> Gradients:
    """dZ = (sigmoid(Z) - target) / size times the loss's gradient, for logits Z."""
    k = op.emit("grad_input")
    scale = k.mul(op.only(cotangents), 1.0 / op.input(0).size)
    gradient = k.mul(k.sub(k.unary("Sigmoid", op.input(0)), op.input(1)), scale)
    return gradient, (k.mul(k.neg(op.input(0)), scale) if op.need(1) else None)


@register_vjp("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = (softmax(X) - onehot(label)) w(label) dY, divided by the sum of w where the loss is a mean.

    It reads the log-probabilities where the forward node writes them, else the scores again.
    """
    if len(cotangents) > 1 and cotangents[1] is not None:
        op.only(cotangents)
    dy, scores = op.only(cotangents[:1]), op.x
    # the loss that `--loss` attaches is LogSoftmax and NegativeLogLikelihoodLoss in one operator
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


@single("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """dX = -w(label) dY at the label, 0 elsewhere; divided by the sum of w where the loss is a mean."""
    scores, labels = op.x, op.input(1)
    rows = (labels.shape[0], 1, *labels.shape[1:])
    safe, factor = _factor(k, op, dy, labels)
    spread = k.expand(k.reshape(k.neg(factor), rows if factor.size == labels.size else [1] * len(rows)), rows)
    return k.scatter_add(k.zeros(scores.shape, scores.dtype), k.reshape(safe, rows), spread, 1)


def _factor(k: OperatorBuilder, op: Primal, dy: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Labels to index with, and what each label's gradient is multiplied by: a scalar, or of the labels' shape."""
    safe, weight = _label_weights(k, op, labels)
    mean = op.attr_text("reduction", "mean") == "mean"
    if weight is None:
        return safe, k.mul(dy, 1.0 / labels.size if mean else 1.0)
    total = k.reduce_sum(weight, range(len(labels.shape)), keepdims=False)
    return safe, k.mul(k.div(weight, total) if mean else weight, dy)


def _label_weights(k: OperatorBuilder, op: Primal, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Labels that are safe to index with, and each label's weight (None where all are one)."""
    ignored = op.node.attributes.get("ignore_index")
    if ignored is None and not op.has(2):
        return labels, None
    dtype = op.x.dtype
    if ignored is None:
        return labels, k.node("Gather", [op.input(2), labels], labels.shape, dtype)
    kept = k.compare("Equal", labels, k.graph.constant(np.array(op.attr_int("ignore_index", 0), labels.dtype)))
    kept = k.node("Not", [kept], labels.shape, "bool")
    safe = k.mul(labels, k.cast(kept, labels.dtype))
    weight = k.cast(kept, dtype)
    if op.has(2):
        weight = k.mul(weight, k.node("Gather", [op.input(2), safe], labels.shape, dtype))
    return safe, weight
