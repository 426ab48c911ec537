"""The scalar loss that `--loss` puts on a model's output.

| loss | on an output of shape | adds the input | value |
|---|---|---|---|
| cross-entropy | [..., classes], or [N, classes, d1, d2, ...] from rank four, unless the model says otherwise | `labels`, int64, the shape without classes | mean of -log softmax at the label |
| mse | any | `target`, the output's type and shape | mean of (output - target)^2 |
| none | one element | | the output itself |

`auto` takes `none` for an output of one element, `cross-entropy` for one of rank two or more with at
least two classes, else `mse`. A model says where its classes are by a final Softmax, or from rank four by a final dense
layer (they are last) or a final Transpose that puts channels last (exporters of TensorFlow write it). Where the output is a Softmax or LogSoftmax over the classes, cross-entropy
reads what goes into it: the same value as the negative log-likelihood of its probabilities, without
the rounding of log(softmax).
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from poetopt.autodiff.classes import Final, class_axis, final_op
from poetopt.autodiff.emit import GraphBuilder, OperatorBuilder, finish
from poetopt.autodiff.registry import is_float
from poetopt.errors import ModelError, OptionError
from poetopt.graph import Graph, Operator, Role, Tensor

HALF = frozenset({"float16", "bfloat16"})
"""Cross-entropy of these is computed in float32, as is usual: a sum of exponentials overflows early."""
LOSSES = ("auto", "cross-entropy", "mse", "none")


@dataclass(frozen=True)
class Attached:
    """A loss on a graph: its operators, its scalar, the inputs that it added, and a note for people."""

    operators: tuple[Operator, ...]
    loss: Tensor
    kind: str
    inputs: tuple[str, ...]
    note: str

    @property
    def renamed(self) -> str:
        """What to say where the model has a tensor of a name that the loss should have, else ""."""
        own = {"cross-entropy": ("loss", "labels"), "mse": ("loss", "target"), "none": ("loss",)}[self.kind]
        found = [(name, new) for name, new in zip(own, (self.loss.name, *self.inputs), strict=True) if name != new]
        if not found:
            return ""
        names = " and ".join(f"{name!r} is called {new!r} here" for name, new in found)
        return f"{names}: the model has a tensor of that name"


def attach(
    graph: Graph, forward: tuple[Operator, ...], builder: GraphBuilder, loss: str = "auto", output: str | None = None
) -> Attached:
    """Put `loss` on an output of `graph`, whose (rewritten) forward operators are `forward`.

    Raises `OptionError` for an unknown loss or output, `ModelError` where the loss does not fit.
    """
    if loss not in LOSSES:
        raise OptionError(f"unknown loss {loss!r}; choose one of {', '.join(LOSSES)}")
    y = builder.tensors[_chosen(graph, output)]
    if not is_float(y):
        raise ModelError(f"output {y.name!r} has type {y.dtype}, on which no loss can be; name another with --output")
    if not y.size:
        writer = next((operator for operator in forward if y.name in operator.outputs), None)
        at = f"node {writer.name!r} ({writer.kind}, opset {graph.opset})" if writer else graph.name
        raise ModelError(
            f"{graph.source or graph.name}: {at}: its output {y.name!r} of shape {list(y.shape)} has no elements, so "
            "no loss can be on it; a size in the model is wrong, export it again, or name another with --output"
        )
    final = final_op(y, forward, builder.tensors)
    axis = final.axis if final is not None else class_axis(y.shape)
    kind = _kind(y, axis) if loss == "auto" else loss
    how = "chosen by the output's shape" if loss == "auto" else "as asked"
    shape = "x".join(map(str, y.shape)) or "scalar"
    if kind == "none":
        return _none(y, builder, f"loss: none, the output {y.name!r} ({shape}) is the loss; {how}")
    if kind == "mse":
        return _mse(y, builder, f"loss: mse on output {y.name!r} ({shape}) against the new input; {how}")
    along = f", classes along axis {axis}" if len(y.shape) > 3 else ""
    return _cross_entropy(y, axis, final, builder, f"loss: cross-entropy on output {y.name!r} ({shape}{along}); {how}")


def _chosen(graph: Graph, output: str | None) -> str:
    if output is None:
        if len(graph.outputs) + len(graph.unread) != 1:
            unread = [f"{name}, which can't be imported" for name in graph.unread]
            raise ModelError(
                f"{graph.name}: several outputs ({', '.join([*graph.outputs, *unread])}); "
                "say which one the loss is on with --output"
            )
        return graph.outputs[0]
    if output in graph.unread:
        raise ModelError(graph.unread[output])
    if output not in graph.outputs:
        raise OptionError(f"{graph.name}: no output {output!r}; there are {', '.join(graph.outputs)}")
    return output


def _kind(y: Tensor, axis: int) -> str:
    if y.size == 1:
        return "none"
    return "cross-entropy" if len(y.shape) >= 2 and y.shape[axis] >= 2 else "mse"


def _start(builder: GraphBuilder, name: str, kind: str, *, view: bool = False) -> OperatorBuilder:
    draft = builder.operator(name, kind, view=view, backward=False, role=Role.ACTIVATION)
    builder.drafts.remove(draft)
    return draft


def _done(draft: OperatorBuilder, *outputs: Tensor) -> Operator:
    return finish(draft, [tensor.name for tensor in outputs], {})


def _none(y: Tensor, builder: GraphBuilder, note: str) -> Attached:
    if y.size != 1:
        raise ModelError(f"loss none needs an output of one element, but {y.name!r} has shape {list(y.shape)}")
    builder.tensors[y.name] = y = replace(y, role=Role.LOSS)
    if y.name == "loss":
        return Attached((), y, "none", (), note)
    draft = _start(builder, "loss.name", "Identity", view=True)
    loss = draft.out(y.shape, y.dtype, "loss", Role.LOSS)
    draft.write("Identity", [y], [loss])
    return Attached((_done(draft, loss),), loss, "none", (), note)


def _mse(y: Tensor, builder: GraphBuilder, note: str) -> Attached:
    target = builder.tensor(builder.unique("target"), y.shape, y.dtype, Role.INPUT)
    draft = _start(builder, "loss.mse", "MeanSquaredError")
    difference = draft.sub(y, target)
    squares = draft.mul(difference, difference)
    total = draft.reduce_sum(squares, range(len(y.shape)), keepdims=False) if y.shape else squares
    loss = draft.out((), y.dtype, "loss", Role.LOSS)
    draft.write("Mul", [total, builder.scalar(1.0 / y.size, y.dtype)], [loss])
    return Attached((_done(draft, loss),), loss, "mse", (target.name,), note)


def _cross_entropy(y: Tensor, axis: int, final: Final | None, builder: GraphBuilder, note: str) -> Attached:
    if not y.shape or y.shape[axis] < 2:
        raise ModelError(
            f"cross-entropy needs at least two classes along axis {axis if y.shape else 0} of output "
            f"{y.name!r}, which has shape {list(y.shape)}; choose --loss mse"
        )
    shape = tuple(d for k, d in enumerate(y.shape) if k != axis)
    labels = builder.tensor(builder.unique("labels"), shape, "int64", Role.INPUT)
    logits, remark = y, ""
    if final is not None and final.logits is not None:
        logits, remark = final.logits, f"; it reads {final.logits.name!r}, the input of the final {final.kind}"
    operators: list[Operator] = []
    if logits.dtype in HALF:
        draft = _start(builder, "loss.single", "Cast")
        operators.append(_done(draft, logits := draft.cast(logits, "float32")))
    scores, classes = logits, labels
    if not (final is not None and final.transposed) and (axis != 1 or logits.shape != y.shape):
        rows = math.prod(shape)
        for tensor, flat in ((logits, (rows, y.shape[axis])), (labels, (rows,))):
            if tensor.shape != flat:
                draft = _start(builder, f"loss.{'rows' if tensor is logits else 'labels'}", "Reshape", view=True)
                operators.append(_done(draft, view := draft.reshape(tensor, flat)))
                scores, classes = (view, classes) if tensor is logits else (scores, view)
    draft = _start(builder, "loss.cross_entropy", "SoftmaxCrossEntropyLoss")
    loss = draft.out((), scores.dtype, "loss", Role.LOSS)
    log_prob = draft.out(scores.shape, scores.dtype, "loss.log_prob")
    if len(scores.shape) == 2:
        # the op of that name in two parts, because its kernel takes twice the scores for itself
        draft.write("LogSoftmax", [scores], [log_prob], axis=1)
        draft.write("NegativeLogLikelihoodLoss", [log_prob, classes], [loss], reduction="mean")
    else:
        draft.write("SoftmaxCrossEntropyLoss", [scores, classes], [loss, log_prob], reduction="mean")
    operators.append(_done(draft, loss, log_prob))
    return Attached(tuple(operators), loss, "cross-entropy", (labels.name,), note + remark)
