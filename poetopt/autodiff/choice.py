"""The loss that an output gets where nobody says, and the output that the loss is on.

| what the output is | loss |
|---|---|
| a Softmax or LogSoftmax, seen through shapes, Cast, Clip, Log and Transpose | cross-entropy of what goes into it |
| a Sigmoid, likewise | bce of what goes into it |
| a scalar that no layer wrote, or one element that is called a loss | none: it is the loss |
| what a layer wrote, of an input's shape | mse |
| what a layer wrote, with two classes or more | cross-entropy |
| anything else | asked for |
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
"""Each axis of a tensor as pieces of the axes behind it, outer ones first: (axis behind, stride within that axis,
length), without those of length one. A reshape splits and merges pieces, a transpose puts lists in another order."""

SMALL = 1e-4
"""By so much Clip may change a probability; exporters write 1e-6 to 1e-12."""


@dataclass(frozen=True)
class Tail:
    """A Softmax or Sigmoid that an output comes from, element by element.

    kind
        `Softmax` or `Sigmoid`, with `Log` in front where the output has logarithms; "" for logits as they are.
    logits
        What goes into it.
    axis
        Along which axis of the logits the probabilities sum to one; -1 for Sigmoid.
    axes
        The axes of the output as they come from those of the logits.
    steps
        Ops after it that do more than change the shape.
    """

    kind: str
    logits: Tensor
    axis: int
    axes: Axes
    steps: tuple[str, ...] = ()

    @property
    def classes(self) -> int | None:
        """Says which axis of the output has the classes; None where no axis has them and nothing else."""
        return place_of(self.axes, self.axis, self.logits.shape[self.axis]) if self.axis >= 0 else None


def tail_of(name: str, behind: Behind) -> Tail | None:
    """The Softmax or Sigmoid that `name` comes from, if each element is one of its results (Clip: to `SMALL`)."""
    after: list[Node] = []
    node = behind.node(name)
    while node is not None and not op_of(node.op_type).loss:
        if not (_rearranges(node, behind) or node.op_type in ("Clip", "Log")):
            return None
        after.insert(0, node)
        node = behind.node(node.inputs[0])
    if node is None:
        return None
    op = op_of(node.op_type)
    logged = not op.is_probability
    for step in after:
        if step.op_type == "Clip" and not _harmless(step, logged, behind):
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


def _rearranges(node: Node, behind: Behind) -> bool:
    """Return whether a node moves each element of its first operand to a place of its own."""
    op = op_of(node.op_type)
    if op.numbers is not Origin.MOVED or op.picks:
        return False
    return behind.tensors[node.inputs[0]].size == behind.tensors[node.outputs[0]].size


def _harmless(node: Node, logged: bool, behind: Behind) -> bool:
    """Says whether a Clip passes probabilities on, or their logarithms, to `SMALL`."""
    low, high = (math.log(SMALL), -SMALL) if logged else (SMALL, 1 - SMALL)
    bounds = []
    for name in (*node.inputs, "", "")[1:3]:
        array = behind.constant(name) if name else None
        bounds.append(None if not name else math.nan if array is None or not array.size else np.float64(array.max()))
    least, most = bounds
    return (least is None or bool(least <= low)) and (most is None or bool(most >= high))


def through(shape: Sequence[int], nodes: Sequence[Node], behind: Behind) -> Axes | None:
    """The axes of what `nodes` make of a tensor of this shape, one after another; None where they mix."""
    axes: Axes | None = own_axes(shape)
    for node in nodes:
        if axes is None:
            return None
        after = behind.tensors[node.outputs[0]].shape
        if node.op_type == "Transpose":
            perm = node.attributes.get("perm")
            order = tuple(map(int, perm)) if isinstance(perm, list | tuple) else tuple(range(len(after)))[::-1]
            axes = tuple(axes[axis] for axis in order)
        else:
            axes = reshaped(axes, after)
    return axes


def own_axes(shape: Sequence[int]) -> Axes:
    """The axes of a tensor as they come from themselves."""
    return tuple(((axis, 1, length),) if length > 1 else () for axis, length in enumerate(shape))


def reshaped(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """`axes` under another shape; None where a new axis has a part of a piece that doesn't divide it."""
    left = [piece for axis in axes for piece in axis][::-1]
    found: list[tuple[Piece, ...]] = []
    for length in shape:
        pieces: list[Piece] = []
        while length > 1:
            if not left:
                return None
            axis, stride, size = left.pop()
            outer = min(size, length)
            if size % outer or length % outer:
                return None
            if outer < size:
                left.append((axis, stride, size // outer))
            pieces.append((axis, stride * (size // outer), outer))
            length //= outer
        found.append(_merged(pieces))
    return None if left else tuple(found)


def _merged(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Pieces that lie in a row behind as one."""
    found: list[Piece] = []
    for axis, stride, size in pieces:
        if found and found[-1][0] == axis and found[-1][1] == stride * size:
            found[-1] = (axis, stride, found[-1][2] * size)
        else:
            found.append((axis, stride, size))
    return tuple(found)


def place_of(axes: Axes, axis: int, length: int) -> int | None:
    """Says which axis is the whole of `axis` behind, of this length, and nothing else."""
    return next((place for place, pieces in enumerate(axes) if pieces == ((axis, 1, length),)), None)


def order_behind(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """The permutation that puts pieces in the order in which they lie behind."""
    return tuple(sorted(range(len(pieces)), key=lambda k: (pieces[k][0], -pieces[k][1])))


ASK = (
    "say --loss mse for values, --loss cross-entropy for scores of classes or --loss bce for scores of yes and no "
    "(--loss none where it is the model's own loss), or name another output with --output"
)
PROBABLE = "its values come from a Softmax, Sigmoid or Exp, and no logits can be read behind them"


class ValueSource(StrEnum):
    """Says where the values of an output come from, as far as the ops behind it tell."""

    STORED = "parameters and constants alone"
    LAYER = "a layer: they may be anything"
    PROBABLE = "probabilities, before any layer"
    OTHER = "something else"


@dataclass(frozen=True)
class LossChoice:
    """A loss for an output.

    kind
        `cross-entropy`, `bce`, `mse`, `none`, or "" where none fits.
    why
        The reason, or why none fits.
    tail
        The Softmax or Sigmoid that the loss reads the logits of.
    """

    kind: str
    why: str
    tail: Tail | None = None


def choose(y: Tensor, graph: Graph, behind: Behind) -> LossChoice:
    """The loss that `auto` puts on `y`."""
    tail = tail_of(y.name, behind)
    if tail is not None and tail.axis < 0:
        return LossChoice("bce", f"chosen by the final {tail.kind}", tail)
    if tail is not None:
        fault = unfit(tail)
        return LossChoice("", fault) if fault else LossChoice("cross-entropy", f"chosen by the final {tail.kind}", tail)
    if y.size == 1 and ("loss" in y.name.lower() or (not y.shape and not _of_layer(y.name, behind))):
        return LossChoice("none", "chosen by the output's shape")
    source = source_of(y.name, behind)
    if source is ValueSource.PROBABLE:
        return LossChoice("", PROBABLE)
    if source is ValueSource.OTHER:
        return LossChoice("", "which loss is meant can't be read off the model: its output is no layer's")
    if len(y.shape) < 2 or y.shape[class_axis(y, behind)] < 2:
        return LossChoice("", "which loss is meant can't be read off the model: it has no two classes")
    like = [name for name in graph.inputs if (t := graph.tensors[name]).shape == y.shape and is_float(t)]
    if like:
        why = f"chosen as it has the shape of the input {like[0]!r} (--loss cross-entropy for classes)"
        return LossChoice("mse", why)
    return LossChoice("cross-entropy", "chosen by the output's shape")


def asked(loss: str, y: Tensor, behind: Behind) -> LossChoice:
    """The loss that was asked for, or why it doesn't fit the output."""
    if loss in {"mse", "none"}:
        return LossChoice(loss, "as asked")
    tail = tail_of(y.name, behind)
    if tail is None:
        probable = source_of(y.name, behind) is ValueSource.PROBABLE
        return LossChoice("", PROBABLE) if probable else LossChoice(loss, "as asked")
    fault = unfit(tail) if loss == "cross-entropy" and tail.axis >= 0 else ""
    if loss == "bce" and tail.axis >= 0:
        fault = f"its final {tail.kind} makes values that sum to 1, for which there is --loss cross-entropy"
    elif loss == "cross-entropy" and tail.axis < 0:
        fault = "its final Sigmoid makes independent probabilities of them, for which there is --loss bce"
    return LossChoice("", fault) if fault else LossChoice(loss, "as asked", tail)


def unfit(tail: Tail) -> str:
    """Says why cross-entropy can't read the logits of a Softmax: "" where it can."""
    if tail.logits.shape[tail.axis] == 1:
        return f"its final {tail.kind} is over an axis of length 1, where it is 1 whatever goes in"
    if tail.classes is None:
        return f"its final {tail.kind} is over axis {tail.axis} of {list(tail.logits.shape)}, no axis of the output"
    return ""


def source_of(name: str, behind: Behind) -> ValueSource:
    """Says where the values of `name` come from."""
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
    if op.is_product and any(_weighs(name, behind) for name in weights):
        return ValueSource.LAYER
    if op.is_probability or (set(computed) == {ValueSource.PROBABLE} and node.op_type != "Log"):
        return ValueSource.PROBABLE
    scores = op.keeps_scores and set(computed) == {ValueSource.LAYER}
    alone = len(computed) == 1 or node.op_type not in ("Div", "Mul")
    return ValueSource.LAYER if scores and alone else ValueSource.OTHER


def _weighs(name: str, behind: Behind) -> bool:
    """Tells a layer's weight among stored tensors: trained, computed, or of both signs; an average has one sign."""
    array = behind.constant(name)
    return array is None or not array.size or array.dtype.kind != "f" or float(np.min(array)) < 0


def _of_layer(name: str, behind: Behind) -> bool:
    """Says whether a layer wrote a scalar: a prediction for a batch of one."""
    node = behind.node(name)
    while node is not None and (op := op_of(node.op_type)).keeps_scores and op.is_linear:
        node = next((n for operand in behind.operands(node) if (n := behind.node(operand)) is not None), None)
    return node is not None and op_of(node.op_type).is_product


def class_axis(y: Tensor, behind: Behind) -> int:
    """The axis of the classes: where the last layer's results lie, else the last up to rank three, and then axis 1.

    Those of a convolution lie along its axis 1, those of a product along its last.
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
            if axis is not None and _rearranges(step, behind):
                axes = through(before, [step], behind)
                axis = None if axes is None else place_of(axes, axis, before[axis])
        if axis is not None:
            return axis
    return rank - 1 if rank <= 3 else 1


def output_of(graph: Graph, output: str | None, loss: str, live: set[str], behind: Behind) -> tuple[str, str]:
    """The output that the loss is on, and what to say of how it was found.

    live
        Tensors that depend on a trained parameter.

    Raises OptionError for a name that isn't there, ModelError where several outputs could be it.
    """
    if output is not None:
        if output in graph.unread:
            raise ModelError(graph.unread[output])
        if output not in graph.outputs:
            raise OptionError(f"{graph.name}: no output {output!r}; there are {', '.join(graph.outputs)}")
        return output, ""
    if len(graph.outputs) == 1 and not graph.unread:
        return graph.outputs[0], ""
    tensors = [behind.tensors[name] for name in graph.outputs]
    able = [t for t in tensors if is_float(t) and t.size and t.name in live]
    own = _own_losses(able, graph, behind)
    if loss in {"auto", "none"} and len(own) == 1:
        return own[0].name, "; it is the only output that is a loss"
    others = [t for t in able if t not in own] if own and loss not in {"auto", "none"} else able
    if len(others) == 1:
        return others[0].name, "; no other output can have one: " + ", ".join(_unable(graph, tensors, others, live))
    if not able:
        reason = next((w for w in graph.unread.values() if "zipmap" in w), next(iter(graph.unread.values()), ""))
        if reason:
            raise ModelError(reason)
    listed = "; ".join([*(_listed(t, graph, behind) for t in able), *_unable(graph, tensors, able, live)])
    raise ModelError(f"{graph.name}: several outputs; say which one the loss is on with --output NAME: {listed}")


def _own_losses(able: Sequence[Tensor], graph: Graph, behind: Behind) -> list[Tensor]:
    """Those outputs that are losses of the model's own: the one that is called so, or all."""
    own = [t for t in able if t.size == 1 and choose(t, graph, behind).kind == "none"]
    for named in (lambda name: name.lower() == "loss", lambda name: "loss" in name.lower()):
        found = [t for t in own if named(t.name)]
        if len(found) == 1:
            return found
    return own


def _listed(y: Tensor, graph: Graph, behind: Behind) -> str:
    choice = choose(y, graph, behind)
    what = {"": "--loss says which", "none": "a loss itself"}.get(choice.kind, choice.kind)
    return f"{y.name!r} ({shape_text(y)}: {what})"


def _unable(graph: Graph, tensors: Sequence[Tensor], able: Sequence[Tensor], live: set[str]) -> Iterator[str]:
    for tensor in tensors:
        if tensor in able:
            continue
        why = "no trained parameter reaches it" if is_float(tensor) and tensor.size else f"of type {tensor.dtype}"
        yield f"{tensor.name!r} ({shape_text(tensor)}: {why})"
    for name in graph.unread:
        yield f"{name!r} (can't be imported)"


def shape_text(tensor: Tensor) -> str:
    """The shape as notes show it."""
    return "x".join(map(str, tensor.shape)) or "scalar"
