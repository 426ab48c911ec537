"""Sums of weighed elements along an axis, few in each: gathers, in place of a product with a matrix of zeros.

With r the most elements that go into one sum: r times a gather, a product and an addition, each of the result's size;
for large r one gather, a product and a sum over all. The last axis, whose elements lie apart, is transposed first.

Where an axis is short, a product with a dense matrix is faster, with at most 64 elements for each of the longer line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.graph import Tensor

Numbers = NDArray[np.int64]

_DENSE = 64
"""The shorter line of a matrix that is stored as such."""

_ONE_BY_ONE = 16
"""So many elements of a sum are gathered each by itself."""


@dataclass(frozen=True)
class Entries:
    """What is not zero of a matrix: `places` (rows) read elements `read` (columns) with `weights`."""

    places: Numbers
    read: Numbers
    weights: NDArray[np.float64]

    def until(self, places: int) -> Entries:
        """The first so many rows."""
        kept = self.places < places
        return Entries(self.places[kept], self.read[kept], self.weights[kept])


def along(k: OperatorBuilder, x: Tensor, axis: int, length: int, entries: Entries) -> Tensor:
    """The product of the transpose of a matrix [x's `axis`, `length`] with every line of x along `axis`."""
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    outer, lines, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    if min(lines, length) <= _DENSE:
        return k.reshape(_dense(k, k.reshape(x, (outer, lines, inner)), length, entries), shape)
    if inner > 1:
        return k.reshape(_gathered(k, k.reshape(x, (outer, lines, inner)), length, entries), shape)
    rows = k.reshape(k.transpose(k.reshape(x, (outer, lines)), [1, 0]), (1, lines, outer))
    found = k.reshape(_gathered(k, rows, length, entries), (length, outer))
    return k.reshape(k.transpose(found, [1, 0]), shape)


def _dense(k: OperatorBuilder, x: Tensor, length: int, entries: Entries) -> Tensor:
    outer, lines, inner = x.shape
    matrix = np.zeros((length, lines))
    np.add.at(matrix, (entries.read, entries.places), entries.weights)
    if inner == 1:
        constant = k.graph.constant(np.ascontiguousarray(matrix.T).astype(x.dtype))
        return k.gemm(k.reshape(x, (outer, lines)), constant)
    constant = k.graph.constant(matrix.astype(x.dtype))
    if outer == 1:
        return k.gemm(constant, k.reshape(x, (lines, inner)))
    return k.matmul(constant, x)


def _gathered(k: OperatorBuilder, x: Tensor, length: int, entries: Entries) -> Tensor:
    """[outer, length, inner] of x [outer, lines, inner]."""
    outer, _, inner = x.shape
    index, weight = _table(length, entries)
    most = index.shape[1]
    if most > _ONE_BY_ONE:
        flat = k.node("Gather", [x, k.graph.ints(index.reshape(-1))], (outer, index.size, inner), x.dtype, axis=1)
        wide = k.reshape(flat, (outer, length, most, inner))
        factors = k.graph.constant(weight.reshape(length, most, 1).astype(x.dtype))
        return k.reduce_sum(k.mul(wide, factors), [2], keepdims=False)
    total: Tensor | None = None
    for number in range(most):
        read = k.node("Gather", [x, k.graph.ints(index[:, number])], (outer, length, inner), x.dtype, axis=1)
        part = k.mul(read, k.graph.constant(weight[:, number].reshape(length, 1).astype(x.dtype)))
        total = part if total is None else k.add(total, part)
    return total if total is not None else k.zeros((outer, length, inner), x.dtype)


def _table(length: int, entries: Entries) -> tuple[Numbers, NDArray[np.float64]]:
    """For each element of the result, which ones go into it and with what weights: [length, most]; 0 where fewer do."""
    order = np.lexsort((entries.places, entries.read))
    read = entries.read[order]
    counts = np.bincount(read, minlength=length)
    number = np.arange(read.size) - np.repeat(np.cumsum(counts) - counts, counts)
    index = np.zeros((length, max(int(counts.max(initial=0)), 1)), np.int64)
    weight = np.zeros(index.shape)
    index[read, number], weight[read, number] = entries.places[order], entries.weights[order]
    return index, weight
