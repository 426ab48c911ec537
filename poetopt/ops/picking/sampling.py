"""GridSample: a grid gives positions between the elements of X; grid and X have gradients.

A position reads some elements along each axis: one for nearest, two for linear, four for cubic. Their weights are
polynomials of the distance from the first of them. An element outside of X counts as zero (`zeros`) or as an element
inside (`border`, `reflection`). With the product w_s of the weights of an element s, summed over all s that a position
reads:

    dX = sum of dY w_s, added where s lies
    dGrid_a = sum of dw_s/dGrid_a (X_s dY summed over the channels)

Elements are processed one after another. For dX they are scattered, with 20 bytes per element of dY. For the grid they
are gathered with their channels, with 12. A matrix of weights and one product would be slower from planes of 16x16 on.

Coordinates are computed in onnxruntime's order. Kinks are torch's: `floor` decides which side of an element counts, and
at the image's edges `border` and `reflection` have no slope. No gradient flows to the grid through `nearest`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.graph import Tensor
from poetopt.ops import flops
from poetopt.ops.op import Op, declare
from poetopt.util.errors import MissingVjpError, ModelError

declare("GridSample", op=Op(flops=flops.interpolated("linear"), attributes={
    "align_corners": (0, 1), "mode": ("linear", "bilinear", "cubic", "bicubic", "nearest"),
    "padding_mode": ("zeros", "border", "reflection"),
}))  # fmt: skip
declare("Upsample", op=Op(settings=(1,), attributes={"mode": ("nearest", "linear")}))


_A = -0.75
_POLYNOMIALS: dict[str, tuple[tuple[float, ...], ...]] = {
    "nearest": ((1.0,),),
    "linear": ((1.0, -1.0), (0.0, 1.0)),
    "cubic": (
        (0.0, _A, -2 * _A, _A),
        (1.0, 0.0, -(_A + 3), _A + 2),
        (0.0, -_A, 2 * _A + 3, -(_A + 2)),
        (0.0, 0.0, _A, -_A),
    ),
}
"""For each element that is read, the coefficients of its weight for 1, f, f^2, f^3, with the position's distance f."""


@dataclass(frozen=True)
class _Sampling:
    """The settings of a node; sizes are those of X's spatial axes."""

    mode: str
    padding: str
    aligned: bool
    batch: int
    channels: int
    sizes: tuple[int, ...]
    places: int

    @property
    def taps(self) -> int:
        """Elements that a position reads along an axis."""
        return len(_POLYNOMIALS[self.mode])

    @property
    def read(self) -> int:
        """Elements that a position reads."""
        return int(self.taps ** len(self.sizes))

    @property
    def elements(self) -> int:
        """Elements of a channel."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Line:
    """The elements that positions read along one axis, [batch, places, taps] each; `slope` is None unless requested."""

    index: Tensor
    weight: Tensor
    slope: Tensor | None


@register_vjp("GridSample", since=16)
def grid_sample(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX, which reads the grid, and dGrid, which also reads X."""
    dy, frame = op.only(cotangents), _sampling(op)
    dx = _input_gradient(op.emit("grad_input"), dy, op, frame) if op.need(0) else None
    grid = _grid_gradient(op.emit("grad_grid"), dy, op, frame) if op.need(1) and frame.mode != "nearest" else None
    return dx, grid


def _sampling(op: Primal) -> _Sampling:
    mode, padding = op.attr_text("mode", "linear"), op.attr_text("padding_mode", "zeros")
    # names before opset 20
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode not in _POLYNOMIALS or padding not in {"zeros", "border", "reflection"}:
        raise ModelError(
            f"{op.where}: mode {mode!r} or padding_mode {padding!r} is unknown; export it with linear, nearest or "
            "cubic, and zeros, border or reflection"
        )
    (batch, channels), sizes = op.x.shape[:2], op.x.shape[2:]
    if len(sizes) not in ({2} if mode == "cubic" else {2, 3}):
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for mode {mode!r} over {len(sizes)} axes, which onnxruntime "
            "doesn't compute; use two axes" + ("" if mode == "cubic" else " or three")
        )
    aligned = bool(op.attr_int("align_corners", 0))
    return _Sampling(mode, padding, aligned, batch, channels, sizes, math.prod(op.y.shape[2:]))


# --- what is read ---------------------------------------------------------------------------------


def _axis_lines(k: OperatorBuilder, grid: Tensor, frame: _Sampling, *, slopes: bool) -> list[Line]:
    """Return one line per axis; the grid's components are in the opposite order."""
    rank = len(frame.sizes)
    flat = k.reshape(grid, (frame.batch, frame.places, rank))
    parts = [k.slice(flat, [rank - 1 - axis], [rank - axis], [2]) for axis in range(rank)]
    return [_axis_line(k, part, size, frame, slopes) for part, size in zip(parts, frame.sizes, strict=True)]


