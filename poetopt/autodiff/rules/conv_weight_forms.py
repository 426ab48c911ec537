"""The constructions of a convolution's dW; `conv_weight` has their table, their costs, and the choice between them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.rules.geometry import Window
from poetopt.graph import Tensor


@dataclass(frozen=True)
class Problem:
    """One weight gradient: x [N, C, ...], dy [N, M, ...], w [M, C/group, ...]."""

    x: Tensor
    dy: Tensor
    w: Tensor
    window: Window
    group: int

    @property
    def batch(self) -> int:
        """Number of images."""
        return self.x.shape[0]

    @property
    def positions(self) -> int:
        """Output positions of one image."""
        return math.prod(self.window.out)

    @property
    def plain(self) -> bool:
        """Whether an image is its own unfolding."""
        window = self.window
        padded = any(window.before) or any(window.declared_after)
        return window.taps == 1 and window.unit_stride and not padded

    @property
    def columns_bytes(self) -> int:
        """Size of one image, unfolded; 0 where that is the image."""
        return 0 if self.plain else self.w.shape[1] * self.window.taps * self.positions * self.item

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return self.x.nbytes // max(self.x.size, 1)


def unfold(k: OperatorBuilder, x: Tensor, problem: Problem) -> Tensor:
    """x [N, C, ...] -> [N, C taps, L]: a convolution of each plane with one-hot kernels, one for each tap."""
    window = problem.window
    if problem.plain:
        return k.reshape(x, (*x.shape[:2], problem.positions))
    taps = window.taps
    kernels = k.graph.constant(np.eye(taps, dtype=x.dtype).reshape(taps, 1, *window.kernel))
    planes = k.reshape(x, (x.shape[0] * x.shape[1], 1, *window.size))
    pads = (*window.before, *window.declared_after)
    columns = k.conv(planes, kernels, strides=window.strides, dilations=window.dilations, pads=pads)
    return k.reshape(columns, (x.shape[0], x.shape[1] * taps, problem.positions))


def images(k: OperatorBuilder, problem: Problem, parts: int = 1, *, turned: bool = False) -> Tensor:
    """Image by image, and within an image by `parts` of the channels.

    turned
        The product is columns dY^T, and is transposed at the end: faster where there are fewer channels than columns.
    """
    x, dy, w = problem.x, problem.dy, problem.w
    width = w.shape[1] // parts
    sums: list[Tensor | None] = [None] * parts
    for n in range(problem.batch):
        grads = k.reshape(k.slice(dy, [n], [n + 1], [0]), (w.shape[0], problem.positions))
        for part in range(parts):
            piece = k.slice(x, [n, part * width], [n + 1, (part + 1) * width], [0, 1])
            columns = k.reshape(unfold(k, piece, problem), (width * problem.window.taps, problem.positions))
            left, right = (columns, grads) if turned else (grads, columns)
            sums[part] = k.gemm(left, right, sums[part], trans_b=True)
    joined = k.concat([s for s in sums if s is not None], 0 if turned else 1)
    return k.reshape(k.transpose(joined, [1, 0]) if turned else joined, w.shape)


def rows(k: OperatorBuilder, problem: Problem, parts: int = 1) -> Tensor:
    """Image by image: x unfolded along all axes but the first, dY moved along that one; for a unit stride there.

    Both get as many rows as x has with its pads, and a row that dY lacks is 0: the product takes (H + taps - 1) / H of
    the operations, but unfolds to a fraction of the columns.
    """
    x, dy, w, window = problem.x, problem.dy, problem.w, problem.window
    tall, others = window.kernel[0], window.kernel[1:]
    row, taps = math.prod(window.out[1:]), math.prod(others)
    width, height = w.shape[1] // parts, window.size[0] + window.before[0] + window.after[0]
    kernels = k.graph.constant(np.eye(taps, dtype=x.dtype).reshape(taps, 1, 1, *others))
    sums: dict[tuple[int, int], Tensor] = {}
    for n in range(problem.batch):
        grads = k.reshape(k.slice(dy, [n], [n + 1], [0]), (w.shape[0], window.out[0] * row))
        # made for one part alone, each is there only while its product is taken
        moved = [_moved_down(k, grads, tap, problem) for tap in range(tall)] if parts > 1 else None
        for part in range(parts):
            piece = k.slice(x, [n, part * width], [n + 1, (part + 1) * width], [0, 1])
            columns = k.conv(
                k.reshape(piece, (width, 1, *window.size)), kernels,
                strides=(1, *window.strides[1:]), dilations=(1, *window.dilations[1:]),
                pads=(*window.before, window.after[0], *window.declared_after[1:]),
            )  # fmt: skip
            columns = k.reshape(columns, (width * taps, height * row))
            for tap in range(tall):
                right = _moved_down(k, grads, tap, problem) if moved is None else moved[tap]
                sums[part, tap] = k.gemm(columns, right, sums.get((part, tap)), trans_b=True)
    joined = k.concat([k.concat([sums[part, tap] for tap in range(tall)], 1) for part in range(parts)], 0)
    spread = k.reshape(joined, (w.shape[1], *others, tall, w.shape[0]))
    return k.transpose(spread, [1 + window.rank, 0, window.rank, *range(1, window.rank)])


def _moved_down(k: OperatorBuilder, grads: Tensor, tap: int, problem: Problem) -> Tensor:
    """dY of one image, [M, L], as the rows of x that `tap` of the first axis reads it: [M, L'] with rows of 0."""
    window = problem.window
    row, height = math.prod(window.out[1:]), window.size[0] + window.before[0] + window.after[0]
    above = tap * window.dilations[0] * row
    return k.pad(grads, [0, above], [0, height * row - grads.shape[1] - above])


def by_taps(k: OperatorBuilder, problem: Problem, chunk: int) -> Tensor:
    """`chunk` images at a time, and tap by tap: dY where the tap reads x, times what it reads, both [channels, rest].

    With the images innermost both are runs of memory. What a tap would read in the pads is 0, and isn't computed.
    """
    x, dy, w, window = problem.x, problem.dy, problem.w, problem.window
    inner = [*range(1, 2 + window.rank), 0]
    axes = list(range(1, 1 + window.rank))
    sums: dict[tuple[int, ...], Tensor] = {}
    taps = list(itertools.product(*(range(extent) for extent in window.kernel)))
    for low in range(0, problem.batch, chunk):
        high = min(low + chunk, problem.batch)
        planes, grads = (k.transpose(k.slice(t, [low], [high], [0]), inner) for t in (x, dy))
        for tap in taps:
            reads = [window.reads(axis, at) for axis, at in enumerate(tap)]
            if not all(reads):
                sums[tap] = sums.get(tap) or k.zeros(w.shape[:2], w.dtype)
                continue
            first = [o[0] * s + t * d - b for o, s, t, d, b in _axes(reads, tap, window)]
            last = [o[-1] * s + t * d - b for o, s, t, d, b in _axes(reads, tap, window)]
            read = k.slice(planes, first, [end + 1 for end in last], axes, window.strides)
            given = k.slice(grads, [o[0] for o in reads], [o[-1] + 1 for o in reads], axes)
            length = math.prod(given.shape[1:])
            left, right = k.reshape(given, (w.shape[0], length)), k.reshape(read, (w.shape[1], length))
            sums[tap] = k.gemm(left, right, sums.get(tap), trans_b=True)
    joined = k.concat([sums[tap] for tap in taps], 0)
    spread = k.reshape(joined, (*window.kernel, *w.shape[:2]))
    return k.transpose(spread, [window.rank, 1 + window.rank, *range(window.rank)])


def _axes(reads: list[range], tap: tuple[int, ...], window: Window) -> list[tuple[range, int, int, int, int]]:
    return list(zip(reads, window.strides, tap, window.dilations, window.before, strict=True))


def unfolded_batch(k: OperatorBuilder, problem: Problem) -> Tensor:
    """All images at once: the sum over images and positions is one Gemm's inner dimension."""
    w, length = problem.w, problem.batch * problem.positions
    columns = k.transpose(unfold(k, problem.x, problem), [1, 0, 2])
    grads = k.reshape(k.transpose(problem.dy, [1, 0, *range(2, 2 + problem.window.rank)]), (w.shape[0], length))
    return k.reshape(k.gemm(grads, k.reshape(columns, (columns.shape[0], length)), trans_b=True), w.shape)


def swap(k: OperatorBuilder, problem: Problem) -> Tensor:
    """Roles swapped: x is convolved with dY."""
    x, dy, w, window, group = problem.x, problem.dy, problem.w, problem.window, problem.group
    inputs = w.shape[1]
    axes = range(window.rank)
    planes = k.transpose(k.reshape(x, (problem.batch, group, inputs, *window.size)), [2, 1, 0, *(3 + a for a in axes)])
    planes = k.reshape(planes, (inputs, group * problem.batch, *window.size))
    kernels = k.transpose(dy, [1, 0, *(2 + a for a in axes)])
    result = k.conv(
        planes, kernels, strides=window.dilations, dilations=window.strides,
        pads=[*window.before, *(max(a, 0) for a in window.after)], group=group,
    )  # fmt: skip
    result = k.slice(result, [0] * window.rank, window.kernel, [2 + a for a in axes])
    return k.reshape(k.transpose(result, [1, 0, *(2 + a for a in axes)]), w.shape)


def apart(k: OperatorBuilder, problem: Problem) -> Tensor:
    """Roles swapped, with groups of its own for each image: dY is read as it lies, and the images' dW are summed."""
    x, dy, w, window, n = problem.x, problem.dy, problem.w, problem.window, problem.batch
    outputs, inputs, groups = *w.shape[:2], n * problem.group
    planes = k.reshape(x, (groups, inputs, *window.size))
    planes = k.transpose(planes, [1, 0, *range(2, 2 + window.rank)])
    kernels = k.reshape(dy, (n * outputs, 1, *window.out))
    result = k.conv(
        planes, kernels, strides=window.dilations, dilations=window.strides,
        pads=[*window.before, *(max(a, 0) for a in window.after)], group=groups,
    )  # fmt: skip
    result = k.slice(result, [0] * window.rank, window.kernel, [2 + a for a in range(window.rank)])
    summed = k.reduce_sum(k.reshape(result, (inputs, n, outputs, *window.kernel)), [1], keepdims=False)
    return k.transpose(summed, [1, 0, *range(2, 2 + window.rank)])


def flip(k: OperatorBuilder, problem: Problem) -> Tensor:
    """dY convolved with x, both reversed, so that the taps come out in order; for unit strides."""
    window = problem.window
    spatial = [2 + a for a in range(window.rank)]
    grads = k.flip(k.transpose(problem.dy, [1, 0, *spatial]), spatial)
    kernels = k.flip(k.transpose(problem.x, [1, 0, *spatial]), spatial)
    before = [b + n - o for b, n, o in zip(window.before, window.size, window.out, strict=True)]
    extents = zip(window.kernel, window.dilations, window.size, window.out, before, strict=True)
    after = [(taps - 1) * d + n - o - b for taps, d, n, o, b in extents]
    low = [max(-b, 0) for b in (*before, *after)]
    if any(low):
        rank = window.rank
        cut = [o - a for o, a in zip(window.out, low[rank:], strict=True)]
        grads = k.slice(grads, low[:rank], cut, spatial)
    pads = [max(b, 0) for b in (*before, *after)]
    return k.conv(grads, kernels, strides=window.dilations, dilations=[1] * window.rank, pads=pads)
