"""The scalar loss that poetopt adds to a model's output.

| loss | on an output of shape | adds the input | value |
|---|---|---|---|
| cross-entropy | [..., classes], or [N, classes, d1, ...] after a convolution and from rank four | `labels`, int64, the shape without classes | mean of -log softmax at the label |
| bce | any | `target`, the output's type and shape, 0 to 1 | mean of -t log p - (1 - t) log(1 - p), p = sigmoid |
| mse | any | `target`, the output's type and shape | mean of (output - target)^2 |
| none | one element | | the output itself |

`poetopt.autodiff.choice` chooses the loss for `auto`. Where the output comes from a Softmax or a Sigmoid, cross-entropy
and bce read its logits: the value is that of its probabilities, without the rounding of log(softmax). Neither can be
on probabilities whose logits aren't found.

A cross-entropy may ignore labels, weigh classes by w and smooth labels by e, over C classes. With m = 0 at ignored labels
and 1 elsewhere, and log-probabilities p, it is the sum of -m ((1 - e) w_label p_label + e / C sum_c w_c p_c) divided by
the sum of m w_label.
"""  # noqa: E501

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from poetopt.autodiff.behind import Behind
from poetopt.autodiff.choice import (
    ASK,
    Piece,
    Tail,
    asked,
    choose,
    class_axis,
    order_behind,
    output_of,
    own_axes,
    shape_text,
)
from poetopt.autodiff.emit import GraphBuilder, OperatorBuilder, finish
from poetopt.autodiff.linear_loss import Head, head_of, set_aside, write_loss
from poetopt.autodiff.registry import downstream, is_float
from poetopt.graph import FORWARD_ONLY, Graph, LabelRule, Node, Operator, Role, Tensor
from poetopt.ops.losses import LINEAR
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.notes import About, Note
from poetopt.util.numbers import read_float32, read_whole
from poetopt.util.text import closest

HALF = frozenset({"float16", "bfloat16"})
"""Types of which cross-entropy and bce are computed in float32, as a sum of exponentials overflows early."""
LOSSES = ("auto", "cross-entropy", "bce", "mse", "none", FORWARD_ONLY)
RULED = "RuledCrossEntropy"
"""Kind of the operator of a cross-entropy with a label rule; it is no ONNX op."""


@dataclass(frozen=True)
class Attached:
    """A loss on a graph.

    Attributes
    ----------
    loss
        The scalar.
    inputs
        Inputs that the loss added.
    compared
        The tensors that it compares.
    aside, gone
        Where the loss operator computes a layer: the operators that only predictions need, and constants that it
        replaces.
    label_weight
        As in `TrainingGraph`.
    """

    operators: tuple[Operator, ...]
    loss: Tensor
    kind: str
    inputs: tuple[str, ...]
    note: Note
    compared: tuple[str, ...] = ()
    aside: tuple[Operator, ...] = ()
    gone: tuple[str, ...] = ()
    label_weight: str = ""

    @property
    def renamed(self) -> str:
        """Note on tensors of the loss that have other names, because the model uses theirs; else ""."""
        added = {"cross-entropy": ("labels",), "none": ()}.get(self.kind, ("target",))
        wanted = ("loss", *added)
        renamed = [(name, new) for name, new in zip(wanted, (self.loss.name, *self.inputs), strict=True) if name != new]
        if not renamed:
            return ""
        names = " and ".join(f"{name!r} is called {new!r} here" for name, new in renamed)
        return f"{names}: the model has a tensor of that name"


def label_rule(
    ignore_index: int | str | None = None,
    class_weights: Sequence[float] | str | None = None,
    label_smoothing: float | str = 0.0,
) -> LabelRule:
    """Return the label rule of these options, which may also be texts; raise OptionError for a wrong one."""
    weights_given = class_weights.split(",") if isinstance(class_weights, str) else class_weights
    try:
        ignored = None if ignore_index is None else read_whole(ignore_index)
    except ValueError as error:
        raise OptionError(f"--ignore-index {ignore_index}: must be a whole number, as in -100") from error
    if ignored is not None and not -(2**31) <= ignored < 2**31:
        raise OptionError(f"--ignore-index {ignore_index}: must be a label, within 32 bits, as in -100")
    try:
        weights = () if weights_given is None else tuple(map(read_float32, weights_given))
    except (ValueError, TypeError) as error:
        raise OptionError(f"--class-weights {class_weights}: must be numbers, as in 1,0.5,2") from error
    if weights and not (min(weights) >= 0 and any(weights)):
        raise OptionError(f"--class-weights {class_weights}: must be 0 or more, and not all 0")
    try:
        smoothing = read_float32(label_smoothing)
    except ValueError:
        smoothing = math.nan
    if not 0 <= smoothing <= 1:
        raise OptionError(f"--label-smoothing {label_smoothing}: must lie in 0..1, as in 0.1")
    return LabelRule(ignored, weights, smoothing)


