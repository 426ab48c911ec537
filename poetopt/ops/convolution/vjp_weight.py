"""Constructions of a convolution's dW, of which the shape decides.

With L output positions, K = taps C/group columns and N images:

| construction | operators | workspace beside the kernels' |
|---|---|---|
| images | unfold each image to [K, L] (convolution with one-hot kernels), Gemm with dY, add | its columns, two dW |
| rows | `images` along all axes but the first; along the first axis dY moves instead | a third for 3x3, two dY |
| taps | images innermost; for each tap, Gemm of the elements that it reads with dY, add | x and dY twice, two dW |
| batch | unfold all images, transpose, one Gemm | twice the columns of all images |
| swap | x convolved with dY: images for channels, strides for dilations; transposed | x and dY if N > 1, dW |
| apart | `swap` with separate groups for each image, then a sum; dY isn't moved | x if C/group > 1, N dW |
| flip | dY convolved with x, both reversed in space: dW has the right order of taps | x and dY |

`images` and `rows` can go through the channels in parts, which divides the columns and costs a dW for their Concat.
`taps` can go through the images in chunks. Groups have `swap` and `apart`; only `apart` doesn't move a depthwise
convolution's operands.

poetopt chooses the fastest construction whose operands and workspace stay within the RAM that the graph needs
elsewhere. Time estimates are fitted to onnxruntime's kernels. If none fits, it chooses the one with the least workspace
(`poetopt.autodiff.alternatives`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from poetopt.autodiff.alternatives import FLOPS_PER_NS, Costed, chosen, steps_ns
from poetopt.autodiff.emit import OperatorBuilder
from poetopt.graph import Tensor
from poetopt.ops.convolution.windows import Window


def weight_gradient(k: OperatorBuilder, x: Tensor, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    """Return the gradient of w [M, C/group, ...] from x [N, C, ...] and that of the output [N, M, ...]."""
    problem = WeightProblem(x, dy, w, window, group)
    constructions = candidates(problem, apart_in_groups=k.graph.over)
    return chosen(k.graph, constructions, x.nbytes + dy.nbytes).build(k)


def candidates(problem: WeightProblem, *, apart_in_groups: bool = True) -> Iterator[Costed]:
    """Yield every construction that is valid for the problem."""
    if problem.group == 1:
        yield from _image_constructions(problem)
        yield from _row_constructions(problem)
        yield from _tap_constructions(problem)
        yield from _whole_constructions(problem)
    elif apart_in_groups and problem.batch > 1:
        yield _apart_construction(problem)
    yield _swap_construction(problem)


def _product_ns(problem: WeightProblem) -> float:
    return 2.0 * problem.w.size * problem.batch * problem.positions / FLOPS_PER_NS


def _moved_elements(problem: WeightProblem) -> float:
    return problem.x.size + problem.dy.size if problem.batch > 1 else 0.0


def _unfold_ns(elements: float, taps: int, item: int) -> float:
    # elements beyond a core's cache have to be fetched again
    return (0.62 if elements * item < 1.6e6 else 0.7) * max(1.0, taps / 9) * elements


def _image_constructions(problem: WeightProblem) -> Iterator[Costed]:
    x, dy, w, n = problem.x, problem.dy, problem.w, problem.batch
    count, taps, positions = w.shape[1] * problem.window.taps, problem.window.taps, problem.positions
    for parts in (1, 2, 4, 8):
        if w.shape[1] % parts or (parts > 1 and problem.plain and n == 1):
            continue
        elements = 0 if problem.plain else count * positions / parts
        shared = (
            0.75 * _product_ns(problem)
            + n * (parts * _unfold_ns(elements, taps, problem.item) + 0.42 * w.size)
            + 0.32 * _moved_elements(problem)
            + (0.3 * w.size if parts > 1 else 0.0)
            + steps_ns(n * parts)
        )
        slices = dy.nbytes // n + x.nbytes // n // parts if n > 1 else x.nbytes if parts > 1 else 0
        for turned in (False, True):
            chained = min(n - 1, 2) * w.nbytes
            sums = w.nbytes + (w.nbytes // parts if n > 1 else 0) if parts > 1 or turned else chained
            # a Gemm packs its right operand
            packed = 0.13 * (w.shape[0] * parts if turned else count) * n * positions
            yield Costed(
                f"images/{parts}{'t' if turned else ''}",
                shared + packed + (w.size if turned else 0.0),
                max(problem.columns_bytes // parts + slices + sums, 2 * w.nbytes if turned and parts > 1 else 0),
                partial(images, problem=problem, parts=parts, turned=turned),
            )


def _row_constructions(problem: WeightProblem) -> Iterator[Costed]:
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
        yield Costed(
            f"rows/{parts}",
            0.75 * _product_ns(problem) * height / window.out[0]
            + n * (parts * _unfold_ns(columns / parts, taps, problem.item) + 0.21 * moved + 0.7 * w.size)
            + 0.14 * n * moved * parts
            + 3.9 * w.size
            + steps_ns(n * parts),
            max(_rows_bytes(problem, columns, moved, parts), 2 * w.nbytes),
            partial(rows, problem=problem, parts=parts),
        )


def _rows_bytes(problem: WeightProblem, columns: int, moved: int, parts: int) -> int:
    """Return the bytes that live beside the columns of one part: all moved dY of an image, or one and dY itself."""
    x, dy, w, n = problem.x, problem.dy, problem.w, problem.batch
    if parts > 1:
        return (columns // parts + moved) * problem.item + max(
            x.nbytes // n // parts, w.nbytes + w.nbytes // parts // 3
        )
    tall = problem.window.kernel[0]
    products = moved * problem.item // tall + w.nbytes + w.nbytes // tall
    return columns * problem.item + (dy.nbytes // n if n > 1 else 0) + max(x.nbytes // n, products)


def _tap_constructions(problem: WeightProblem) -> Iterator[Costed]:
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
        # during the transpose of an image there are two copies of it
        turning = max(planes, 2 * grads) if 1 < many < n else grads
        sums = w.nbytes + (w.nbytes // window.taps if chunks > 1 else 0) if chunks > 1 or window.taps > 1 else 0
        # with a stride on the last axis, runs in memory are only as long as the number of images
        runs = 2.0 / many * share * window.taps * columns if window.strides[-1] > 1 else 0.0
        yield Costed(
            f"taps/{chunk}",
            0.83 * _product_ns(problem) * share
            + (0.4 if chunk > 1 else 0.3) * _moved_elements(problem)
            + 0.25 * read
            + runs
            + 0.2 * share * window.taps * columns
            + (0.33 * (chunks - 1) + (0.8 if window.taps > 1 else 0.15)) * w.size
            + steps_ns(1 + chunks * window.taps // 2),
            max(planes + max(turning, grads + many * copied + sums), 2 * w.nbytes if window.taps > 1 else 0),
            partial(by_taps, problem=problem, chunk=chunk),
        )


def _whole_constructions(problem: WeightProblem) -> Iterator[Costed]:
    x, dy, w, n = problem.x, problem.dy, problem.w, problem.batch
    taps = problem.window.taps
    if problem.window.unit_stride:
        yield Costed(
            "flip",
            _product_ns(problem) / _gemm_share(taps, w.shape[1])
            + 0.4 * w.shape[0] * taps * x.size / w.shape[1]
            + _moved_elements(problem)
            + x.size
            + dy.size
            + 2 * steps_ns(1),
            _operand_bytes(problem) if n == 1 else _operand_bytes(problem) * 3 // 2,
            partial(flip, problem=problem),
        )
    if n > 1:
        yield _apart_construction(problem)
        columns = n * problem.columns_bytes
        yield Costed(
            "batch",
            0.9 * _product_ns(problem)
            + 1.5 * max(1.0, taps / 9) * columns / problem.item
            + 0.5 * w.size
            + 0.5 * _moved_elements(problem)
            + 2 * steps_ns(1),
            max(2 * columns, columns + dy.nbytes) if columns else _operand_bytes(problem),
            partial(unfolded_batch, problem=problem),
        )


def _swap_construction(problem: WeightProblem) -> Costed:
    dy, w, n, taps = problem.dy, problem.w, problem.batch, problem.window.taps
    width = w.shape[0] // problem.group
    unfolded = n * problem.positions * taps * problem.item if width > taps else 0
    return Costed(
        "swap",
        _product_ns(problem) / _gemm_share(taps, width)
        + 0.4 * problem.group * w.shape[1] * taps * n * problem.positions
        + _moved_elements(problem)
        + 1.5 * w.size
        + 2 * steps_ns(1),
        (_operand_bytes(problem) if n > 1 else dy.nbytes) + w.nbytes + unfolded,
        partial(swap, problem=problem),
    )


def _apart_construction(problem: WeightProblem) -> Costed:
    x, w, n, taps = problem.x, problem.w, problem.batch, problem.window.taps
    width = w.shape[0] // problem.group
    unfolded = problem.positions * taps * problem.item if width > taps else 0
    turned = x.nbytes if w.shape[1] > 1 else 0
    return Costed(
        "apart",
        _product_ns(problem) / _gemm_share(taps, width)
        + 0.4 * problem.group * w.shape[1] * taps * n * problem.positions
        + turned / problem.item
        + 1.5 * n * w.size
        + 2 * steps_ns(1),
        turned + n * w.nbytes + max(unfolded, w.nbytes),
        partial(apart, problem=problem),
    )


def _operand_bytes(problem: WeightProblem) -> int:
    """Return the bytes of x and dY."""
    return problem.x.nbytes + problem.dy.nbytes


def _gemm_share(taps: int, width: int) -> float:
    """Return the share of a Gemm's speed that remains with only `taps` columns: it works on 16 at a time."""
    return 0.85 * taps / (16 * -(-taps // 16)) * min(1.0, width / 8)


@dataclass(frozen=True)
class WeightProblem:
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
        """Return whether an image is its own unfolding."""
        window = self.window
        padded = any(window.before) or any(window.declared_after)
        return window.taps == 1 and window.unit_stride and not padded

    @property
    def columns_bytes(self) -> int:
        """Bytes of one unfolded image; 0 if it is its own unfolding."""
        return 0 if self.plain else self.w.shape[1] * self.window.taps * self.positions * self.item

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return self.x.nbytes // max(self.x.size, 1)


def unfold(k: OperatorBuilder, x: Tensor, problem: WeightProblem) -> Tensor:
    """Unfold x [N, C, ...] to [N, C taps, L]: convolve each plane with one-hot kernels, one per tap."""
    window = problem.window
    if problem.plain:
        return k.reshape(x, (*x.shape[:2], problem.positions))
    taps = window.taps
    kernels = k.graph.constant(np.eye(taps, dtype=x.dtype).reshape(taps, 1, *window.kernel))
    planes = k.reshape(x, (x.shape[0] * x.shape[1], 1, *window.size))
    pads = (*window.before, *window.declared_after)
    columns = k.conv(planes, kernels, strides=window.strides, dilations=window.dilations, pads=pads)
    return k.reshape(columns, (x.shape[0], x.shape[1] * taps, problem.positions))


def images(k: OperatorBuilder, problem: WeightProblem, parts: int = 1, *, turned: bool = False) -> Tensor:
    """Return dW image by image, and within an image by `parts` of the channels.

    Parameters
    ----------
    turned
        Whether the product is columns dY^T, and is transposed at the end: faster for fewer channels than columns.
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


def rows(k: OperatorBuilder, problem: WeightProblem, parts: int = 1) -> Tensor:
    """Return dW image by image: x is unfolded along all axes but the first, dY is moved along the first.

    The first axis needs a unit stride. Both operands get the rows of x with its pads, and rows that dY lacks are 0. The
    product has (H + taps - 1) / H of the operations, but unfolding has a fraction of the columns.
    """
    x, dy, w, window = problem.x, problem.dy, problem.w, problem.window
    tall, others = window.kernel[0], window.kernel[1:]
    row, taps = math.prod(window.out[1:]), math.prod(others)
    width, height = w.shape[1] // parts, window.size[0] + window.before[0] + window.after[0]
    kernels = k.graph.constant(np.eye(taps, dtype=x.dtype).reshape(taps, 1, 1, *others))
    sums: dict[tuple[int, int], Tensor] = {}
    for n in range(problem.batch):
        grads = k.reshape(k.slice(dy, [n], [n + 1], [0]), (w.shape[0], window.out[0] * row))
        # with one part, each moved dY lives only during its product
        moved = [_move_down(k, grads, tap, problem) for tap in range(tall)] if parts > 1 else None
        for part in range(parts):
            piece = k.slice(x, [n, part * width], [n + 1, (part + 1) * width], [0, 1])
            columns = k.conv(
                k.reshape(piece, (width, 1, *window.size)), kernels,
                strides=(1, *window.strides[1:]), dilations=(1, *window.dilations[1:]),
                pads=(*window.before, window.after[0], *window.declared_after[1:]),
            )  # fmt: skip
            columns = k.reshape(columns, (width * taps, height * row))
            for tap in range(tall):
                right = _move_down(k, grads, tap, problem) if moved is None else moved[tap]
                sums[part, tap] = k.gemm(columns, right, sums.get((part, tap)), trans_b=True)
    joined = k.concat([k.concat([sums[part, tap] for tap in range(tall)], 1) for part in range(parts)], 0)
    spread = k.reshape(joined, (w.shape[1], *others, tall, w.shape[0]))
    return k.transpose(spread, [1 + window.rank, 0, window.rank, *range(1, window.rank)])


def _move_down(k: OperatorBuilder, grads: Tensor, tap: int, problem: WeightProblem) -> Tensor:
    """Move dY of one image [M, L] to the rows of x that `tap` of the first axis reads: [M, L'] with rows of 0."""
    window = problem.window
    row, height = math.prod(window.out[1:]), window.size[0] + window.before[0] + window.after[0]
    above = tap * window.dilations[0] * row
    return k.pad(grads, [0, above], [0, height * row - grads.shape[1] - above])


def by_taps(k: OperatorBuilder, problem: WeightProblem, chunk: int) -> Tensor:
    """Return dW for `chunk` images at a time, and tap by tap.

    A tap multiplies dY at the positions where it reads x by these elements of x, both [channels, rest]. With the images
    innermost, both are contiguous. Elements in the pads are 0, and aren't computed.
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
            gradient = k.slice(grads, [o[0] for o in reads], [o[-1] + 1 for o in reads], axes)
            length = math.prod(gradient.shape[1:])
            left, right = k.reshape(gradient, (w.shape[0], length)), k.reshape(read, (w.shape[1], length))
            sums[tap] = k.gemm(left, right, sums.get(tap), trans_b=True)
    joined = k.concat([sums[tap] for tap in taps], 0)
    spread = k.reshape(joined, (*window.kernel, *w.shape[:2]))
    return k.transpose(spread, [window.rank, 1 + window.rank, *range(window.rank)])


def _axes(reads: list[range], tap: tuple[int, ...], window: Window) -> list[tuple[range, int, int, int, int]]:
    return list(zip(reads, window.strides, tap, window.dilations, window.before, strict=True))


def unfolded_batch(k: OperatorBuilder, problem: WeightProblem) -> Tensor:
    """Return dW of all images at once: one Gemm sums over images and positions."""
    w, length = problem.w, problem.batch * problem.positions
    columns = k.transpose(unfold(k, problem.x, problem), [1, 0, 2])
    grads = k.reshape(k.transpose(problem.dy, [1, 0, *range(2, 2 + problem.window.rank)]), (w.shape[0], length))
    return k.reshape(k.gemm(grads, k.reshape(columns, (columns.shape[0], length)), trans_b=True), w.shape)


def swap(k: OperatorBuilder, problem: WeightProblem) -> Tensor:
    """Return dW with swapped roles: x is convolved with dY."""
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


def apart(k: OperatorBuilder, problem: WeightProblem) -> Tensor:
    """Return dW with swapped roles and separate groups for each image, whose dW are summed: dY isn't moved."""
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


def flip(k: OperatorBuilder, problem: WeightProblem) -> Tensor:
    """Return dW as dY convolved with x, both reversed, so that the taps are in order; for unit strides."""
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
