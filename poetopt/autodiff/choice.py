"""The default loss of an output, and the output that the loss is on.

| output | default loss |
|---|---|
| a Softmax or LogSoftmax, possibly before changes of shape, Cast, Clip, Log, Transpose | cross-entropy of its input |
| a Sigmoid, likewise | bce of its input |
| a scalar that no layer wrote, or one element whose name contains "loss" | none: it is the loss |
| a layer's result in the shape of an input | mse |
| a layer's result with two classes or more | cross-entropy |
| any other | none; the user has to choose |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from poetopt.autodiff.behind import Behind, going_back
from poetopt.autodiff.registry import is_float
from poetopt.graph import VIEW_OPS, Graph, Node, Role, Tensor
from poetopt.ops.op import Origin, op_of
from poetopt.util.errors import ModelError, OptionError

Piece = tuple[int, int, int]
Axes = tuple[tuple[Piece, ...], ...]
"""Each axis of a tensor as pieces of the axes of a source tensor, outer pieces first. A piece is (axis of the source,
stride within that axis, length); its length isn't one. A reshape splits and merges pieces, a transpose permutes lists.
"""

SMALL = 1e-4
"""Largest change of a probability by Clip; exporters write bounds of 1e-6 to 1e-12."""


@dataclass(frozen=True)
class Tail:
    """A final Softmax or Sigmoid, whose results are the output's elements.

    Attributes
    ----------
    kind
        `Softmax` or `Sigmoid`, with `Log` in front where the output has logarithms; "" where the output is logits.
    logits
        Its input.
    axis
        Axis of the logits along which the probabilities sum to one; -1 for Sigmoid.
    axes
        The axes of the output as pieces of those of the logits.
    steps
        Later ops that do more than change the shape.
    """

    kind: str
    logits: Tensor
    axis: int
    axes: Axes
    steps: tuple[str, ...] = ()

    @property
    def classes(self) -> int | None:
        """Axis of the output that has the classes and nothing else, or None."""
        return place_of(self.axes, self.axis, self.logits.shape[self.axis]) if self.axis >= 0 else None


def tail_of(name: str, behind: Behind) -> Tail | None:
    """Return the final Softmax or Sigmoid of `name` if each element is one of its results (Clip: to `SMALL`)."""
    after: list[Node] = []
    node = behind.node(name)
    while node is not None and not op_of(node.op_type).loss:
        if not (_is_permutation(node, behind) or node.op_type in ("Clip", "Log")):
            return None
        after.insert(0, node)
        node = behind.node(node.inputs[0])
    if node is None:
        return None
    op = op_of(node.op_type)
    logged = not op.is_probability
    for step in after:
        if step.op_type == "Clip" and not _is_negligible_clip(step, logged, behind):
            return None
        if step.op_type == "Log" and logged:
            return None
        logged = logged or step.op_type == "Log"
    logits, axis = behind.tensors[node.inputs[0]], node.attributes.get("axis", -1)
    axes = through(logits.shape, after, behind)
    if axes is None or not isinstance(axis, int) or not logits.shape:
        return None
    kind = ("Log" if logged else "") + node.op_type.removeprefix("Log")
    steps = tuple(step.op_type for step in after if step.op_type not in VIEW_OPS)
    return Tail(kind, logits, -1 if op.loss == "bce" else axis % len(logits.shape), axes, steps)


def _is_permutation(node: Node, behind: Behind) -> bool:
    """Return whether a node moves each element of its first operand to a distinct position."""
    op = op_of(node.op_type)
    if op.numbers is not Origin.MOVED or op.picks:
        return False
    return behind.tensors[node.inputs[0]].size == behind.tensors[node.outputs[0]].size


def _is_negligible_clip(node: Node, logged: bool, behind: Behind) -> bool:
    """Return whether a Clip changes probabilities, or their logarithms, by at most `SMALL`."""
    low, high = (math.log(SMALL), -SMALL) if logged else (SMALL, 1 - SMALL)
    bounds = []
    for name in (*node.inputs, "", "")[1:3]:
        array = behind.constant(name) if name else None
        bounds.append(None if not name else math.nan if array is None or not array.size else np.float64(array.max()))
    least, most = bounds
    return (least is None or bool(least <= low)) and (most is None or bool(most >= high))


def through(shape: Sequence[int], nodes: Sequence[Node], behind: Behind) -> Axes | None:
    """Return the axes of a tensor of this shape after `nodes`, as pieces of its own; None where pieces mix."""
    axes: Axes | None = own_axes(shape)
    for node in nodes:
        if axes is None:
            return None
        shape_after = behind.tensors[node.outputs[0]].shape
        if node.op_type == "Transpose":
            perm = node.attributes.get("perm")
            order = tuple(map(int, perm)) if isinstance(perm, list | tuple) else tuple(range(len(shape_after)))[::-1]
            axes = tuple(axes[axis] for axis in order)
        else:
            axes = reshaped(axes, shape_after)
    return axes


def own_axes(shape: Sequence[int]) -> Axes:
    """Return the axes of a tensor as pieces of themselves."""
    return tuple(((axis, 1, length),) if length > 1 else () for axis, length in enumerate(shape))


def reshaped(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Return `axes` after a reshape; None where a new axis would get a part that doesn't divide a piece."""
    remaining = [piece for axis in axes for piece in axis][::-1]
    new_axes: list[tuple[Piece, ...]] = []
    for length in shape:
        pieces: list[Piece] = []
        while length > 1:
            if not remaining:
                return None
            axis, stride, size = remaining.pop()
            outer = min(size, length)
            if size % outer or length % outer:
                return None
            if outer < size:
                remaining.append((axis, stride, size // outer))
            pieces.append((axis, stride * (size // outer), outer))
            length //= outer
        new_axes.append(_merge_pieces(pieces))
    return None if remaining else tuple(new_axes)


def _merge_pieces(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return `pieces` with those that are contiguous in the source merged."""
    merged: list[Piece] = []
    for axis, stride, size in pieces:
        if merged and merged[-1][0] == axis and merged[-1][1] == stride * size:
            merged[-1] = (axis, stride, merged[-1][2] * size)
        else:
            merged.append((axis, stride, size))
    return tuple(merged)


def place_of(axes: Axes, axis: int, length: int) -> int | None:
    """Return the axis that is the whole of the source's `axis`, of this length, and nothing else; None if none is."""
    return next((place for place, pieces in enumerate(axes) if pieces == ((axis, 1, length),)), None)


def order_behind(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """Return the permutation that puts pieces into their order in the source."""
    return tuple(sorted(range(len(pieces)), key=lambda k: (pieces[k][0], -pieces[k][1])))


ASK = (
    "choose --loss mse for values, --loss cross-entropy for scores of classes or --loss bce for yes-or-no scores "
    "(--loss none if the output is the model's loss), or choose another output with --output"
)
PROBABLE = "its values come from a Softmax, Sigmoid or Exp, whose logits can't be found in the model"


class ValueSource(StrEnum):
    """Source of an output's values, judged by the ops that compute it."""

    STORED = "parameters and constants alone"
    LAYER = "a layer: any value"
    PROBABLE = "probabilities, before any layer"
    OTHER = "something else"


@dataclass(frozen=True)
class LossChoice:
    """A loss for an output.

    Attributes
    ----------
    kind
        `cross-entropy`, `bce`, `mse`, `none`, or "" where none fits.
    why
        The reason for it, or why none fits.
    tail
        The final Softmax or Sigmoid whose logits the loss reads.
    """

    kind: str
    why: str
    tail: Tail | None = None


def choose(y: Tensor, graph: Graph, behind: Behind) -> LossChoice:
    """Return the loss that `auto` puts on `y`."""
    tail = tail_of(y.name, behind)
    if tail is not None and tail.axis < 0:
        return LossChoice("bce", f"chosen by the final {tail.kind}", tail)
    if tail is not None:
        fault = unfit(tail)
        return LossChoice("", fault) if fault else LossChoice("cross-entropy", f"chosen by the final {tail.kind}", tail)
    if y.size == 1 and ("loss" in y.name.lower() or (not y.shape and not _is_from_layer(y.name, behind))):
        return LossChoice("none", "chosen by the output's shape")
    source = source_of(y.name, behind)
    if source is ValueSource.PROBABLE:
        return LossChoice("", PROBABLE)
    if source is ValueSource.OTHER:
        return LossChoice("", "the loss can't be inferred from the model, as no layer computes this output")
    if len(y.shape) < 2 or y.shape[class_axis(y, behind)] < 2:
        return LossChoice("", "the loss can't be inferred from the model, as this output has no two classes")
    like = [name for name in graph.inputs if (t := graph.tensors[name]).shape == y.shape and is_float(t)]
    if like:
        why = f"chosen because the output has the shape of the input {like[0]!r} (--loss cross-entropy for classes)"
        return LossChoice("mse", why)
    return LossChoice("cross-entropy", "chosen by the output's shape")


def asked(loss: str, y: Tensor, behind: Behind) -> LossChoice:
    """Return the requested loss, or why it doesn't fit the output."""
    if loss in {"mse", "none"}:
        return LossChoice(loss, "as requested")
    tail = tail_of(y.name, behind)
    if tail is None:
        probable = source_of(y.name, behind) is ValueSource.PROBABLE
        return LossChoice("", PROBABLE) if probable else LossChoice(loss, "as requested")
    fault = unfit(tail) if loss == "cross-entropy" and tail.axis >= 0 else ""
    if loss == "bce" and tail.axis >= 0:
        fault = f"its final {tail.kind} makes values that sum to 1, which need --loss cross-entropy"
    elif loss == "cross-entropy" and tail.axis < 0:
        fault = "its final Sigmoid makes independent probabilities, which need --loss bce"
    return LossChoice("", fault) if fault else LossChoice(loss, "as requested", tail)


def unfit(tail: Tail) -> str:
    """Return why cross-entropy can't read the logits of a Softmax, or "" where it can."""
    if tail.logits.shape[tail.axis] == 1:
        return f"its final {tail.kind} is over an axis of length 1, so that its value is always 1"
    if tail.classes is None:
        return f"its final {tail.kind} is over axis {tail.axis} of {list(tail.logits.shape)}, which is no output axis"
    return ""


def source_of(name: str, behind: Behind) -> ValueSource:
    """Return the source of the values of `name`."""
    return going_back(name, lambda n, ask: _source(n, behind, ask), ValueSource.OTHER, 60)


def _source(name: str, behind: Behind, ask: Callable[[str], ValueSource]) -> ValueSource:
    node = behind.node(name)
    if node is None:
        stored = behind.tensors[name].role is Role.PARAMETER or name in behind.values
        return ValueSource.STORED if stored else ValueSource.OTHER
    op = op_of(node.op_type)
    conditional = op.blocked == (0,)
    read = [name for name in node.inputs[conditional:] if name]
    sources = [ask(name) for name in read]
    computed = [source for source in sources if source is not ValueSource.STORED]
    if not computed:
        return ValueSource.STORED
    weights = [name for name, source in zip(read, sources, strict=True) if source is ValueSource.STORED]
    if op.is_product and any(_is_layer_weight(name, behind) for name in weights):
        return ValueSource.LAYER
    if op.is_probability or (set(computed) == {ValueSource.PROBABLE} and node.op_type != "Log"):
        return ValueSource.PROBABLE
    scores = op.keeps_scores and set(computed) == {ValueSource.LAYER}
    alone = len(computed) == 1 or node.op_type not in ("Div", "Mul")
    return ValueSource.LAYER if scores and alone else ValueSource.OTHER


def _is_layer_weight(name: str, behind: Behind) -> bool:
    """Return whether a stored tensor is a layer's weight: trained, computed, or with a negative element.

    The weights of an average have one sign.
    """
    array = behind.constant(name)
    return array is None or not array.size or array.dtype.kind != "f" or float(np.min(array)) < 0


def _is_from_layer(name: str, behind: Behind) -> bool:
    """Return whether a layer wrote a scalar, which is then a prediction for a batch of one."""
    node = behind.node(name)
    while node is not None and (op := op_of(node.op_type)).keeps_scores and op.is_linear:
        node = next((n for operand in behind.operands(node) if (n := behind.node(operand)) is not None), None)
    return node is not None and op_of(node.op_type).is_product


def class_axis(y: Tensor, behind: Behind) -> int:
    """Return the axis of the classes: that of the last layer's channels or features, else the last or axis 1.

    A convolution has its channels along axis 1, a product its features along the last axis. Where the last layer
    isn't found, the axis is the last one up to rank three, and axis 1 from rank four.
    """
    rank = len(y.shape)
    after: list[Node] = []
    node = behind.node(y.name) if rank > 2 else None
    while node is not None and not (op := op_of(node.op_type)).is_product:
        free = [n for n in behind.operands(node) if n not in behind.values] if op.keeps_scores else []
        after.insert(0, node)
        node = behind.node(free[0]) if free else None
    if node is not None:
        shape = behind.tensors[node.outputs[0]].shape
        axis: int | None = len(shape) - 1 if op_of(node.op_type).filter_axis is None else 1
        for step in after:
            before = behind.tensors[step.inputs[0]].shape
            if axis is not None and _is_permutation(step, behind):
                axes = through(before, [step], behind)
                axis = None if axes is None else place_of(axes, axis, before[axis])
        if axis is not None:
            return axis
    return rank - 1 if rank <= 3 else 1


def output_of(graph: Graph, output: str | None, loss: str, live: set[str], behind: Behind) -> tuple[str, str]:
    """Return the output that the loss is on, and the end of a note that says why.

    Parameters
    ----------
    live
        Tensors that depend on a trained parameter.

    Raises
    ------
    OptionError
        The model has no output of the name.
    ModelError
        Several outputs could have the loss.
    """
    if output is not None:
        if output in graph.unread:
            raise ModelError(graph.unread[output])
        if output not in graph.outputs:
            raise OptionError(f"{graph.name}: no output is called {output!r}; there are {', '.join(graph.outputs)}")
        return output, ""
    if len(graph.outputs) == 1 and not graph.unread:
        return graph.outputs[0], ""
    tensors = [behind.tensors[name] for name in graph.outputs]
    candidates = [t for t in tensors if is_float(t) and t.size and t.name in live]
    losses = _model_losses(candidates, graph, behind)
    if loss in {"auto", "none"} and len(losses) == 1:
        return losses[0].name, "; it is the only output that is a loss"
    others = [t for t in candidates if t not in losses] if losses and loss not in {"auto", "none"} else candidates
    if len(others) == 1:
        return others[0].name, "; no other output can have one: " + ", ".join(
            _excluded_outputs(graph, tensors, others, live)
        )
    if not candidates:
        reason = next((w for w in graph.unread.values() if "zipmap" in w), next(iter(graph.unread.values()), ""))
        if reason:
            raise ModelError(reason)
    listing = "; ".join(
        [*(_output_text(t, graph, behind) for t in candidates), *_excluded_outputs(graph, tensors, candidates, live)]
    )
    raise ModelError(f"{graph.name}: it has several outputs; choose that of the loss with --output NAME: {listing}")


def _model_losses(able: Sequence[Tensor], graph: Graph, behind: Behind) -> list[Tensor]:
    """Return the outputs that are losses: the one whose name says so if there is just one, else all."""
    losses = [t for t in able if t.size == 1 and choose(t, graph, behind).kind == "none"]
    for is_named in (lambda name: name.lower() == "loss", lambda name: "loss" in name.lower()):
        named_losses = [t for t in losses if is_named(t.name)]
        if len(named_losses) == 1:
            return named_losses
    return losses


def _output_text(y: Tensor, graph: Graph, behind: Behind) -> str:
    choice = choose(y, graph, behind)
    label = {"": "choose its --loss", "none": "a loss itself"}.get(choice.kind, choice.kind)
    return f"{y.name!r} ({shape_text(y)}: {label})"


def _excluded_outputs(graph: Graph, tensors: Sequence[Tensor], able: Sequence[Tensor], live: set[str]) -> Iterator[str]:
    for tensor in tensors:
        if tensor in able:
            continue
        why = "no trained parameter reaches it" if is_float(tensor) and tensor.size else f"of type {tensor.dtype}"
        yield f"{tensor.name!r} ({shape_text(tensor)}: {why})"
    for name in graph.unread:
        yield f"{name!r} (can't be imported)"


def shape_text(tensor: Tensor) -> str:
    """Return the text of a shape in notes."""
    return "x".join(map(str, tensor.shape)) or "scalar"