def attach(
    graph: Graph,
    forward: tuple[Operator, ...],
    builder: GraphBuilder,
    loss: str = "auto",
    output: str | None = None,
) -> Attached:
    """Add `loss` to an output of `graph`, whose (rewritten) forward operators are `forward`.

    Raises
    ------
    OptionError
        The loss or the output is unknown, or a label rule isn't for this loss.
    ModelError
        The loss doesn't fit the output.
    """
    if loss not in LOSSES:
        name = re.sub(r"(with_?logits)?_?loss(\(\))?$", "", str(loss).lower())  # torch's names are longer
        raise OptionError(f"unknown loss {loss!r}{closest(name, LOSSES)}; choose one of {', '.join(LOSSES)}")
    # the file's nodes come first, so that queries also work for operators that were rewritten into several nodes
    behind = Behind((*graph.operators, *forward), builder.tensors, builder.values)
    live = downstream(builder.tensors, forward, graph.trained)
    name, reason_for_output = output_of(graph, output, loss, live, behind)
    y = builder.tensors[name]
    _check_output(y, graph, forward)
    choice = choose(y, graph, behind) if loss == "auto" else asked(loss, y, behind)
    if not choice.kind:
        raise ModelError(f"output {y.name!r} ({shape_text(y)}): {choice.why}; {ASK}")
    where, how = f"output {y.name!r} ({shape_text(y)}", choice.why + reason_for_output
    rule = builder.label_rule
    if rule != LabelRule() and choice.kind != "cross-entropy":
        raise OptionError(
            "--ignore-index, --class-weights and --label-smoothing are for the loss cross-entropy, and this is "
            f"{choice.kind}; leave them out, or choose --loss cross-entropy"
        )
    if choice.kind == "none":
        return _add_none(y, builder, f"loss: none, the {where}) is the loss; {how}")
    if choice.kind == "mse":
        return _add_mse(y, builder, f"loss: mse on {where}) against the new input; {how}")
    if choice.kind == "bce":
        return _add_bce(y, choice.tail or Tail("", y, -1, own_axes(y.shape)), builder, f"loss: bce on {where}); {how}")
    axis = class_axis(y, behind) if choice.tail is None else choice.tail.classes or 0
    class_note = f", classes along axis {axis}" if len(y.shape) > 2 or axis != len(y.shape) - 1 else ""
    final_op = choice.tail or Tail("", y, axis, own_axes(y.shape))
    is_fusable = not (rule.class_weights or rule.smoothing or (graph.parts > 1 and not rule.plain))
    layer = head_of(final_op.logits, final_op.axis, builder, behind) if is_fusable else None
    note = f"loss: cross-entropy on {where}{class_note}); {how}"
    return _add_cross_entropy(y, final_op, builder, note, layer, forward, graph.parts)


def _check_output(y: Tensor, graph: Graph, forward: tuple[Operator, ...]) -> None:
    """Raise ModelError where `y` can have no loss."""
    if not is_float(y):
        raise ModelError(f"output {y.name!r} has type {y.dtype}, and a loss needs floats; choose another with --output")
    if not y.size:
        writer = next((operator for operator in forward if y.name in operator.outputs), None)
        location = f"node {writer.name!r} ({writer.kind}, opset {graph.opset})" if writer else graph.name
        raise ModelError(
            f"{graph.source or graph.name}: {location}: its output {y.name!r} of shape {list(y.shape)} has no "
            "elements, so it can have no loss; correct the sizes and export the model again, or choose another output "
            "with --output"
        )


def _logits_note(tail: Tail) -> str:
    """Return the part of the note that names the logits."""
    if not tail.kind:
        return ""
    steps = f", through {', '.join(dict.fromkeys(tail.steps))}" if tail.steps else ""
    return f"; it reads {tail.logits.name!r}, the input of the final {tail.kind}{steps}"


