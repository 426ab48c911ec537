"""Pad: dX is the middle of dY; what other modes than `constant` repeated is added to where it came from.

Axis by axis, in time and memory that grow with dY alone. Outside of a line, padding runs through it forwards (`wrap`),
backwards (`reflect`), or stands at its ends (`edge`). What a run gives to a stretch of the line is a slice of dY,
reversed where the run goes backwards; stretches are added up each by itself and joined, so that only edges are added.
Where a short line is repeated many times, its repetitions are summed at once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import reduce

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.errors import ModelError
from poetopt.graph import Tensor


@register_vjp("Pad", since=11)
def pad(op: Primal, cotangents: Cotangents) -> Gradients:
    """See above. Reads nothing else; one temporary of dY's size."""
    dy, x = op.only(cotangents), op.x
    rank = len(x.shape)
    before, after = _amounts(op, rank)
    mode = op.attr_text("mode", "constant")
    k = op.emit("grad_input")
    if mode == "constant":
        return k.pad(dy, [-b for b in before], [-a for a in after]), None
    if mode not in {"reflect", "edge", "wrap"}:
        raise ModelError(f"{op.where}: unknown mode {mode!r}")
    # onnxruntime cuts first, and repeats what is left
    cut = [[-min(n, 0) for n in side] for side in (before, after)]
    for axis in range(rank):
        length = x.shape[axis] - cut[0][axis] - cut[1][axis]
        if length <= 0:
            raise ModelError(f"{op.where}: cuts all of axis {axis} away before it repeats anything; export it without")
        if mode == "reflect" and max(before[axis], after[axis]) >= length:
            raise ModelError(
                f"{op.where}: reflects {max(before[axis], after[axis])} elements of axis {axis}, which has {length}; "
                "onnxruntime reflects fewer than there are"
            )
        dy = folded(k, dy, axis, length, max(before[axis], 0), mode)
    return k.pad(dy, *cut), None


def _amounts(op: Primal, rank: int) -> tuple[list[int], list[int]]:
    """What is added before and after each axis; negative where it is cut."""
    amounts = op.known_ints(1)
    axes = [axis % rank for axis in op.known_ints(3)] if op.has(3) else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = amounts[position], amounts[len(axes) + position]
    return before, after


@dataclass(frozen=True)
class Run:
    """`stop - start` places of a padded line that repeat those of the line from `first` on, or down from there."""

    start: int
    stop: int
    first: int
    step: int

    @property
    def covers(self) -> range:
        """The places of the line, ascending."""
        last = self.first + self.step * (self.stop - self.start - 1)
        return range(min(self.first, last), max(self.first, last) + 1)

    def slice(self, k: OperatorBuilder, x: Tensor, axis: int, low: int, high: int) -> Tensor:
        """What the run has of the places from `low` to before `high`, in their order."""
        if self.step > 0:
            start = self.start + low - self.first
            return k.slice(x, [start], [start + high - low], [axis])
        start = self.start + self.first - high + 1
        return k.flip(k.slice(x, [start], [start + high - low], [axis]), [axis])


def folded(k: OperatorBuilder, x: Tensor, axis: int, length: int, before: int, mode: str) -> Tensor:
    """x, whose `axis` is a line of `length` with `before` places in front and others behind, folded to the line."""
    after = x.shape[axis] - before - length
    if not before and not after:
        return x
    if mode == "edge":
        return _stretched(k, x, axis, length, before)
    if mode == "wrap" and max(before, after) > length:
        return _summed(k, x, axis, length, before)
    step = -1 if mode == "reflect" else 1
    runs = [
        Run(0, before, before if step < 0 else length - before, step),
        Run(before, before + length, 0, 1),
        Run(before + length, x.shape[axis], length - 2 if step < 0 else 0, step),
    ]
    runs = [run for run in runs if run.start < run.stop]
    ends = sorted({end for run in runs for end in (run.covers.start, run.covers.stop)})
    stretches = [
        reduce(k.add, [run.slice(k, x, axis, low, high) for run in runs if low in run.covers])
        for low, high in itertools.pairwise(ends)
    ]
    return k.concat(stretches, axis)


def _stretched(k: OperatorBuilder, x: Tensor, axis: int, length: int, before: int) -> Tensor:
    """`folded` for `edge`: what lies outside is added to the first place and to the last."""
    if length == 1:
        return k.reduce_sum(x, [axis])
    ends = (0, before + 1, before + length - 1, x.shape[axis])
    first, middle, last = (
        k.slice(x, [low], [high], [axis]) if low < high else None for low, high in itertools.pairwise(ends)
    )
    sums = [None if t is None else k.reduce_sum(t, [axis]) for t in (first, last)]
    return k.concat([t for t in (sums[0], middle, sums[1]) if t is not None], axis)


def _summed(k: OperatorBuilder, x: Tensor, axis: int, length: int, before: int) -> Tensor:
    """`folded` for `wrap`, at once: the sum of all repetitions, those at the ends filled up with zeros."""
    front = -before % length
    back = -(front + x.shape[axis]) % length
    wide = k.pad(x, *([amount if a == axis else 0 for a in range(len(x.shape))] for amount in (front, back)))
    shape = (*x.shape[:axis], wide.shape[axis] // length, length, *x.shape[axis + 1 :])
    return k.reduce_sum(k.reshape(wide, shape), [axis], keepdims=False)
