"""dW of a convolution: four constructions, and the choice between them by shape.

With L output positions, K = taps C/group columns and N images:

| construction | how | workspace beside the kernels' |
|---|---|---|
| images | unfold each image to [K, L] (convolution with one-hot kernels), Gemm with dY, add | its columns, two dW |
| batch | unfold all images, transpose, one Gemm | twice the columns of all images |
| swap | x convolved with dY: images for channels, strides for dilations; transposed | x and dY if N > 1, dW |
| flip | dY convolved with x, both reversed in space: dW comes out in its own order | x and dY |

`images` can go through the channels in parts, which divides the columns and costs a dW for putting the parts together.
For groups there is `swap`. The choice is the fastest, by estimates fitted to onnxruntime's kernels, of those whose
operands and workspace stay within what the graph needs elsewhere; where none does, the leanest (see `choice`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.rules.choice import FLOPS_PER_NS, Candidate, choose, steps_ns
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


def weight_gradient(k: OperatorBuilder, x: Tensor, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    """The gradient of w [M, C/group, ...], given x [N, C, ...] and that of the output [N, M, ...]."""
    problem = Problem(x, dy, w, window, group)
    return choose(candidates(problem), k.graph.floor_bytes - x.nbytes - dy.nbytes).build(k)


def candidates(problem: Problem) -> Iterator[Candidate]:
    """Every construction that works for the problem."""
    x, dy, w, n = problem.x, problem.dy, problem.w, problem.batch
    taps, rows, positions = problem.window.taps, w.shape[0] // problem.group, problem.positions
    both = x.nbytes + dy.nbytes
    lane = _lane(taps, rows)
    product = 2.0 * w.size * n * positions / FLOPS_PER_NS
    moved = (x.size + dy.size) * (1.0 if n > 1 else 0.0)
    yield Candidate(
        "swap",
        product / lane
        + 0.4 * problem.group * w.shape[1] * taps * n * positions
        + moved
        + 1.5 * w.size
        + 2 * steps_ns(1),
        max(both if n > 1 else 0, w.nbytes + (dy.nbytes if n > 1 else 0)),
        partial(swap, problem=problem),
    )
    if problem.group > 1:
        return
    unfolding = 0.0 if problem.plain else 0.45 * max(1.0, taps / 9) * problem.columns_bytes / problem.item
    if problem.window.unit_stride:
        lane = _lane(taps, w.shape[1])
        yield Candidate(
            "flip",
            product / lane + 0.4 * w.shape[0] * taps * x.size / w.shape[1] + moved + x.size + dy.size + 2 * steps_ns(1),
            both if n == 1 else both * 3 // 2,
            partial(flip, problem=problem),
        )
    for parts in (1, 2, 4, 8):
        if w.shape[1] % parts or (parts > 1 and problem.plain and n == 1):
            continue
        sums = min(n - 1, 2) * w.nbytes // parts + (w.nbytes if parts > 1 else 0)
        slices = both // n if n > 1 else x.nbytes if parts > 1 else 0
        yield Candidate(
            f"images/{parts}",
            product + n * (unfolding + 0.5 * w.size) + (0.5 * w.size if parts > 1 else 0) + steps_ns(n * parts),
            problem.columns_bytes // parts + slices // parts + sums,
            partial(images, problem=problem, parts=parts),
        )
    if n > 1:
        columns = n * problem.columns_bytes
        yield Candidate(
            "batch",
            product + n * (2.5 * unfolding) + 0.5 * w.size + moved + 2 * steps_ns(1),
            max(2 * columns, columns + dy.nbytes) if columns else both,
            partial(unfolded_batch, problem=problem),
        )


def _lane(taps: int, rows: int) -> float:
    """How much of a Gemm's speed is left where it has as few columns as taps: it works on 16 at a time."""
    return 0.85 * taps / (16 * -(-taps // 16)) * min(1.0, rows / 8)


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


def images(k: OperatorBuilder, problem: Problem, parts: int = 1) -> Tensor:
    """Image by image, and within an image by `parts` of the channels."""
    x, dy, w = problem.x, problem.dy, problem.w
    width = w.shape[1] // parts
    sums: list[Tensor | None] = [None] * parts
    for n in range(problem.batch):
        grads = k.reshape(k.slice(dy, [n], [n + 1], [0]), (w.shape[0], problem.positions))
        for part in range(parts):
            piece = k.slice(x, [n, part * width], [n + 1, (part + 1) * width], [0, 1])
            columns = k.reshape(unfold(k, piece, problem), (width * problem.window.taps, problem.positions))
            sums[part] = k.gemm(grads, columns, sums[part], trans_b=True)
    return k.reshape(k.concat([s for s in sums if s is not None], 1), w.shape)


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
