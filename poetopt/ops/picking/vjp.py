"""Gradients of ops that select or write by indices.

Gather, GatherElements and GatherND add up rows of the gradient at their source, without races. With a table of V rows,
N selected rows, and rows of `inner` elements:

| case | construction | temporaries |
|---|---|---|
| indices known and consecutive | Pad | 0 |
| V <= N | product with a one-hot matrix | 5 V N |
| V > N | rows with equal indices are added like this, then dX gathers its rows from the sums or from zeros | 5 N N |

The second and third case use ScatterElements(add) if the one-hot matrix has more than 256 rows, or if rows of dY are so
short that the matrix is larger (V or N rows of zeros, and 4 bytes per index). So a table of 30,522 words costs one pass
over its gradient, and no zeros of its size. Elements with equal indices are always added in the same order.

In ScatterElements and ScatterND, an update gets the gradient of the element that it wrote; an overwritten element gets
none.

| reduction | dX | dUpdates |
|---|---|---|
| none | dY, zero where it was replaced | dY at the indices |
| add | dY | dY at the indices |
| max, min | its share of dY where X is the result | its share of dY at the indices where it is the result |
| mul | dY times the product of all other factors | dY times the product of all other factors |

All elements that equal the result share dY evenly, as for ReduceMax and in torch's `scatter_reduce(amax)`. A product's
gradient is exact with zeros, as for ReduceProd.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, single
from poetopt.frontends import checks
from poetopt.graph import Tensor
from poetopt.ops import flops
from poetopt.ops.nodes import around
from poetopt.ops.op import Allowed, Choice, Op, Origin, Steps, declare
from poetopt.ops.pieces import masked
from poetopt.ops.runtimes.onnxruntime import axes, kernels
from poetopt.util.errors import MissingVjpError

gather_op = partial(Op, flops=0, picks=True, blocked=(1,), weights=(0,), numbers=Origin.BETWEEN, any_type=True)

declare("Compress", op=Op(flops=0, picks=True, looks="axis"))
declare("Expand", op=Op(flops=0, blocked=(1,), numbers=Origin.MOVED, lists=(1,), any_type=True))
declare("Gather", op=gather_op(chooses=Choice.INDICES, keeps_scores=True, axis=0, operands_check=checks.gather))
declare("GatherElements", op=gather_op(chooses=Choice.INDICES, axis=0, operands_check=checks.elements))
declare(
    "GatherND",
    op=gather_op(
        attributes={"batch_dims": 0}, settings_check=checks.gather_nd, operands_check=checks.gather_nd_indices
    ),
)
declare("NonMaxSuppression", op=Op(evaluation=Steps.UNKNOWN, blocked=None, settings=tuple(range(5)), looks="anywhere"))
declare("NonZero", op=Op(flops=0, blocked=None))
declare("OneHot", op=Op(flops=0, blocked=None, missing=(2,), settings=(2,)))
declare("ReverseSequence", op=Op(flops=0, looks="anywhere"))
reductions: Allowed = {"reduction": ("none", "add", "mul", "max", "min")}
declare("ScatterElements", op=Op(
    flops=flops.scattered, blocked=(1,), chooses=Choice.INDICES, axis=0, operands_check=checks.elements, in_place=(0,),
    workspace=kernels.widened_indices, attributes=reductions,
))  # fmt: skip
declare("ScatterND", op=Op(
    flops=flops.scattered, blocked=(1,), operands_check=checks.scatter_nd, in_place=(0,), cuts=axes.scatter,
    attributes=reductions,
))  # fmt: skip
declare("Slice", op=Op(
    flops=0, picks=True, blocked=(1, 2, 3, 4), numbers=Origin.MOVED, keeps_scores=True, axes=3, lists=(1, 2, 3, 4),
    any_type=True, letters=axes.sliced,
))  # fmt: skip
declare("TopK", op=Op(blocked=(1,), numbers=Origin.BETWEEN, looks="axis", axis=0))
declare("Trilu", op=Op(flops=0, blocked=(1,), looks="anywhere", lists=(1,)))
declare("Unique", op=Op(looks="anywhere"))


_ONE_HOT_ROWS = 256
"""With more rows, a product takes longer than element-wise addition, and grows with their square."""


@single("Gather", since=1)
def gather(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = the rows of dY, added up at their indices."""
    x = op.x
    axis = op.attr_int("axis", 0) % len(x.shape)
    outer, rows, inner = around(x.shape, axis)
    indices = op.input(1)
    pieces = k.reshape(dy, (outer, indices.size, inner))
    known = op.value(1)
    if known is not None and indices.size:
        flat = np.asarray(known).reshape(-1).astype(np.int64) % rows
        if np.array_equal(flat, flat[0] + np.arange(flat.size)):
            first = int(flat[0])
            return k.reshape(k.pad(pieces, (0, first, 0), (0, rows - first - flat.size, 0)), x.shape)
    flat_indices = k.cast(k.reshape(indices, (indices.size,)), "int64")
    dx = k.reshape(add_rows(k, pieces, flat_indices, rows), x.shape)
    k.amounts_to("Gather.grad_input", [dy, indices], [dx], axis=axis)
    if outer == 1 and rows > 2 * indices.size:
        op.builder.adders[dx.name] = partial(_add_to, dy=dy, indices=indices)
    return dx


