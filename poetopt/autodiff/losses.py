"""The scalar loss that `--loss` puts on a model's output.

| loss | on an output of shape | adds the input | value |
|---|---|---|---|
| cross-entropy | [..., classes], or [N, classes, d1, ...] behind a convolution and from rank four | `labels`, int64, the shape without classes | mean of -log softmax at the label |
| bce | any | `target`, the output's type and shape, 0 to 1 | mean of -t log p - (1 - t) log(1 - p), p = sigmoid |
| mse | any | `target`, the output's type and shape | mean of (output - target)^2 |
| none | one element | | the output itself |

What `auto` takes is in `poetopt.autodiff.choice`. Where the output comes from a Softmax or a Sigmoid
(`poetopt.autodiff.choice`), cross-entropy and bce read what goes into that: the same value as of its probabilities,
without the rounding of log(softmax). On probabilities whose logits can't be read neither is put.

A cross-entropy may leave out labels, weigh classes by w and smooth labels by e, over C classes: with m = 0 at what is
left out and 1 elsewhere, and p the log-probabilities, it is the sum of -m ((1 - e) w_label p_label + e / C sum_c w_c p_c)
by that of m w_label.
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
"""Cross-entropy and bce of these are computed in float32, as is usual: a sum of exponentials overflows early."""
LOSSES = ("auto", "cross-entropy", "bce", "mse", "none", FORWARD_ONLY)
RULED = "RuledCrossEntropy"
"""The operator of a cross-entropy that doesn't take all labels and classes alike: no ONNX op."""


