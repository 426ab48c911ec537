"""Losses, as nodes of the model or as attached by `poetopt.autodiff.losses`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.losses import SMOOTHED, along_classes, kept_labels, label_weights
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, single
from poetopt.graph import Tensor
from poetopt.util.errors import ModelError

ATTACHED = frozenset({"MeanSquaredError", "BinaryCrossEntropy", SMOOTHED})
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
    likelihood = _Likelihood.of(op)
    labels = likelihood.labels
    k = op.emit("grad_input")
    has_log = len(op.outputs) > 1 and op.outputs[1] is not None
    softmax = k.unary("Exp", op.output(1)) if has_log else k.unary("Softmax", scores, axis=1)
    rows = (labels.shape[0], 1, *labels.shape[1:])
    safe, factor = likelihood.factor(k, dy)
    if factor.shape == labels.shape and labels.shape:
        factor = k.reshape(factor, rows)
    minus = k.expand(k.graph.constant(np.full([1] * len(rows), -1.0, scores.dtype)), rows)
    dx = k.mul(k.scatter_add(softmax, k.reshape(safe, rows), minus, 1), factor)
    if has_log and safe is labels and factor.size == 1:
        scaled = any(factor.name in node.inputs for node in k.nodes)
        k.amounts_to("SoftmaxCrossEntropyLoss.grad_input", [op.output(1), labels, factor if scaled else None], [dx])
    return dx, None, None


@register_vjp(SMOOTHED, since=1)
def smoothed_cross_entropy(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = m ((1 - e) w(label) (softmax(X) - onehot(label)) + e / C (softmax(X) sum(w) - w)) dY / sum(m w(label)).

    With m = 0 for labels that are left out and 1 for others, e the smoothing, and w the weights of the C classes.
    """
    dy, likelihood = op.only(cotangents[:1]), _Likelihood.of(op)
    labels, weights = likelihood.labels, likelihood.weights
    k, smoothing = op.emit("grad_input"), op.builder.label_rule.smoothing
    rows = (labels.shape[0], 1, *labels.shape[1:])
    softmax = k.unary("Exp", op.output(1))
    safe, factor = likelihood.factor(k, dy)
    factor = k.reshape(factor, rows if factor.size == labels.size else [1] * len(rows))
    share = smoothing / softmax.shape[1]
    at_label = k.expand(k.mul(factor, smoothing - 1.0), rows)
    if weights is None:
        dx = k.sub(k.mul(softmax, factor), k.mul(factor, share))
        return k.scatter_add(dx, k.reshape(safe, rows), at_label, 1), None, None
    _, each = likelihood.factor(k, dy, by_class=False)
    each = k.mul(k.reshape(each, rows if each.size == labels.size else [1] * len(rows)), share)
    total = float(np.sum(np.asarray(op.builder.values[weights.name], np.float64)))
    dx = k.mul(softmax, k.add(k.mul(factor, 1.0 - smoothing), k.mul(each, total)))
    dx = k.sub(dx, k.mul(each, k.reshape(weights, along_classes(weights, labels))))
    return k.scatter_add(dx, k.reshape(safe, rows), at_label, 1), None, None


@single("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """dX = -w(label) dY at the label, 0 elsewhere; divided by the sum of w where the loss is a mean."""
    scores, likelihood = op.x, _Likelihood.of(op)
    labels = likelihood.labels
    rows = (labels.shape[0], 1, *labels.shape[1:])
    safe, factor = likelihood.factor(k, dy)
    spread = k.expand(k.reshape(k.neg(factor), rows if factor.size == labels.size else [1] * len(rows)), rows)
    return k.scatter_add(k.zeros(scores.shape, scores.dtype), k.reshape(safe, rows), spread, 1)


@dataclass(frozen=True)
class _Likelihood:
    """What a loss compares scores with."""

    labels: Tensor
    weights: Tensor | None
    ignored: int | None
    mean: bool
    dtype: str

    @classmethod
    def of(cls, op: Primal) -> _Likelihood:
        """That of a node; the loss that `--loss` attaches has it behind a LogSoftmax, in one operator."""
        node = next((n for n in op.operator.nodes if n.op_type == "NegativeLogLikelihoodLoss"), op.node)
        labels, weights = (op.builder.tensors[name] if name else None for name in (*node.inputs[1:], "")[:2])
        if labels is None:
            raise ModelError(f"{op.where}: input 1 is missing")
        ignored, reduction = node.attributes.get("ignore_index"), node.attributes.get("reduction", "mean")
        return cls(
            labels, weights, ignored if isinstance(ignored, int) else None, reduction in ("mean", b"mean"), op.x.dtype
        )

    def factor(self, k: OperatorBuilder, dy: Tensor, *, by_class: bool = True) -> tuple[Tensor, Tensor]:
        """Labels to index with, and what each label's gradient is multiplied by: a scalar, or of the labels' shape.

        by_class
            Whether a label's weight is in that factor, beside the mean's.
        """
        kept = kept_labels(k, self.labels, self.ignored)
        safe, weight = label_weights(k, self.labels, kept, self.weights, self.dtype)
        if weight is None:
            return safe, k.mul(dy, 1.0 / self.labels.size if self.mean else 1.0)
        total = k.reduce_sum(weight, range(len(self.labels.shape)), keepdims=False)
        if not by_class:
            return safe, k.div(dy if kept is None else k.mul(k.cast(kept, self.dtype), dy), total)
        return safe, k.mul(k.div(weight, total) if self.mean else weight, dy)