def _axis_line(k: OperatorBuilder, part: Tensor, size: int, frame: _Sampling, slopes: bool) -> Line:
    """Return the line of one axis; `part` [batch, places, 1] is between -1 and 1 inside of X."""
    at, sign = _to_elements(k, part, size, frame.aligned), None
    if frame.mode == "linear" and frame.padding != "zeros":
        at, sign = _bring_inside(k, at, size, frame)
    first = k.unary("Round" if frame.mode == "nearest" else "Floor", at)
    offsets = np.arange(frame.taps) - (1 if frame.mode == "cubic" else 0)
    where = k.add(first, k.graph.constant(offsets.astype(at.dtype)))
    table = np.array(_POLYNOMIALS[frame.mode])
    weight, slope = _polynomial(k, table, at, first), None
    if slopes:
        scale = (size - 1 if frame.aligned else size) / 2
        orders = scale * np.arange(1, table.shape[1], dtype=np.float64)
        slope = _polynomial(k, np.asarray(table[:, 1:] * orders, np.float64), at, first)
        slope = slope if sign is None else k.mul(slope, sign)
    if frame.mode != "linear" and frame.padding == "reflection":
        return Line(_reflect(k, k.cast(where, "int64"), size, frame.aligned), weight, slope)
    inside = _clip_to_axis(k, where, size)
    if frame.padding == "zeros":
        mask = k.cast(k.compare("Equal", where, inside), where.dtype)
        weight = k.mul(weight, mask)
        slope = None if slope is None else k.mul(slope, mask)
    return Line(k.cast(inside, "int64"), weight, slope)


def _to_elements(k: OperatorBuilder, part: Tensor, size: int, aligned: bool) -> Tensor:
    """Convert -1 ... 1 to element numbers, in onnxruntime's order of operations."""
    more = k.add(part, k.graph.scalar(1.0, part.dtype))
    if aligned:
        return k.mul(k.mul(more, 0.5), size - 1.0)
    return k.mul(k.sub(k.mul(more, float(size)), k.graph.scalar(1.0, part.dtype)), 0.5)


def _polynomial(k: OperatorBuilder, table: NDArray[np.float64], at: Tensor, first: Tensor) -> Tensor:
    """Return the polynomials of at - first whose coefficients are the rows of `table`, lowest power first."""
    powers = [k.graph.constant(column.astype(at.dtype)) for column in table.T]
    if len(powers) == 1:
        return k.expand(powers[0], (*at.shape[:-1], len(table)))
    behind = k.sub(at, first)
    return reduce(lambda total, power: k.add(k.mul(total, behind), power), reversed(powers[:-1]), powers[-1])


def _clip_to_axis(k: OperatorBuilder, where: Tensor, size: int) -> Tensor:
    bounds = [k.graph.scalar(bound, where.dtype) for bound in (0.0, size - 1.0)]
    return k.node("Clip", [where, *bounds], where.shape, where.dtype)


def _bring_inside(k: OperatorBuilder, at: Tensor, size: int, frame: _Sampling) -> tuple[Tensor, Tensor]:
    """Return a coordinate of `linear` after border or reflection, and its slope: 1, -1, or 0 from the edges on."""
    low, span = (0.0, size - 1.0) if frame.aligned else (-0.5, float(size))
    sign: Tensor | None = None
    if frame.padding == "reflection" and span:
        behind = k.sub(at, k.graph.scalar(low, at.dtype))
        far = k.unary("Abs", behind)
        flips = k.unary("Floor", k.div(far, k.graph.scalar(span, at.dtype)))
        rest = k.sub(far, k.mul(flips, span))
        odd = k.sub(flips, k.mul(k.unary("Floor", k.mul(flips, 0.5)), 2.0))
        # odd: span - rest, even: rest
        turned = k.add(rest, k.mul(odd, k.sub(k.graph.scalar(span, at.dtype), k.mul(rest, 2.0))))
        at = k.add(turned, k.graph.scalar(low, at.dtype))
        below = k.cast(k.compare("Less", behind, 0.0), at.dtype)
        one = k.graph.scalar(1.0, at.dtype)
        sign = k.mul(k.sub(one, k.mul(odd, 2.0)), k.sub(one, k.mul(below, 2.0)))
    inner = k.binary("And", k.compare("Greater", at, 0.0), k.compare("Less", at, size - 1.0), "bool")
    edges = k.cast(inner, at.dtype)
    return _clip_to_axis(k, at, size), (edges if sign is None else k.mul(sign, edges))


