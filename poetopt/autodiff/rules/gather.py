"""Gather and its kin: rows of the gradient are added up where they came from, without races.

With V rows to choose from, N chosen and rows of `inner` elements:

| case | construction | temporaries |
|---|---|---|
| indices known, each the last plus one | Pad | 0 |
| V <= N | product with a one-hot matrix | 5 V N |
| V > N | alike rows are added up in that way, then every row of dX is gathered from these or from zeros | 5 N N |

The second and third turn to ScatterElements(add) where the one-hot matrix has more than 256 rows, and where rows of dY
are short and it would be the larger (V or N rows of zeros, and 4 bytes an index). A table of 30,522 words thus costs
one pass over its gradient, and no zeros of its size. Like elements are always added in the same order.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import chunk
from poetopt.graph import Tensor

_ONE_HOT_ROWS = 256
"""A product with more of them takes longer than adding up element by element, and grows with their square."""

_MAX_SINCE = 18
"""ScatterElements knows the reduction `max` from this opset on."""


@register_vjp("Gather", since=1)
def gather(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = the rows of dY, added up at their indices."""
    dy, x = op.only(cotangents), op.x
    axis = op.attr_int("axis", 0) % len(x.shape)
    outer, rows, inner = chunk(x.shape, axis)
    indices = op.input(1)
    k = op.emit("grad_input")
    pieces = k.reshape(dy, (outer, indices.size, inner))
    known = op.value(1)
    if known is not None and indices.size:
        flat = np.asarray(known).reshape(-1).astype(np.int64) % rows
        if np.array_equal(flat, flat[0] + np.arange(flat.size)):
            first = int(flat[0])
            return (k.reshape(k.pad(pieces, (0, first, 0), (0, rows - first - flat.size, 0)), x.shape), None)
    flat_indices = k.cast(k.reshape(indices, (indices.size,)), "int64")
    dx = k.reshape(add_rows(k, pieces, flat_indices, rows), x.shape)
    k.amounts_to("Gather.grad_input", [dy, indices], [dx], axis=axis)
    if outer == 1 and rows > 2 * indices.size:
        op.builder.adders[dx.name] = partial(_add_to, dy=dy, indices=indices)
    return (dx, None)


def _add_to(k: OperatorBuilder, total: Tensor, *, dy: Tensor, indices: Tensor) -> Tensor:
    """`total`, to whose rows at `indices` those of dy are added: where a table has another gradient besides.

    The new rows are written; where an index occurs twice, the same row twice, so that no order of writing matters.
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


@register_vjp("GatherElements", since=11)
def gather_elements(op: Primal, cotangents: Cotangents) -> Gradients:
    """The elements of dY, added up at their indices: ScatterElements(add) into zeros."""
    dy, x = op.only(cotangents), op.x
    axis = op.attr_int("axis", 0) % len(x.shape)
    k = op.emit("grad_input")
    return (k.scatter_add(k.zeros(x.shape, x.dtype), op.input(1), dy, axis), None)


@register_vjp("GatherND", since=11)
def gather_nd(op: Primal, cotangents: Cotangents) -> Gradients:
    """As for Gather, with each index tuple turned into the number of its row."""
    dy, x = op.only(cotangents), op.x
    k = op.emit("grad_input")
    rows, count, inner = row_counts(x, op.input(1), op.attr_int("batch_dims", 0))
    numbers = row_numbers(k, x, op.input(1), op.attr_int("batch_dims", 0))
    pieces = k.reshape(dy, (1, count, inner))
    return (k.reshape(add_rows(k, pieces, numbers, rows), x.shape), None)


def row_counts(x: Tensor, indices: Tensor, batch_dims: int = 0) -> tuple[int, int, int]:
    """Rows that index tuples choose from, tuples, and elements of a row."""
    last = batch_dims + indices.shape[-1]
    return math.prod(x.shape[:last]), math.prod(indices.shape[:-1]), math.prod(x.shape[last:])


def row_numbers(k: OperatorBuilder, x: Tensor, indices: Tensor, batch_dims: int = 0) -> Tensor:
    """The row number of each index tuple, as an int64 vector; negative indices count from the end."""
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
    """[outer, rows, inner]: zeros, to which the N rows of `pieces` [outer, N, inner] are added at `indices` [N]."""
    outer, count, inner = pieces.shape
    if rows <= count or k.graph.opset < _MAX_SINCE:
        return _sum_alike(k, pieces, k.node("Mod", [indices, k.graph.ints([rows])], indices.shape, "int64"), rows)
    # Where does each row of the result come from? Row 0 of the sums is zero; of like indices the last one counts.
    numbers = k.graph.ints(range(1, count + 1))
    source = k.node(
        "ScatterElements", [k.zeros((rows,), "int64"), indices, numbers], (rows,), "int64", axis=0, reduction="max"
    )
    places = k.node("Gather", [source, indices], (count,), "int64", axis=0)
    sums = _sum_alike(k, pieces, places, count + 1)
    return k.node("Gather", [sums, source], (outer, rows, inner), pieces.dtype, axis=1)


def _sum_alike(k: OperatorBuilder, pieces: Tensor, places: Tensor, rows: int) -> Tensor:
    """[outer, rows, inner]: the sums of the pieces that have the same place, zeros where none is."""
    outer, count, inner = pieces.shape
    item = pieces.nbytes // max(pieces.size, 1)
    if rows <= _ONE_HOT_ROWS and rows * count * (item + 1) <= (rows * item + count * 16) * inner * outer:
        numbers = k.graph.constant(np.arange(rows, dtype=np.int64).reshape(rows, 1))
        chosen = k.cast(k.compare("Equal", numbers, k.reshape(places, (1, count))), pieces.dtype)
        if outer == 1:
            return k.reshape(k.gemm(chosen, k.reshape(pieces, (count, inner))), (1, rows, inner))
        return k.matmul(chosen, pieces)
    if rows < 2**31:
        places = k.cast(places, "int32")
    wide = k.expand(k.reshape(places, (1, count, 1)), pieces.shape)
    return k.scatter_add(k.zeros((outer, rows, inner), pieces.dtype), wide, pieces, 1)
