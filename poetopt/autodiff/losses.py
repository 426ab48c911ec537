"""The scalar loss that `--loss` puts on a model's output.

| loss | on an output of shape | adds the input | value |
|---|---|---|---|
| cross-entropy | [..., classes], or [N, classes, d1, d2, ...] from rank four | `labels`, int64, the shape without classes | mean of -log softmax at the label |
| mse | any | `target`, the output's type and shape | mean of (output - target)^2 |
| none | one element | | the output itself |

`auto` takes `none` for an output of one element, `cross-entropy` for one of rank two or more with at
least two classes, else `mse`. Where the output is a Softmax or LogSoftmax over the classes, cross-entropy
reads what goes into it: the same value as the negative log-likelihood of its probabilities, without
the rounding of log(softmax).
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
    kind = _kind(y) if loss == "auto" else loss
    how = "chosen by the output's shape" if loss == "auto" else "as asked"
    shape = "x".join(map(str, y.shape)) or "scalar"
    if kind == "none":
        return _none(y, builder, f"loss: none, the output {y.name!r} ({shape}) is the loss; {how}")
    if kind == "mse":
        return _mse(y, builder, f"loss: mse on output {y.name!r} ({shape}) against the new input; {how}")
    return _cross_entropy(y, forward, builder, f"loss: cross-entropy on output {y.name!r} ({shape}); {how}")


def class_axis(shape: tuple[int, ...]) -> int:
    """The axis of the classes: the last, or axis 1 from rank four."""
    return 1 if len(shape) >= 4 else len(shape) - 1


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


def _kind(y: Tensor) -> str:
    if y.size == 1:
        return "none"
    return "cross-entropy" if len(y.shape) >= 2 and y.shape[class_axis(y.shape)] >= 2 else "mse"


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


def _logits(y: Tensor, axis: int, forward: tuple[Operator, ...], builder: GraphBuilder) -> tuple[Tensor, str]:
    """What cross-entropy reads, and what to say about it."""
    writer = next((operator for operator in forward if y.name in operator.outputs), None)
    if writer is None or len(writer.nodes) != 1 or writer.nodes[0].op_type not in {"Softmax", "LogSoftmax"}:
        return y, ""
    node = writer.nodes[0]
    at = node.attributes.get("axis", -1)
    if not isinstance(at, int) or at % len(y.shape) != axis:
        return y, ""
    logits = builder.tensors[node.inputs[0]]
    return logits, f"; it reads {logits.name!r}, the input of the final {node.op_type}"


def _cross_entropy(y: Tensor, forward: tuple[Operator, ...], builder: GraphBuilder, note: str) -> Attached:
    if not y.shape or y.shape[class_axis(y.shape)] < 2:
        raise ModelError(
            f"cross-entropy needs at least two classes along axis {class_axis(y.shape) if y.shape else 0} of output "
            f"{y.name!r}, which has shape {list(y.shape)}; choose --loss mse"
        )
    axis = class_axis(y.shape)
    shape = tuple(d for k, d in enumerate(y.shape) if k != axis)
    labels = builder.tensor(builder.unique("labels"), shape, "int64", Role.INPUT)
    logits, remark = _logits(y, axis, forward, builder)
    operators: list[Operator] = []
    if logits.dtype in HALF:
        draft = _start(builder, "loss.single", "Cast")
        operators.append(_done(draft, logits := draft.cast(logits, "float32")))
    scores, classes = logits, labels
    if axis != 1:
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