def _reflect(k: OperatorBuilder, where: Tensor, size: int, aligned: bool) -> Tensor:
    """Reflect indices at the outermost elements (aligned) or at their outer edges."""
    period = max(2 * size - 2, 1) if aligned else 2 * size
    last = period if aligned and size > 1 else period - 1
    within_period = k.node("Mod", [where, k.graph.ints([period])], where.shape, "int64")
    return k.binary("Min", within_period, k.sub(k.graph.ints([last]), within_period))


def _align_taps(k: OperatorBuilder, line: Tensor, axis: int, rank: int) -> Tensor:
    """Move the taps of [batch, places, taps] to a separate axis: [batch, places, 1, ..., taps, ..., 1]."""
    batch, places, taps = line.shape
    return k.reshape(line, (batch, places, *(taps if a == axis else 1 for a in range(rank))))


def _flat_indices(k: OperatorBuilder, lines: Sequence[Line], frame: _Sampling) -> Tensor:
    """Return the indices of the elements of a flat channel that are read: int64 [batch, places, read]."""
    rank = len(lines)
    parts = []
    for axis, line in enumerate(lines):
        stride = math.prod(frame.sizes[axis + 1 :])
        strided = line.index if stride == 1 else k.mul(line.index, k.graph.ints([stride]))
        parts.append(_align_taps(k, strided, axis, rank))
    return k.reshape(reduce(k.add, parts), (frame.batch, frame.places, frame.read))


def _product(k: OperatorBuilder, factors: Sequence[Tensor]) -> Tensor:
    """Return the products over the axes: [batch, places, taps, ..., taps]."""
    return reduce(k.mul, [_align_taps(k, factor, axis, len(factors)) for axis, factor in enumerate(factors)])


def _select_tap(k: OperatorBuilder, x: Tensor, number: int) -> Tensor:
    """Return x[..., number] of x [batch, places, read]."""
    return k.reshape(k.slice(x, [number], [number + 1], [2]), x.shape[:2])


# --- the gradients --------------------------------------------------------------------------------


def _input_gradient(k: OperatorBuilder, dy: Tensor, op: Primal, frame: _Sampling) -> Tensor:
    lines = _axis_lines(k, op.input(1), frame, slopes=False)
    index = k.cast(_flat_indices(k, lines, frame), "int32")
    weights = k.cast(k.reshape(_product(k, [line.weight for line in lines]), index.shape), dy.dtype)
    flat = k.reshape(dy, (frame.batch, frame.channels, frame.places))
    total = k.zeros((frame.batch, frame.channels, frame.elements), dy.dtype)
    for tap in range(frame.read):
        where, weight = (k.reshape(_select_tap(k, t, tap), (frame.batch, 1, frame.places)) for t in (index, weights))
        total = k.scatter_add(total, k.expand(where, flat.shape), k.mul(flat, weight), 2)
    return k.reshape(total, op.x.shape)


def _grid_gradient(k: OperatorBuilder, dy: Tensor, op: Primal, frame: _Sampling) -> Tensor:
    batch, channels, places = frame.batch, frame.channels, frame.places
    lines = _axis_lines(k, op.input(1), frame, slopes=True)
    index = _flat_indices(k, lines, frame)
    rows = k.transpose(k.reshape(dy, (batch, channels, places)), [0, 2, 1])
    planes = k.transpose(k.reshape(op.x, (batch, channels, frame.elements)), [0, 2, 1])
    table = k.reshape(planes, (batch * frame.elements, channels))
    if batch > 1:
        images = np.arange(batch, dtype=np.int64).reshape(batch, 1, 1) * frame.elements
        index = k.add(index, k.graph.constant(images))
    dots = []
    for tap in range(frame.read):
        read = k.node("Gather", [table, _select_tap(k, index, tap)], rows.shape, dy.dtype, axis=0)
        dots.append(k.reduce_sum(k.mul(read, rows), [2]))
    taps = k.reshape(k.cast(k.concat(dots, 2), op.input(1).dtype), (batch, places, *(frame.taps for _ in lines)))
    parts = []
    for axis in reversed(range(len(lines))):
        factors = [line.slope if a == axis and line.slope is not None else line.weight for a, line in enumerate(lines)]
        slopes = k.reduce_sum(k.mul(taps, _product(k, factors)), range(2, len(taps.shape)))
        parts.append(k.reshape(slopes, (batch, places, 1)))
    return k.reshape(k.concat(parts, 2), op.input(1).shape)
