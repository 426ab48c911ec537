"""dW of a convolution: seven constructions, and the choice between them by shape.

With L output positions, K = taps C/group columns and N images:

| construction | how | workspace beside the kernels' |
|---|---|---|
| images | unfold each image to [K, L] (convolution with one-hot kernels), Gemm with dY, add | its columns, two dW |
| rows | the same along all axes but the first; along that one dY moves instead | a third of that for 3x3, two dY |
| taps | images innermost; for each tap what it reads, Gemm with dY there, add | x and dY twice, two dW |
| batch | unfold all images, transpose, one Gemm | twice the columns of all images |
| swap | x convolved with dY: images for channels, strides for dilations; transposed | x and dY if N > 1, dW |
| apart | the same with groups for each image, then summed; dY stays as it lies | x if C/group > 1, N dW |
| flip | dY convolved with x, both reversed in space: dW comes out in its own order | x and dY |

`images` and `rows` can go through the channels in parts, which divides the columns and costs a dW for putting the parts
together, `taps` through the images in chunks. For groups there are `swap` and `apart`, which is all that leaves a
depthwise convolution's operands as they lie. The choice is the fastest, by estimates that
are fitted to onnxruntime's kernels, of those whose operands and workspace stay within what the graph needs elsewhere;
where none does, the leanest (see `choice`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.rules.choice import FLOPS_PER_NS, Candidate, chosen, steps_ns
from poetopt.autodiff.rules.conv_weight_forms import (
    Problem,
    apart,
    by_taps,
    flip,
    images,
    rows,
    swap,
    unfolded_batch,
)
from poetopt.autodiff.rules.geometry import Window
from poetopt.graph import Tensor


def weight_gradient(k: OperatorBuilder, x: Tensor, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    """The gradient of w [M, C/group, ...], given x [N, C, ...] and that of the output [N, M, ...]."""
    problem = Problem(x, dy, w, window, group)
    found = candidates(problem, apart_in_groups=k.graph.over)
    return chosen(k.graph, found, x.nbytes + dy.nbytes).build(k)


def candidates(problem: Problem, *, apart_in_groups: bool = True) -> Iterator[Candidate]:
    """Every construction that works for the problem."""
    if problem.group == 1:
        yield from _by_images(problem)
        yield from _by_rows(problem)
        yield from _by_taps(problem)
        yield from _whole(problem)
    elif apart_in_groups and problem.batch > 1:
        yield _apart(problem)
    yield _swapped(problem)


def _product(problem: Problem) -> float:
    return 2.0 * problem.w.size * problem.batch * problem.positions / FLOPS_PER_NS


def _moved(problem: Problem) -> float:
    return problem.x.size + problem.dy.size if problem.batch > 1 else 0.0


def _unfolding(elements: float, taps: int, item: int) -> float:
    # what doesn't stay in a core's own cache has to be fetched again
    return (0.62 if elements * item < 1.6e6 else 0.7) * max(1.0, taps / 9) * elements


def _by_images(problem: Problem) -> Iterator[Candidate]:
    x, dy, w, n = problem.x, problem.dy, problem.w, problem.batch
    count, taps, positions = w.shape[1] * problem.window.taps, problem.window.taps, problem.positions
    for parts in (1, 2, 4, 8):
        if w.shape[1] % parts or (parts > 1 and problem.plain and n == 1):
            continue
        elements = 0 if problem.plain else count * positions / parts
        shared = (
            0.75 * _product(problem)
            + n * (parts * _unfolding(elements, taps, problem.item) + 0.42 * w.size)
            + 0.32 * _moved(problem)
            + (0.3 * w.size if parts > 1 else 0.0)
            + steps_ns(n * parts)
        )
        slices = dy.nbytes // n + x.nbytes // n // parts if n > 1 else x.nbytes if parts > 1 else 0
        for turned in (False, True):
            chained = min(n - 1, 2) * w.nbytes
            sums = w.nbytes + (w.nbytes // parts if n > 1 else 0) if parts > 1 or turned else chained
            # a Gemm copies its right operand to a layout of its own
            packed = 0.13 * (w.shape[0] * parts if turned else count) * n * positions
            yield Candidate(
                f"images/{parts}{'t' if turned else ''}",
                shared + packed + (w.size if turned else 0.0),
                max(problem.columns_bytes // parts + slices + sums, 2 * w.nbytes if turned and parts > 1 else 0),
                partial(images, problem=problem, parts=parts, turned=turned),
            )


def _by_rows(problem: Problem) -> Iterator[Candidate]:
    w, n, window = problem.w, problem.batch, problem.window
    if window.kernel[0] == 1 or window.strides[0] != 1 or window.after[0] < 0:
        return
    tall, taps = window.kernel[0], window.taps // window.kernel[0]
    height = window.size[0] + window.before[0] + window.after[0]
    positions = problem.positions // window.out[0] * height
    columns, moved = w.shape[1] * taps * positions, tall * w.shape[0] * positions
    for parts in (1, 2, 4):
        if w.shape[1] % parts:
            continue
        yield Candidate(
            f"rows/{parts}",
            0.75 * _product(problem) * height / window.out[0]
            + n * (parts * _unfolding(columns / parts, taps, problem.item) + 0.21 * moved + 0.7 * w.size)
            + 0.14 * n * moved * parts
            + 3.9 * w.size
            + steps_ns(n * parts),
            max(_rows_bytes(problem, columns, moved, parts), 2 * w.nbytes),
            partial(rows, problem=problem, parts=parts),
        )


def _rows_bytes(problem: Problem, columns: int, moved: int, parts: int) -> int:
    """What lives with the columns of one part: all moved dY of an image, or of a single part one and dY itself."""
    x, dy, w, n = problem.x, problem.dy, problem.w, problem.batch
    if parts > 1:
        return (columns // parts + moved) * problem.item + max(
            x.nbytes // n // parts, w.nbytes + w.nbytes // parts // 3
        )
    tall = problem.window.kernel[0]
    products = moved * problem.item // tall + w.nbytes + w.nbytes // tall
    return columns * problem.item + (dy.nbytes // n if n > 1 else 0) + max(x.nbytes // n, products)


def _by_taps(problem: Problem) -> Iterator[Candidate]:
    x, dy, w, n, window = problem.x, problem.dy, problem.w, problem.batch, problem.window
    shares = [
        [len(window.reads(axis, tap)) / window.out[axis] for tap in range(extent)]
        for axis, extent in enumerate(window.kernel)
    ]
    share = math.prod(sum(axis) / len(axis) for axis in shares)
    columns = w.shape[1] * n * problem.positions
    read = share * window.taps * (dy.size + columns)
    copied = 0 if problem.plain else int(max(map(max, shares)) * (columns * problem.item + dy.nbytes)) // n
    for chunk in (1, 2, 4, 8, 16, 32):
        if chunk >= 2 * n:
            break
        many, chunks = min(chunk, n), -(-n // chunk)
        planes, grads = (many * t.nbytes // n if n > 1 else 0 for t in (x, dy))
        # while an image is turned, it is there twice
        turning = max(planes, 2 * grads) if 1 < many < n else grads
        sums = w.nbytes + (w.nbytes // window.taps if chunks > 1 else 0) if chunks > 1 or window.taps > 1 else 0
        # where the last axis has a stride, runs are as long as there are images
        runs = 2.0 / many * share * window.taps * columns if window.strides[-1] > 1 else 0.0
        yield Candidate(
            f"taps/{chunk}",
            0.83 * _product(problem) * share
            + (0.4 if chunk > 1 else 0.3) * _moved(problem)
            + 0.25 * read
            + runs
            + 0.2 * share * window.taps * columns
            + (0.33 * (chunks - 1) + (0.8 if window.taps > 1 else 0.15)) * w.size
            + steps_ns(1 + chunks * window.taps // 2),
            max(planes + max(turning, grads + many * copied + sums), 2 * w.nbytes if window.taps > 1 else 0),
            partial(by_taps, problem=problem, chunk=chunk),
        )


def _whole(problem: Problem) -> Iterator[Candidate]:
    x, dy, w, n = problem.x, problem.dy, problem.w, problem.batch
    taps = problem.window.taps
    if problem.window.unit_stride:
        yield Candidate(
            "flip",
            _product(problem) / _lane(taps, w.shape[1])
            + 0.4 * w.shape[0] * taps * x.size / w.shape[1]
            + _moved(problem)
            + x.size
            + dy.size
            + 2 * steps_ns(1),
            _both(problem) if n == 1 else _both(problem) * 3 // 2,
            partial(flip, problem=problem),
        )
    if n > 1:
        yield _apart(problem)
        columns = n * problem.columns_bytes
        yield Candidate(
            "batch",
            0.9 * _product(problem)
            + 1.5 * max(1.0, taps / 9) * columns / problem.item
            + 0.5 * w.size
            + 0.5 * _moved(problem)
            + 2 * steps_ns(1),
            max(2 * columns, columns + dy.nbytes) if columns else _both(problem),
            partial(unfolded_batch, problem=problem),
        )


def _swapped(problem: Problem) -> Candidate:
    dy, w, n, taps = problem.dy, problem.w, problem.batch, problem.window.taps
    width = w.shape[0] // problem.group
    unfolded = n * problem.positions * taps * problem.item if width > taps else 0
    return Candidate(
        "swap",
        _product(problem) / _lane(taps, width)
        + 0.4 * problem.group * w.shape[1] * taps * n * problem.positions
        + _moved(problem)
        + 1.5 * w.size
        + 2 * steps_ns(1),
        (_both(problem) if n > 1 else dy.nbytes) + w.nbytes + unfolded,
        partial(swap, problem=problem),
    )


def _apart(problem: Problem) -> Candidate:
    x, w, n, taps = problem.x, problem.w, problem.batch, problem.window.taps
    width = w.shape[0] // problem.group
    unfolded = problem.positions * taps * problem.item if width > taps else 0
    turned = x.nbytes if w.shape[1] > 1 else 0
    return Candidate(
        "apart",
        _product(problem) / _lane(taps, width)
        + 0.4 * problem.group * w.shape[1] * taps * n * problem.positions
        + turned / problem.item
        + 1.5 * n * w.size
        + 2 * steps_ns(1),
        turned + n * w.nbytes + max(unfolded, w.nbytes),
        partial(apart, problem=problem),
    )


def _both(problem: Problem) -> int:
    """Bytes of x and dY."""
    return problem.x.nbytes + problem.dy.nbytes


def _lane(taps: int, width: int) -> float:
    """How much of a Gemm's speed is left where it has as few columns as taps: it works on 16 at a time."""
    return 0.85 * taps / (16 * -(-taps // 16)) * min(1.0, width / 8)