def _start(builder: GraphBuilder, name: str, kind: str, *, view: bool = False) -> OperatorBuilder:
    draft = builder.operator(name, kind, view=view, backward=False, role=Role.ACTIVATION)
    builder.drafts.remove(draft)
    return draft


def _finish(draft: OperatorBuilder, *outputs: Tensor) -> Operator:
    return finish(draft, [tensor.name for tensor in outputs], {})


def _add_none(y: Tensor, builder: GraphBuilder, note: str) -> Attached:
    if y.size != 1:
        raise ModelError(f"loss none needs an output of one element, but {y.name!r} has shape {list(y.shape)}")
    builder.tensors[y.name] = y = replace(y, role=Role.LOSS)
    if y.name == "loss":
        return Attached((), y, "none", (), Note(note, About.LOSS))
    draft = _start(builder, "loss.name", "Identity", view=True)
    loss = draft.out(y.shape, y.dtype, "loss", Role.LOSS)
    draft.write("Identity", [y], [loss])
    return Attached((_finish(draft, loss),), loss, "none", (), Note(note, About.LOSS))


def _add_mse(y: Tensor, builder: GraphBuilder, note: str) -> Attached:
    target = builder.add_tensor(builder.unique("target"), y.shape, y.dtype, Role.INPUT)
    draft = _start(builder, "loss.mse", "MeanSquaredError")
    difference = draft.sub(y, target)
    squares = draft.mul(difference, difference)
    total = draft.reduce_sum(squares, range(len(y.shape)), keepdims=False) if y.shape else squares
    loss = draft.out((), y.dtype, "loss", Role.LOSS)
    draft.write("Mul", [total, builder.scalar(1.0 / y.size, y.dtype)], [loss])
    return Attached((_finish(draft, loss),), loss, "mse", (target.name,), Note(note, About.LOSS), (y.name, target.name))


def _add_bce(y: Tensor, tail: Tail, builder: GraphBuilder, note: str) -> Attached:
    """Add mean(log(1 + exp(z)) - z t), in which no exponential overflows and nothing is subtracted from one."""
    target = builder.add_tensor(builder.unique("target"), y.shape, y.dtype, Role.INPUT)
    operators: list[Operator] = []
    logits = _logits(tail, builder, operators)
    aligned = _align(target, [p for axis in tail.axes for p in axis], logits.shape, "target", builder, operators)
    if aligned.dtype != logits.dtype:
        draft = _start(builder, "loss.target", "Cast")
        operators.append(_finish(draft, aligned := draft.cast(aligned, logits.dtype)))
    draft = _start(builder, "loss.bce", "BinaryCrossEntropy")
    product = draft.node("Mul", [logits, aligned], logits.shape, logits.dtype)
    each = draft.sub(draft.unary("Softplus", logits), product)
    total = draft.reduce_sum(each, range(len(each.shape)), keepdims=False) if each.shape else each
    loss = draft.out((), logits.dtype, "loss", Role.LOSS)
    draft.write("Mul", [total, builder.scalar(1.0 / logits.size, logits.dtype)], [loss])
    operators.append(_finish(draft, loss))
    note, compared = note + _logits_note(tail), (logits.name, aligned.name)
    return Attached(tuple(operators), loss, "bce", (target.name,), Note(note, About.LOSS), compared)