def _add_to(k: OperatorBuilder, total: Tensor, *, dy: Tensor, indices: Tensor) -> Tensor:
    """Add the rows of dy to those of `total` at `indices`, for a table with another gradient.

    New rows are written. An index that occurs twice writes the same row twice, so that the order of writes is
    irrelevant.
    """
    rows, inner = total.shape[0], total.size // max(total.shape[0], 1)
    count = indices.size
    flat = k.cast(k.reshape(indices, (count,)), "int64")
    flat = k.node("Mod", [flat, k.graph.ints([rows])], flat.shape, "int64")
    table, pieces = k.reshape(total, (rows, inner)), k.reshape(dy, (count, inner))
    if count > _ONE_HOT_ROWS:
        wide = k.expand(k.reshape(k.cast(flat, "int32"), (count, 1)), pieces.shape)
        return k.reshape(k.scatter_add(table, wide, pieces, 0), total.shape)
    alike = k.cast(k.binary("Equal", k.reshape(flat, (count, 1)), k.reshape(flat, (1, count)), "bool"), dy.dtype)
    sums = k.gemm(alike, pieces)
    fresh = k.add(k.node("Gather", [table, flat], (count, inner), dy.dtype, axis=0), sums)
    written = k.node("ScatterND", [table, k.reshape(flat, (count, 1)), fresh], (rows, inner), dy.dtype)
    return k.reshape(written, total.shape)