@dataclass(frozen=True)
class Attached:
    """A loss on a graph: its operators, its scalar, the inputs that it added, a note, and what it compares.

    aside, gone
        Where it reads a layer itself: the operators that predictions alone need, and constants that it stands for.
    label_weight
        See `TrainingGraph`.
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
        """Says what holds where the model has a tensor of a name that the loss should have, else ""."""
        added = {"cross-entropy": ("labels",), "none": ()}.get(self.kind, ("target",))
        own = ("loss", *added)
        found = [(name, new) for name, new in zip(own, (self.loss.name, *self.inputs), strict=True) if name != new]
        if not found:
            return ""
        names = " and ".join(f"{name!r} is called {new!r} here" for name, new in found)
        return f"{names}: the model has a tensor of that name"


def label_rule(
    ignore_index: int | str | None = None,
    class_weights: Sequence[float] | str | None = None,
    label_smoothing: float | str = 0.0,
) -> LabelRule:
    """The rule of labels that these options, or their words, ask for. Raises OptionError."""
    given = class_weights.split(",") if isinstance(class_weights, str) else class_weights
    try:
        ignored = None if ignore_index is None else read_whole(ignore_index)
    except ValueError as error:
        raise OptionError(f"--with ignore-index={ignore_index}: must be a whole number, as in -100") from error
    if ignored is not None and not -(2**31) <= ignored < 2**31:
        raise OptionError(f"--with ignore-index={ignore_index}: must be a label, within 32 bits, as in -100")
    try:
        weights = () if given is None else tuple(map(read_float32, given))
    except (ValueError, TypeError) as error:
        raise OptionError(f"--with class-weights={class_weights}: must be numbers, as in 1,0.5,2") from error
    if weights and not (min(weights) >= 0 and any(weights)):
        raise OptionError(f"--with class-weights={class_weights}: must be 0 or more, and not all 0")
    try:
        smoothing = read_float32(label_smoothing)
    except ValueError:
        smoothing = math.nan
    if not 0 <= smoothing <= 1:
        raise OptionError(f"--with label-smoothing={label_smoothing}: must lie in 0..1, as in 0.1")
    return LabelRule(ignored, weights, smoothing)


def attach(
    graph: Graph,
    forward: tuple[Operator, ...],
    builder: GraphBuilder,
    loss: str = "auto",
    output: str | None = None,
) -> Attached:
    """Put `loss` on an output of `graph`, whose (rewritten) forward operators are `forward`.

    Raises `OptionError` for an unknown loss or output, `ModelError` where the loss does not fit.
    """
    if loss not in LOSSES:
        name = re.sub(r"(with_?logits)?_?loss(\(\))?$", "", str(loss).lower())  # torch's names are longer
        raise OptionError(f"unknown loss {loss!r}{closest(name, LOSSES)}; choose one of {', '.join(LOSSES)}")
    # what is rewritten in several nodes is asked about as the file has it
    behind = Behind((*graph.operators, *forward), builder.tensors, builder.values)
    live = downstream(builder.tensors, forward, graph.trained)
    name, found = output_of(graph, output, loss, live, behind)
    y = builder.tensors[name]
    _check(y, graph, forward)
    choice = choose(y, graph, behind) if loss == "auto" else asked(loss, y, behind)
    if not choice.kind:
        raise ModelError(f"output {y.name!r} ({shape_text(y)}): {choice.why}; {ASK}")
    on, how = f"output {y.name!r} ({shape_text(y)}", choice.why + found
    rule = builder.label_rule
    if rule != LabelRule() and choice.kind != "cross-entropy":
        raise OptionError(
            "--with ignore-index, class-weights and label-smoothing are of the loss cross-entropy, and this is "
            f"{choice.kind}; leave them out, or say --loss cross-entropy"
        )
    if choice.kind == "none":
        return _none(y, builder, f"loss: none, the {on}) is the loss; {how}")
    if choice.kind == "mse":
        return _mse(y, builder, f"loss: mse on {on}) against the new input; {how}")
    if choice.kind == "bce":
        return _binary(y, choice.tail or Tail("", y, -1, own_axes(y.shape)), builder, f"loss: bce on {on}); {how}")
    axis = class_axis(y, behind) if choice.tail is None else choice.tail.classes or 0
    along = f", classes along axis {axis}" if len(y.shape) > 2 or axis != len(y.shape) - 1 else ""
    tail = choice.tail or Tail("", y, axis, own_axes(y.shape))
    plainly = not (rule.class_weights or rule.smoothing or (graph.parts > 1 and not rule.plain))
    layer = head_of(tail.logits, tail.axis, builder, behind) if plainly else None
    note = f"loss: cross-entropy on {on}{along}); {how}"
    return _cross_entropy(y, tail, builder, note, layer, forward, graph.parts)


def _check(y: Tensor, graph: Graph, forward: tuple[Operator, ...]) -> None:
    """Raise ModelError where no loss at all can be on `y`."""
    if not is_float(y):
        raise ModelError(f"output {y.name!r} has type {y.dtype}, on which no loss can be; name another with --output")
    if not y.size:
        writer = next((operator for operator in forward if y.name in operator.outputs), None)
        at = f"node {writer.name!r} ({writer.kind}, opset {graph.opset})" if writer else graph.name
        raise ModelError(
            f"{graph.source or graph.name}: {at}: its output {y.name!r} of shape {list(y.shape)} has no elements, so "
            "no loss can be on it; a size in the model is wrong, export it again, or name another with --output"
        )


def _read(tail: Tail) -> str:
    """Gives the notes on the logits."""
    if not tail.kind:
        return ""
    steps = f", through {', '.join(dict.fromkeys(tail.steps))}" if tail.steps else ""
    return f"; it reads {tail.logits.name!r}, the input of the final {tail.kind}{steps}"


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
        return Attached((), y, "none", (), Note(note, About.LOSS))
    draft = _start(builder, "loss.name", "Identity", view=True)
    loss = draft.out(y.shape, y.dtype, "loss", Role.LOSS)
    draft.write("Identity", [y], [loss])
    return Attached((_done(draft, loss),), loss, "none", (), Note(note, About.LOSS))


def _mse(y: Tensor, builder: GraphBuilder, note: str) -> Attached:
    target = builder.tensor(builder.unique("target"), y.shape, y.dtype, Role.INPUT)
    draft = _start(builder, "loss.mse", "MeanSquaredError")
    difference = draft.sub(y, target)
    squares = draft.mul(difference, difference)
    total = draft.reduce_sum(squares, range(len(y.shape)), keepdims=False) if y.shape else squares
    loss = draft.out((), y.dtype, "loss", Role.LOSS)
    draft.write("Mul", [total, builder.scalar(1.0 / y.size, y.dtype)], [loss])
    return Attached((_done(draft, loss),), loss, "mse", (target.name,), Note(note, About.LOSS), (y.name, target.name))


def _binary(y: Tensor, tail: Tail, builder: GraphBuilder, note: str) -> Attached:
    """mean(log(1 + exp(z)) - z t): no exponential that overflows, no difference from one."""
    target = builder.tensor(builder.unique("target"), y.shape, y.dtype, Role.INPUT)
    operators: list[Operator] = []
    logits = _logits(tail, builder, operators)
    wanted = _as_behind(target, [p for axis in tail.axes for p in axis], logits.shape, "target", builder, operators)
    if wanted.dtype != logits.dtype:
        draft = _start(builder, "loss.target", "Cast")
        operators.append(_done(draft, wanted := draft.cast(wanted, logits.dtype)))
    draft = _start(builder, "loss.bce", "BinaryCrossEntropy")
    product = draft.node("Mul", [logits, wanted], logits.shape, logits.dtype)
    each = draft.sub(draft.unary("Softplus", logits), product)
    total = draft.reduce_sum(each, range(len(each.shape)), keepdims=False) if each.shape else each
    loss = draft.out((), logits.dtype, "loss", Role.LOSS)
    draft.write("Mul", [total, builder.scalar(1.0 / logits.size, logits.dtype)], [loss])
    operators.append(_done(draft, loss))
    note, compared = note + _read(tail), (logits.name, wanted.name)
    return Attached(tuple(operators), loss, "bce", (target.name,), Note(note, About.LOSS), compared)


def _cross_entropy(
    y: Tensor,
    tail: Tail,
    builder: GraphBuilder,
    note: str,
    layer: Head | None,
    forward: Sequence[Operator],
    parts: int,
) -> Attached:
    """Of scores [rows, classes] or [N, classes, ...], as the logits lie; labels are brought into their order.

    A part of a batch divides by an input: a part's share of what all labels of the batch weigh.
    """
    if not y.shape or tail.logits.shape[tail.axis] < 2:
        raise ModelError(
            f"cross-entropy needs at least two classes along axis {tail.axis if y.shape else 0} of output "
            f"{y.name!r}, which has shape {list(y.shape)}; choose --loss bce or --loss mse"
        )
    place = tail.classes
    labels = builder.tensor(
        builder.unique("labels"), tuple(d for k, d in enumerate(y.shape) if k != place), "int64", Role.INPUT
    )
    operators: list[Operator] = []
    aside: list[Operator] = []
    if layer is not None:
        x = layer.x
        if len(x.shape) != 2:
            draft = _start(builder, "loss.rows", "Reshape", view=True)
            operators.append(_done(draft, x := draft.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))))
        aside = set_aside(layer, x, forward, builder)
    made = operators if layer is None else aside
    scores = _logits(tail, builder, made)
    shape, axis = tail.logits.shape, tail.axis
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    rows: tuple[int, ...] = (outer,) if inner == 1 else (shape[0], *shape[2:]) if axis == 1 else (outer, inner)
    if scores.shape != (flat := (rows[0], shape[axis], *rows[1:])):
        draft = _start(builder, "loss.rows", "Reshape", view=True)
        made.append(_done(draft, scores := draft.reshape(scores, flat)))
    pieces = [piece for k, each in enumerate(tail.axes) if k != place for piece in each]
    classes = _as_behind(labels, pieces, rows, "labels", builder, operators)
    rule, count = builder.label_rule, scores.shape[1]
    if len(rule.class_weights) not in (0, count):
        raise OptionError(
            f"--with class-weights: {len(rule.class_weights)} weights for the {count} classes of output {y.name!r}; "
            "give one for each"
        )
    compared = (scores.name, classes.name)
    note += "".join(_rule_words(rule)) + _read(tail)
    if layer is not None:
        draft = _start(builder, "loss.cross_entropy", LINEAR)
        kept = kept_labels(draft, classes, rule.ignore_index)
        safe, weight = label_weights(draft, classes, kept, None, scores.dtype)
        loss, *others = write_loss(draft, layer, x, safe, weight)
        read = [x, layer.weight, classes, *filter(None, [layer.bias])]
        if not layer.scales:
            draft.amounts_to(LINEAR, read, [loss, *others], **ignoring(rule))
        meaning = Node(LINEAR, tuple(one.name for one in read), (loss.name, *(one.name for one in others)))
        operators.append(replace(_done(draft, loss, *others), meaning=meaning))
        note += f"; the scores of its {count:,} classes are never there at once"
        added, known = (labels.name,), Note(note, About.LOSS)
        return Attached(tuple(operators), loss, "cross-entropy", added, known, compared, tuple(aside), layer.gone)
    weights = builder.constant(np.array(rule.class_weights, scores.dtype)) if rule.class_weights else None
    draft = _start(builder, "loss.cross_entropy", "SoftmaxCrossEntropyLoss" if rule == LabelRule() else RULED)
    loss = draft.out((), scores.dtype, "loss", Role.LOSS)
    log_prob = draft.out(scores.shape, scores.dtype, "loss.log_prob")
    total = None
    if parts > 1 and not rule.plain:
        total = builder.tensor(builder.unique("labels.weight"), (), scores.dtype, Role.INPUT)
    if len(scores.shape) == 2 or rule != LabelRule():
        # the op of that name in two parts, because its kernel takes twice the scores for itself
        draft.write("LogSoftmax", [scores], [log_prob], axis=1)
    if rule != LabelRule():
        draft.write("Neg", [_by_rule(draft, log_prob, classes, weights, total)], [loss])
    elif len(scores.shape) == 2:
        draft.write("NegativeLogLikelihoodLoss", [log_prob, classes], [loss], reduction="mean")
    else:
        draft.write("SoftmaxCrossEntropyLoss", [scores, classes], [loss, log_prob], reduction="mean")
    operators.append(_done(draft, loss, log_prob))
    added, known = (labels.name,), Note(note, About.LOSS)
    weighed = "" if total is None else total.name
    return Attached(tuple(operators), loss, "cross-entropy", added, known, compared, label_weight=weighed)


def _rule_words(rule: LabelRule) -> Iterator[str]:
    if rule.ignore_index is not None:
        yield f"; labels of {rule.ignore_index} are left out"
    if rule.class_weights:
        yield "; classes are weighted"
    if rule.smoothing:
        yield f"; labels are smoothed by {rule.smoothing:g}"


def _by_rule(
    draft: OperatorBuilder, log_prob: Tensor, labels: Tensor, weights: Tensor | None, total: Tensor | None
) -> Tensor:
    """The mean log-probability: NegativeLogLikelihoodLoss would take many times the labels for itself."""
    rule, rows = draft.graph.label_rule, range(len(labels.shape))
    kept = kept_labels(draft, labels, rule.ignore_index)
    safe, weight = label_weights(draft, labels, kept, weights, log_prob.dtype)
    one = (labels.shape[0], 1, *labels.shape[1:])
    each = draft.node("GatherElements", [log_prob, draft.reshape(safe, one)], one, log_prob.dtype, axis=1)
    each = draft.reshape(each, labels.shape)
    each = each if weight is None else draft.mul(each, weight)
    if rule.smoothing:
        every = (
            log_prob if weights is None else draft.mul(log_prob, draft.reshape(weights, along_classes(weights, labels)))
        )
        every = draft.reduce_sum(every, [1], keepdims=False)
        every = every if kept is None else draft.mul(every, draft.cast(kept, every.dtype))
        each = draft.add(draft.mul(each, 1.0 - rule.smoothing), draft.mul(every, rule.smoothing / log_prob.shape[1]))
    summed = draft.reduce_sum(each, rows, keepdims=False)
    if weight is None:
        return draft.mul(summed, 1.0 / labels.size)
    return draft.div(summed, draft.reduce_sum(weight, rows, keepdims=False) if total is None else total)


def along_classes(weights: Tensor, labels: Tensor) -> tuple[int, ...]:
    """The shape under which a weight for each class broadcasts to scores."""
    return (1, weights.size, *[1] * (len(labels.shape) - 1))


def kept_labels(draft: OperatorBuilder, labels: Tensor, ignored: int | None) -> Tensor | None:
    """A bool tensor of the labels that aren't left out, in their shape; None where all count."""
    if ignored is None:
        return None
    equal = draft.compare("Equal", labels, draft.graph.constant(np.array(ignored, labels.dtype)))
    return draft.node("Not", [equal], labels.shape, "bool")


