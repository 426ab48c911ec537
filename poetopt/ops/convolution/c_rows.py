"""Convolutions in C by rows: rows that the taps of two neighbouring chunks reach stay in RAM.

Each row has the sums of the plain kernel. The plain kernel also sums a gradient by the weights row after row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from poetopt.graph import Tensor
from poetopt.ops.elementwise.updates import declared
from poetopt.ops.runtimes.c.kernel import Arguments, Call, block, called, loops, two
from poetopt.ops.runtimes.c.tiling import ELEMENT_BYTES, OUTER, PART, Chunk, ChunkSlice, Loop, Rows, Tiling


@dataclass(frozen=True)
class Geometry:
    """A convolution of two axes: x [images, groups * ins, size], w [groups * outs, ins, kernel], y [.., out]."""

    images: int
    groups: int
    outs: int
    ins: int
    out: tuple[int, int]
    size: tuple[int, int]
    kernel: tuple[int, int]
    steps: tuple[int, int]
    taps: tuple[int, int]
    before: tuple[int, int]

    @property
    def reach(self) -> int:
        """Rows from the first tap to the last."""
        return (self.kernel[0] - 1) * self.taps[0]

    @property
    def pointwise(self) -> bool:
        """Return whether it is a matrix product for each image."""
        one = self.kernel == (1, 1) and self.steps == (1, 1) and self.before == (0, 0)
        return one and self.groups == 1 and self.out == self.size

    def numbers(self) -> tuple[int, ...]:
        """Return the arguments of the header's functions, in order."""
        return (
            self.images, self.groups, self.outs, self.ins, *self.out, *self.size, *self.kernel, *self.steps,
            *self.taps, *self.before,
        )  # fmt: skip