def _add_cross_entropy(
    y: Tensor,
    tail: Tail,
    builder: GraphBuilder,
    note: str,
    layer: Head | None,
    forward: Sequence[Operator],
    parts: int,
) -> Attached:
    """Add the cross-entropy of scores [rows, classes] or [N, classes, ...]; labels are permuted into the scores' order.

    For a micro-batch, an input is the divisor: its share of the weight of all labels of the batch.
    """
    if not y.shape or tail.logits.shape[tail.axis] < 2:
        raise ModelError(
            f"cross-entropy needs at least two classes along axis {tail.axis if y.shape else 0} of output "
            f"{y.name!r}, which has shape {list(y.shape)}; choose --loss bce or --loss mse"
        )
    place = tail.classes
    labels = builder.add_tensor(
        builder.unique("labels"), tuple(d for k, d in enumerate(y.shape) if k != place), "int64", Role.INPUT
    )
    operators: list[Operator] = []
    aside: list[Operator] = []
    if layer is not None:
        x = layer.x
        if len(x.shape) != 2:
            draft = _start(builder, "loss.rows", "Reshape", view=True)
            operators.append(_finish(draft, x := draft.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))))
        aside = set_aside(layer, x, forward, builder)
    score_operators = operators if layer is None else aside
    scores = _logits(tail, builder, score_operators)
    shape, axis = tail.logits.shape, tail.axis
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    rows: tuple[int, ...] = (outer,) if inner == 1 else (shape[0], *shape[2:]) if axis == 1 else (outer, inner)
    if scores.shape != (score_shape := (rows[0], shape[axis], *rows[1:])):
        draft = _start(builder, "loss.rows", "Reshape", view=True)
        score_operators.append(_finish(draft, scores := draft.reshape(scores, score_shape)))
    pieces = [piece for k, each in enumerate(tail.axes) if k != place for piece in each]
    classes = _align(labels, pieces, rows, "labels", builder, operators)
    rule, count = builder.label_rule, scores.shape[1]
    if len(rule.class_weights) not in (0, count):
        raise OptionError(
            f"--class-weights: {len(rule.class_weights)} weights for the {count} classes of output {y.name!r}; "
            "give one for each"
        )
    compared = (scores.name, classes.name)
    note += "".join(_rule_notes(rule)) + _logits_note(tail)
    if layer is not None:
        draft = _start(builder, "loss.cross_entropy", LINEAR)
        kept = kept_labels(draft, classes, rule.ignore_index)
        safe, weight = label_weights(draft, classes, kept, None, scores.dtype)
        loss, *others = write_loss(draft, layer, x, safe, weight)
        read = [x, layer.weight, classes, *filter(None, [layer.bias])]
        if not layer.scales:
            draft.amounts_to(LINEAR, read, [loss, *others], **ignoring(rule))
        meaning = Node(LINEAR, tuple(one.name for one in read), (loss.name, *(one.name for one in others)))
        operators.append(replace(_finish(draft, loss, *others), meaning=meaning))
        note += f"; the scores of its {count:,} classes are computed in chunks"
        added, loss_note = (labels.name,), Note(note, About.LOSS)
        return Attached(tuple(operators), loss, "cross-entropy", added, loss_note, compared, tuple(aside), layer.gone)
    weights = builder.constant(np.array(rule.class_weights, scores.dtype)) if rule.class_weights else None
    draft = _start(builder, "loss.cross_entropy", "SoftmaxCrossEntropyLoss" if rule == LabelRule() else RULED)
    loss = draft.out((), scores.dtype, "loss", Role.LOSS)
    log_prob = draft.out(scores.shape, scores.dtype, "loss.log_prob")
    total = None
    if parts > 1 and not rule.plain:
        total = builder.add_tensor(builder.unique("labels.weight"), (), scores.dtype, Role.INPUT)
    if len(scores.shape) == 2 or rule != LabelRule():
        # SoftmaxCrossEntropyLoss in two nodes, because its kernel allocates twice the scores
        draft.write("LogSoftmax", [scores], [log_prob], axis=1)
    if rule != LabelRule():
        draft.write("Neg", [_mean_log_prob(draft, log_prob, classes, weights, total)], [loss])
    elif len(scores.shape) == 2:
        draft.write("NegativeLogLikelihoodLoss", [log_prob, classes], [loss], reduction="mean")
    else:
        draft.write("SoftmaxCrossEntropyLoss", [scores, classes], [loss, log_prob], reduction="mean")
    operators.append(_finish(draft, loss, log_prob))
    added, loss_note = (labels.name,), Note(note, About.LOSS)
    weight_input = "" if total is None else total.name
    return Attached(tuple(operators), loss, "cross-entropy", added, loss_note, compared, label_weight=weight_input)


def _rule_notes(rule: LabelRule) -> Iterator[str]:
    if rule.ignore_index is not None:
        yield f"; labels of {rule.ignore_index} are ignored"
    if rule.class_weights:
        yield "; classes are weighted"
    if rule.smoothing:
        yield f"; labels are smoothed by {rule.smoothing:g}"