def ignoring(rule: LabelRule) -> dict[str, int]:
    """The attribute of a loss that leaves out labels."""
    return {} if rule.ignore_index is None else {"ignore_index": rule.ignore_index}


def label_weights(
    draft: OperatorBuilder, labels: Tensor, kept: Tensor | None, weights: Tensor | None, dtype: str
) -> tuple[Tensor, Tensor | None]:
    """Labels that are safe to index with, and each label's weight (None where all are one).

    kept
        Of `kept_labels`.
    weights
        A weight for each class.
    """
    if kept is None:
        return labels, None if weights is None else draft.node("Gather", [weights, labels], labels.shape, dtype)
    safe, weight = draft.mul(labels, draft.cast(kept, labels.dtype)), draft.cast(kept, dtype)
    if weights is not None:
        weight = draft.mul(weight, draft.node("Gather", [weights, safe], labels.shape, dtype))
    return safe, weight


def _logits(tail: Tail, builder: GraphBuilder, operators: list[Operator]) -> Tensor:
    """The logits of `tail`, in float32 where they are of half precision."""
    logits = tail.logits
    if logits.dtype in HALF:
        draft = _start(builder, "loss.single", "Cast")
        operators.append(_done(draft, logits := draft.cast(logits, "float32")))
    return logits


def _as_behind(
    given: Tensor, pieces: Sequence[Piece], shape: Sequence[int], what: str, builder: GraphBuilder,
    operators: list[Operator],
) -> Tensor:  # fmt: skip
    """`given`, whose elements lie as `pieces` say, in the order in which the logits lie, under `shape`."""
    order = order_behind(pieces)
    steps: list[tuple[str, Sequence[int]]] = [("Reshape", tuple(shape))]
    if order != tuple(range(len(order))):
        steps = [("Reshape", [size for _, _, size in pieces]), ("Transpose", order), *steps]
    for kind, wanted in steps:
        if kind == "Reshape" and given.shape == tuple(wanted):
            continue
        draft = _start(builder, f"loss.{what}", kind, view=kind == "Reshape")
        given = draft.reshape(given, wanted) if kind == "Reshape" else draft.transpose(given, wanted)
        operators.append(_done(draft, given))
    return given