def geometry(call: Call, x: Tensor, w: Tensor, y: Tensor) -> Geometry:
    """Return the convolution of x with w to y, with the attributes of the call."""
    axes = len(x.shape) - 2
    groups = call.integer("group", 1)

    steps = call.integers("strides", (1,) * axes)
    taps = call.integers("dilations", (1,) * axes)
    before = call.integers("pads", (0,) * 2 * axes)[:axes]
    where = call.text("auto_pad", "NOTSET")
    if where.startswith("SAME"):
        reach = zip(x.shape[2:], y.shape[2:], w.shape[2:], steps, taps, strict=True)
        total = [max((o - 1) * s + (k - 1) * t + 1 - d, 0) for d, o, k, s, t in reach]
        before = tuple(p // 2 if where == "SAME_UPPER" else p - p // 2 for p in total)
    return Geometry(
        x.shape[0], groups, w.shape[0] // groups, w.shape[1], two(y.shape[2:], 1), two(x.shape[2:], 1),
        two(w.shape[2:], 1), two(steps, 1), two(taps, 1), two(before, 0),
    )  # fmt: skip


def forward_rows(call: Call, dims: Geometry) -> tuple[Tiling, ...]:
    """Return the tiling by y's rows, with the rows of x that they need."""
    if not _can_cut_rows(dims):
        return ()
    (rows, columns), width, taps = dims.out, dims.size[1], prod(dims.kernel)
    needed = _input_rows(dims)

    def code(call: Call, chunk: Chunk) -> str:
        top = f"{chunk.begin[OUTER]} * {dims.steps[0]} - {dims.before[0]} - first"
        line = called(
            "po_conv", "y", "x", "w", _bias(call, chunk, dims.outs), dims.outs, dims.ins, chunk.count[OUTER],
            columns, chunk.outputs[0].apart, columns, 1, chunk.inputs[0].apart, "last - first", width, *dims.kernel,
            dims.ins * taps, taps, dims.kernel[1], 1, top, dims.steps[0], dims.taps[0], -dims.before[1],
            dims.steps[1], dims.taps[1], 0, 0,
        )  # fmt: skip
        return _for_groups(chunk, dims, needed, (dims.ins, dims.outs), line)

    x, y = _slice(dims, dims.ins, width, needed), _slice(dims, dims.outs, columns, Rows(rows))
    return (Tiling(Loop(rows), None, (x, *(None for _ in call.inputs[1:])), (y,), code),)


def input_rows(call: Call, dims: Geometry) -> tuple[Tiling, ...]:
    """Return the tiling by dx's rows, with the rows of dy that meet them."""
    (height, width), (rows, columns), step = dims.size, dims.out, dims.steps[0]
    if not _can_cut_rows(dims) or height <= step:
        return ()
    before = dims.before[0]
    needed = Rows.meeting(rows, step, before, dims.reach)

    def code(call: Call, chunk: Chunk) -> str:
        line = called(
            "po_image_by_input", "y", "x", "w", _bias(call, chunk, dims.ins), dims.outs, dims.ins, "last - first",
            columns, chunk.count[OUTER], width, *dims.kernel, *dims.steps, *dims.taps,
            f"{before} + {chunk.begin[OUTER]} - {step} * first", dims.before[1], chunk.outputs[0].apart,
            chunk.inputs[0].apart, dims.ins * prod(dims.kernel), 0,
        )  # fmt: skip
        return _for_groups(chunk, dims, needed, (dims.outs, dims.ins), line)

    dy, dx = _slice(dims, dims.outs, columns, needed), _slice(dims, dims.ins, width, Rows(height))
    return (Tiling(Loop(height, step), None, (dy, *(None for _ in call.inputs[1:])), (dx,), code),)


def weight_rows(call: Call, dims: Geometry, optimizer: str) -> tuple[Tiling, ...]:
    """Return the tiling by dy's rows, with the rows of x that they meet.

    Partial sums lie in dW; with an optimizer, they lie beside the updated weights.
    """
    if dims.images != 1 or not _can_cut_rows(dims):
        return ()
    needed = _input_rows(dims)

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        above = f"{dims.before[0]} + first - {begin} * {dims.steps[0]}"
        planes = count, dims.out[1], "last - first", dims.size[1]
        return block(_declare_rows(chunk, needed), _add_chunk(call, chunk, dims, optimizer, planes, above, dims.out[0]))

    dy, x = _slice(dims, dims.outs, dims.out[1], Rows(dims.out[0])), _slice(dims, dims.ins, dims.size[1], needed)
    return (_sum_tiling(call, dims, Loop(dims.out[0]), (dy, x), code, optimizer),)


def weight_pixels(call: Call, dims: Geometry, optimizer: str) -> tuple[Tiling, ...]:
    """Return the tiling of a gradient by pointwise weights by pixels, in the parts that the plain kernel sums up."""
    pixels = prod(dims.out)
    if dims.images != 1 or not dims.pointwise or pixels <= PART:
        return ()

    def code(call: Call, chunk: Chunk) -> str:
        count = chunk.count[OUTER]
        return _add_chunk(call, chunk, dims, optimizer, (1, count, 1, count), "0", pixels)

    dy, x = (_slice(dims, channels, 1, Rows(pixels)) for channels in (dims.outs, dims.ins))
    return (_sum_tiling(call, dims, Loop(pixels, PART), (dy, x), code, optimizer),)


def _can_cut_rows(dims: Geometry) -> bool:
    """Return whether there are rows, no pad is wider than the taps' reach, and it isn't pointwise."""
    return dims.out[0] > 1 and 0 <= dims.before[0] <= dims.reach and not dims.pointwise


def _input_rows(dims: Geometry) -> Rows:
    """Return the rows of x that rows of y need."""
    return Rows.read(dims.size[0], dims.steps[0], dims.before[0], dims.reach)


def _slice(dims: Geometry, channels: int, columns: int, rows: Rows) -> ChunkSlice:
    return ChunkSlice(OUTER, ELEMENT_BYTES * columns, dims.images * dims.groups * channels, rows)


def _bias(call: Call, chunk: Chunk, channels: int) -> str:
    return f"(const float *){chunk.inputs[2].at} + g * {channels}" if call.has(2) else "NULL"


def _declare_rows(chunk: Chunk, needed: Rows) -> str:
    begin, count = chunk.begin[OUTER], chunk.count[OUTER]
    first, last = needed.in_c(begin, f"{begin} + {count}")
    return f"const int32_t first = {first}, last = {last};"


def _for_groups(chunk: Chunk, dims: Geometry, needed: Rows, channels: tuple[int, int], line: str) -> str:
    """Return C with a call for each group of each image; `channels` are x's and y's, x has rows `first` to `last`."""
    x, y = chunk.inputs[0], chunk.outputs[0]
    image = f"(i0 * {dims.groups} + g)"
    body = block(
        "const int32_t g = i1;",
        f"const float *x = (const float *){x.at} + {image} * {channels[0]} * ({x.apart});",
        f"float *y = (float *){y.at} + {image} * {channels[1]} * ({y.apart});",
        f"const float *w = (const float *){chunk.inputs[1].at} + g * {dims.outs * dims.ins * prod(dims.kernel)};",
        line,
    )
    return block(_declare_rows(chunk, needed), loops((dims.images, dims.groups), body))


def _sum_tiling(
    call: Call,
    dims: Geometry,
    loop: Loop,
    slices: tuple[ChunkSlice, ChunkSlice],
    code: Callable[[Call, Chunk], str],
    optimizer: str,
) -> Tiling:
    """Return a tiling of dy and x; with an optimizer, scratch has sums as large as the weights."""
    nbytes = ELEMENT_BYTES * dims.groups * dims.outs * dims.ins * prod(dims.kernel) if optimizer else 0
    inputs, outputs = (*slices, *(None for _ in call.inputs[2:])), tuple(None for _ in call.outputs)
    return Tiling(loop, None, inputs, outputs, code, scratch_bytes=lambda outer: nbytes)


def _add_chunk(
    call: Call,
    chunk: Chunk,
    dims: Geometry,
    optimizer: str,
    planes: tuple[str | int, ...],
    above: str,
    extent: int,
) -> str:
    """Return C that adds a chunk to the sums; with an optimizer, it updates after all `extent` steps.

    Parameters
    ----------
    planes
        Rows and columns of dy, and of x.
    """
    news = [f"(float *){part.at}" for part in chunk.outputs]
    olds = [f"(float *){part.at}" for part in chunk.inputs[2 : 2 + len(news)]] if optimizer else []
    declarations, target = written_to(call, chunk, optimizer, olds, news)
    begin, count = chunk.begin[OUTER], chunk.count[OUTER]
    dy, x = chunk.inputs[:2]
    return block(
        *declarations,
        called(
            "po_images_by_weight", *target, dy.at, x.at, 1, dims.groups, dims.outs, dims.ins, *planes,
            *dims.kernel, *dims.steps, *dims.taps, above, dims.before[1], 0, 0, dy.apart, x.apart,
            dims.ins * prod(dims.kernel), chunk.scratch if optimizer else news[0], f"{begin} == 0",
            f"{begin} + {count} == {extent}",
        ),
    )  # fmt: skip


def written_to(
    call: Call, chunk: Chunk, optimizer: str, olds: Sequence[str], news: Sequence[str]
) -> tuple[list[str], tuple[str, str]]:
    """Return declarations, and the arguments of `po_images_by_weight` for the destination of a gradient by weights.

    Parameters
    ----------
    olds, news
        The weights and the optimizer's states before and after their update; without an optimizer, dW.
    """
    if not optimizer:
        return [], (news[0], "NULL")
    scalars = 2 + len(olds)
    arguments = Arguments(("", "", *olds, *(part.at for part in chunk.inputs[scalars:])), tuple(news))
    return declared(call, arguments, optimizer, tuple(range(2, scalars)), scalars), ("NULL", "&u")
