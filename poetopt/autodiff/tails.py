"""The final Softmax, LogSoftmax or Sigmoid of an output, seen through shapes, Cast, Clip, Log and Transpose.

A loss that is computed of the logits before it has no rounding of log(softmax), and above all no second Softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poetopt.autodiff.behind import Behind
from poetopt.graph import VIEW_OPS, Node, Tensor

Piece = tuple[int, int, int]
Axes = tuple[tuple[Piece, ...], ...]
"""Each axis of a tensor as pieces of the axes behind it, outer ones first: (axis behind, stride within that axis,
length), without those of length one. A reshape splits and merges pieces, a transpose puts lists in another order."""

SMALL = 1e-4
"""By so much Clip may change a probability; exporters write 1e-6 to 1e-12."""
_FINAL = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})


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
        """Which axis of the output has the classes; None where no axis has them and nothing else."""
        return place_of(self.axes, self.axis, self.logits.shape[self.axis]) if self.axis >= 0 else None


def tail_of(name: str, behind: Behind) -> Tail | None:
    """The Softmax or Sigmoid that `name` comes from, if each element is one of its results (Clip: to `SMALL`)."""
    after: list[Node] = []
    node = behind.node(name)
    while node is not None and node.op_type not in _FINAL:
        if node.op_type not in VIEW_OPS | {"Cast", "CastLike", "Clip", "Log", "Transpose"}:
            return None
        after.insert(0, node)
        node = behind.node(node.inputs[0])
    if node is None:
        return None
    logged = node.op_type == "LogSoftmax"
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
    return Tail(kind, logits, -1 if node.op_type == "Sigmoid" else axis % len(logits.shape), axes, steps)


def _harmless(node: Node, logged: bool, behind: Behind) -> bool:
    """Whether a Clip passes probabilities on, or their logarithms, to `SMALL`."""
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
    """Which axis is the whole of `axis` behind, of this length, and nothing else."""
    return next((place for place, pieces in enumerate(axes) if pieces == ((axis, 1, length),)), None)


def order_behind(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """The permutation that puts pieces in the order in which they lie behind."""
    return tuple(sorted(range(len(pieces)), key=lambda k: (pieces[k][0], -pieces[k][1])))