def _mean_log_prob(
    draft: OperatorBuilder, log_prob: Tensor, labels: Tensor, weights: Tensor | None, total: Tensor | None
) -> Tensor:
    """Write the mean log-probability without NegativeLogLikelihoodLoss, which allocates many times the labels."""
    rule, rows = draft.graph.label_rule, range(len(labels.shape))
    kept = kept_labels(draft, labels, rule.ignore_index)
    safe, weight = label_weights(draft, labels, kept, weights, log_prob.dtype)
    column = (labels.shape[0], 1, *labels.shape[1:])
    each = draft.node("GatherElements", [log_prob, draft.reshape(safe, column)], column, log_prob.dtype, axis=1)
    each = draft.reshape(each, labels.shape)
    each = each if weight is None else draft.mul(each, weight)
    if rule.smoothing:
        all_classes = (
            log_prob if weights is None else draft.mul(log_prob, draft.reshape(weights, along_classes(weights, labels)))
        )
        all_classes = draft.reduce_sum(all_classes, [1], keepdims=False)
        all_classes = all_classes if kept is None else draft.mul(all_classes, draft.cast(kept, all_classes.dtype))
        each = draft.add(
            draft.mul(each, 1.0 - rule.smoothing), draft.mul(all_classes, rule.smoothing / log_prob.shape[1])
        )
    summed = draft.reduce_sum(each, rows, keepdims=False)
    if weight is None:
        return draft.mul(summed, 1.0 / labels.size)
    return draft.div(summed, draft.reduce_sum(weight, rows, keepdims=False) if total is None else total)


def along_classes(weights: Tensor, labels: Tensor) -> tuple[int, ...]:
    """Return the shape in which class weights broadcast to scores."""
    return (1, weights.size, *[1] * (len(labels.shape) - 1))


def kept_labels(draft: OperatorBuilder, labels: Tensor, ignored: int | None) -> Tensor | None:
    """Write a bool tensor, in the labels' shape, of the labels that aren't ignored; None where none is ignored."""
    if ignored is None:
        return None
    equal = draft.compare("Equal", labels, draft.graph.constant(np.array(ignored, labels.dtype)))
    return draft.node("Not", [equal], labels.shape, "bool")


def ignoring(rule: LabelRule) -> dict[str, int]:
    """Return the attribute of a loss that ignores labels."""
    return {} if rule.ignore_index is None else {"ignore_index": rule.ignore_index}


def label_weights(
    draft: OperatorBuilder, labels: Tensor, kept: Tensor | None, weights: Tensor | None, dtype: str
) -> tuple[Tensor, Tensor | None]:
    """Return labels that are valid indices, and each label's weight (None where all are one).

    Parameters
    ----------
    kept
        Result of `kept_labels`.
    weights
        A weight for each class.
    """
    if kept is None:
        return labels, None if weights is None else draft.node("Gather", [weights, labels], labels.shape, dtype)
    valid, weight = draft.mul(labels, draft.cast(kept, labels.dtype)), draft.cast(kept, dtype)
    if weights is not None:
        weight = draft.mul(weight, draft.node("Gather", [weights, valid], labels.shape, dtype))
    return valid, weight


def _logits(tail: Tail, builder: GraphBuilder, operators: list[Operator]) -> Tensor:
    """Return the logits of `tail`, cast to float32 where they are of half precision."""
    logits = tail.logits
    if logits.dtype in HALF:
        draft = _start(builder, "loss.single", "Cast")
        operators.append(_finish(draft, logits := draft.cast(logits, "float32")))
    return logits


def _align(
    tensor: Tensor, pieces: Sequence[Piece], shape: Sequence[int], name_part: str, builder: GraphBuilder,
    operators: list[Operator],
) -> Tensor:  # fmt: skip
    """Return `given`, whose axes are `pieces` of the logits' axes, permuted into the logits' order and in `shape`."""
    order = order_behind(pieces)
    steps: list[tuple[str, Sequence[int]]] = [("Reshape", tuple(shape))]
    if order != tuple(range(len(order))):
        steps = [("Reshape", [size for _, _, size in pieces]), ("Transpose", order), *steps]
    for kind, argument in steps:
        if kind == "Reshape" and tensor.shape == tuple(argument):
            continue
        draft = _start(builder, f"loss.{name_part}", kind, view=kind == "Reshape")
        tensor = draft.reshape(tensor, argument) if kind == "Reshape" else draft.transpose(tensor, argument)
        operators.append(_finish(draft, tensor))
    return tensor