@single("GatherElements", since=11)
def gather_elements(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return the elements of dY, added up at their indices: ScatterElements(add) into zeros."""
    x = op.x
    axis = op.attr_int("axis", 0) % len(x.shape)
    return k.scatter_add(k.zeros(x.shape, x.dtype), op.input(1), dy, axis)


@single("GatherND", since=11)
def gather_nd(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return the gradient as for Gather, with the row number of each index tuple."""
    x = op.x
    rows, count, inner = row_counts(x, op.input(1), op.attr_int("batch_dims", 0))
    numbers = row_numbers(k, x, op.input(1), op.attr_int("batch_dims", 0))
    pieces = k.reshape(dy, (1, count, inner))
    return k.reshape(add_rows(k, pieces, numbers, rows), x.shape)


def row_counts(x: Tensor, indices: Tensor, batch_dims: int = 0) -> tuple[int, int, int]:
    """Return the numbers of rows that index tuples select from, of tuples, and of elements of a row."""
    last = batch_dims + indices.shape[-1]
    return math.prod(x.shape[:last]), math.prod(indices.shape[:-1]), math.prod(x.shape[last:])


def row_numbers(k: OperatorBuilder, x: Tensor, indices: Tensor, batch_dims: int = 0) -> Tensor:
    """Return the row number of each index tuple as an int64 vector; negative indices count from the end."""
    depth = indices.shape[-1]
    sizes = x.shape[batch_dims : batch_dims + depth]
    strides = [math.prod(sizes[position + 1 :]) for position in range(depth)]
    batches = math.prod(x.shape[:batch_dims])
    count = math.prod(indices.shape[:-1])
    tuples = k.reshape(k.cast(indices, "int64"), (count, depth))
    numbers = k.node("Mod", [tuples, k.graph.ints(sizes)], tuples.shape, "int64")
    numbers = k.reduce_sum(k.mul(numbers, k.graph.ints(strides)), [1], keepdims=False)
    if batches > 1:
        each = np.repeat(np.arange(batches, dtype=np.int64) * math.prod(sizes), count // batches)
        numbers = k.add(numbers, k.graph.constant(each))
    return numbers


def add_rows(k: OperatorBuilder, pieces: Tensor, indices: Tensor, rows: int) -> Tensor:
    """Add the N rows of `pieces` [outer, N, inner] to zeros [outer, rows, inner] at `indices` [N]."""
    outer, count, inner = pieces.shape
    # ScatterElements knows the reduction `max` from this opset on
    if rows <= count or k.graph.opset < 18:
        return _sum_equal(k, pieces, k.node("Mod", [indices, k.graph.ints([rows])], indices.shape, "int64"), rows)
    # The source of each row of the result: row 0 of the sums is zero; of equal indices the last one counts.
    numbers = k.graph.ints(range(1, count + 1))
    source = k.node(
        "ScatterElements", [k.zeros((rows,), "int64"), indices, numbers], (rows,), "int64", axis=0, reduction="max"
    )
    places = k.node("Gather", [source, indices], (count,), "int64", axis=0)
    sums = _sum_equal(k, pieces, places, count + 1)
    return k.node("Gather", [sums, source], (outer, rows, inner), pieces.dtype, axis=1)


def _sum_equal(k: OperatorBuilder, pieces: Tensor, places: Tensor, rows: int) -> Tensor:
    """Return [outer, rows, inner]: the sums of the pieces with the same place, zeros where there is none."""
    outer, count, inner = pieces.shape
    item = pieces.nbytes // max(pieces.size, 1)
    if rows <= _ONE_HOT_ROWS and rows * count * (item + 1) <= (rows * item + count * 16) * inner * outer:
        numbers = k.graph.constant(np.arange(rows, dtype=np.int64).reshape(rows, 1))
        one_hot = k.cast(k.compare("Equal", numbers, k.reshape(places, (1, count))), pieces.dtype)
        if outer == 1:
            return k.reshape(k.gemm(one_hot, k.reshape(pieces, (count, inner))), (1, rows, inner))
        return k.matmul(one_hot, pieces)
    if rows < 2**31:
        places = k.cast(places, "int32")
    wide = k.expand(k.reshape(places, (1, count, 1)), pieces.shape)
    return k.scatter_add(k.zeros((outer, rows, inner), pieces.dtype), wide, pieces, 1)


Step = Callable[[OperatorBuilder, Tensor], Tensor]
Merge = Callable[[OperatorBuilder, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class _IndexFunctions:
    """Functions that use the indices of a scatter.

    Attributes
    ----------
    select
        Returns the elements of a tensor like X at the indices, in the shape of the updates.
    zero_selected
        Returns a tensor like X with zeros at the indices.
    add_updates, multiply_updates
        Merge a tensor like the updates into a tensor like X.
    """

    select: Step
    zero_selected: Step
    add_updates: Merge
    multiply_updates: Merge


@register_vjp("ScatterElements", since=11)
def scatter_elements(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return both gradients. They read the indices, for max and min also X, Y and updates, for mul X and updates."""
    indices, axis = op.input(1), op.attr_int("axis", 0) % len(op.x.shape)

    def select(k: OperatorBuilder, x: Tensor) -> Tensor:
        return k.node("GatherElements", [x, indices], indices.shape, x.dtype, axis=axis)

    def zero_selected(k: OperatorBuilder, x: Tensor) -> Tensor:
        zeros = k.zeros(indices.shape, x.dtype)
        return k.node("ScatterElements", [x, indices, zeros], x.shape, x.dtype, axis=axis)

    def merged(how: str) -> Merge:
        return lambda k, x, updates: k.scatter(x, indices, updates, axis, how)

    return _scatter_gradients(
        op, op.only(cotangents), _IndexFunctions(select, zero_selected, merged("add"), merged("mul"))
    )


@register_vjp("ScatterND", since=11)
def scatter_nd(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return both gradients as for ScatterElements, with GatherND; rows are merged by number, without races."""
    indices, shape = op.input(1), op.input(2).shape
    rows, count, inner = row_counts(op.x, indices)

    def select(k: OperatorBuilder, x: Tensor) -> Tensor:
        return k.node("GatherND", [x, indices], shape, x.dtype)

    def zero_selected(k: OperatorBuilder, x: Tensor) -> Tensor:
        return k.node("ScatterND", [x, indices, k.zeros(shape, x.dtype)], x.shape, x.dtype)

    def add_updates(k: OperatorBuilder, x: Tensor, updates: Tensor) -> Tensor:
        sums = add_rows(k, k.reshape(updates, (1, count, inner)), row_numbers(k, op.x, indices), rows)
        return k.add(x, k.reshape(sums, x.shape))

    def multiply_updates(k: OperatorBuilder, x: Tensor, updates: Tensor) -> Tensor:
        numbers = k.expand(k.reshape(row_numbers(k, op.x, indices), (count, 1)), (count, inner))
        table, pieces = k.reshape(x, (rows, inner)), k.reshape(updates, (count, inner))
        return k.reshape(k.scatter(table, numbers, pieces, 0, "mul"), x.shape)

    return _scatter_gradients(
        op, op.only(cotangents), _IndexFunctions(select, zero_selected, add_updates, multiply_updates)
    )


def _scatter_gradients(op: Primal, dy: Tensor, places: _IndexFunctions) -> Gradients:
    reduction = op.attr_text("reduction", "none")
    if reduction in {"max", "min"}:
        return _extreme(op, dy, places)
    if reduction == "mul":
        return _product(op, dy, places)
    if reduction not in {"none", "add"}:
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for the reduction {reduction!r}; use none, add, mul, max or min"
        )
    updates = places.select(op.emit("grad_updates"), dy) if op.need(2) else None
    if not op.need(0):
        return None, None, updates
    return (dy if reduction == "add" else places.zero_selected(op.emit("grad_input"), dy)), None, updates


def _gradient_builders(op: Primal) -> tuple[OperatorBuilder, OperatorBuilder, OperatorBuilder]:
    """Return operators for shared parts, for dX and for dUpdates; one operator for all if only one is requested."""
    if op.need(0) and op.need(2):
        return op.emit("grad_share"), op.emit("grad_input"), op.emit("grad_updates")
    k = op.emit("grad_input" if op.need(0) else "grad_updates")
    return k, k, k


def _extreme(op: Primal, dy: Tensor, places: _IndexFunctions) -> Gradients:
    updates = op.input(2)

    def old(k: OperatorBuilder) -> Tensor:
        return k.cast(k.compare("Equal", op.x, op.y), dy.dtype)

    def new(k: OperatorBuilder) -> Tensor:
        return k.cast(k.compare("Equal", updates, places.select(k, op.y)), dy.dtype)

    both, first, second = _gradient_builders(op)
    share = both.div(dy, places.add_updates(both, old(both), new(both)))
    dx = masked(first, share, old(first)) if op.need(0) else None
    return dx, None, (masked(second, places.select(second, share), new(second)) if op.need(2) else None)


def _product(op: Primal, dy: Tensor, places: _IndexFunctions) -> Gradients:
    updates = op.input(2)

    def split(k: OperatorBuilder, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 where x is zero, and x with ones there."""
        zeros = k.cast(k.compare("Equal", x, 0.0), x.dtype)
        return zeros, k.add(x, zeros)

    def gradient(k: OperatorBuilder, x: Tensor, whole: Tensor, zeros: Tensor) -> Tensor:
        own_zeros, filled = split(k, x)
        return masked(k, k.div(whole, filled), k.cast(k.compare("Equal", zeros, own_zeros), x.dtype))

    both, first, second = _gradient_builders(op)
    (zeros_x, filled_x), (zeros_updates, filled_updates) = split(both, op.x), split(both, updates)
    whole = both.mul(dy, places.multiply_updates(both, filled_x, filled_updates))
    zeros = places.add_updates(both, zeros_x, zeros_updates)
    dx = gradient(first, op.x, whole, zeros) if op.need(0) else None
    if not op.need(2):
        return dx, None, None
    return dx, None, gradient(second, updates, places.select(second, whole), places.select(second, zeros))


@register_vjp("TopK", since=10)
def top_k(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY of the values at their indices, zeros elsewhere. It reads the indices; zeros of X's size."""
    dy = cotangents[0]
    if dy is None:
        return None, None
    axis = op.attr_int("axis", -1) % len(op.x.shape)
    k = op.emit("grad_input")
    return k.scatter_add(k.zeros(op.x.shape, dy.dtype), op.output(1), dy, axis), None


@single("Trilu", since=14)
def trilu(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return the same triangle of dY. It reads only dY; no temporary."""
    operands = [dy, op.input(1)] if op.has(1) else [dy]
    return k.node("Trilu", operands, dy.shape, dy.dtype, upper=op.attr_int("upper", 1))


@register_vjp("Expand", since=8)
def expand(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dY; the differentiation sums it to the input's shape."""
    return op.only(cotangents), None


@single("Slice", since=10)
def slices(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dY with zeros around it and, for steps beyond one, between its elements."""
    shape = op.x.shape
    starts, ends = (op.known_ints(index) for index in (1, 2))
    axes = op.known_ints(3) if op.has(3) else list(range(len(starts)))
    steps = op.known_ints(4) if op.has(4) else [1] * len(starts)
    before, after = [0] * len(shape), [0] * len(shape)
    for start, end, axis, step in zip(starts, ends, (a % len(shape) for a in axes), steps, strict=True):
        low, high, stride = slice(start, end, step).indices(shape[axis])
        positions = range(low, high, stride)
        if not positions:
            return k.zeros(shape, dy.dtype)
        if stride < 0:
            dy, positions = k.flip(dy, [axis]), positions[::-1]
        dy = _insert_zeros(k, dy, axis, abs(stride))
        before[axis], after[axis] = positions[0], shape[axis] - positions[-1] - 1
    return k.pad(dy, before, after)


def _insert_zeros(k: OperatorBuilder, x: Tensor, axis: int, step: int) -> Tensor:
    """Insert `step - 1` zeros between neighbours along `axis`."""
    length = x.shape[axis]
    if step == 1 or length == 1:
        return x
    rank = len(x.shape)
    wide = k.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    after = [step - 1 if a == axis + 1 else 0 for a in range(rank + 1)]
    wide = k.pad(wide, [0] * (rank + 1), after)
    flat = k.reshape(wide, (*x.shape[:axis], length * step, *x.shape[axis + 1 :]))
    return k.slice(flat, [0], [(length - 1) * step + 1], [axis])
