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
        """Whether it is a matrix product for each image."""
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


def forward_rows(call: Call, found: Geometry) -> tuple[Tiling, ...]:
    """Return the tiling by y's rows, with the rows of x that they need."""
    if not _by_rows(found):
        return ()
    (rows, columns), width, taps = found.out, found.size[1], prod(found.kernel)
    needed = _met(found)

    def code(call: Call, chunk: Chunk) -> str:
        top = f"{chunk.begin[OUTER]} * {found.steps[0]} - {found.before[0]} - first"
        line = called(
            "po_conv", "y", "x", "w", _bias(call, chunk, found.outs), found.outs, found.ins, chunk.count[OUTER],
            columns, chunk.outputs[0].apart, columns, 1, chunk.inputs[0].apart, "last - first", width, *found.kernel,
            found.ins * taps, taps, found.kernel[1], 1, top, found.steps[0], found.taps[0], -found.before[1],
            found.steps[1], found.taps[1], 0, 0,
        )  # fmt: skip
        return _grouped(chunk, found, needed, (found.ins, found.outs), line)

    x, y = _slice(found, found.ins, width, needed), _slice(found, found.outs, columns, Rows(rows))
    return (Tiling(Loop(rows), None, (x, *(None for _ in call.inputs[1:])), (y,), code),)


def input_rows(call: Call, found: Geometry) -> tuple[Tiling, ...]:
    """Return the tiling by dx's rows, with the rows of dy that meet them."""
    (height, width), (rows, columns), step = found.size, found.out, found.steps[0]
    if not _by_rows(found) or height <= step:
        return ()
    before = found.before[0]
    needed = Rows.meeting(rows, step, before, found.reach)

    def code(call: Call, chunk: Chunk) -> str:
        line = called(
            "po_image_by_input", "y", "x", "w", _bias(call, chunk, found.ins), found.outs, found.ins, "last - first",
            columns, chunk.count[OUTER], width, *found.kernel, *found.steps, *found.taps,
            f"{before} + {chunk.begin[OUTER]} - {step} * first", found.before[1], chunk.outputs[0].apart,
            chunk.inputs[0].apart, found.ins * prod(found.kernel), 0,
        )  # fmt: skip
        return _grouped(chunk, found, needed, (found.outs, found.ins), line)

    dy, dx = _slice(found, found.outs, columns, needed), _slice(found, found.ins, width, Rows(height))
    return (Tiling(Loop(height, step), None, (dy, *(None for _ in call.inputs[1:])), (dx,), code),)


def weight_rows(call: Call, found: Geometry, optimizer: str) -> tuple[Tiling, ...]:
    """Return the tiling by dy's rows, with the rows of x that they meet.

    Partial sums lie in dW; with an optimizer, they lie beside the updated weights.
    """
    if found.images != 1 or not _by_rows(found):
        return ()
    needed = _met(found)

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        above = f"{found.before[0]} + first - {begin} * {found.steps[0]}"
        planes = count, found.out[1], "last - first", found.size[1]
        return block(_span(chunk, needed), _updating(call, chunk, found, optimizer, planes, above, found.out[0]))

    dy, x = _slice(found, found.outs, found.out[1], Rows(found.out[0])), _slice(found, found.ins, found.size[1], needed)
    return (_summing(call, found, Loop(found.out[0]), (dy, x), code, optimizer),)


def weight_pixels(call: Call, found: Geometry, optimizer: str) -> tuple[Tiling, ...]:
    """Return the tiling of a gradient by pointwise weights by pixels, in the parts that the plain kernel sums up."""
    pixels = prod(found.out)
    if found.images != 1 or not found.pointwise or pixels <= PART:
        return ()

    def code(call: Call, chunk: Chunk) -> str:
        count = chunk.count[OUTER]
        return _updating(call, chunk, found, optimizer, (1, count, 1, count), "0", pixels)

    dy, x = (_slice(found, channels, 1, Rows(pixels)) for channels in (found.outs, found.ins))
    return (_summing(call, found, Loop(pixels, PART), (dy, x), code, optimizer),)


def _by_rows(found: Geometry) -> bool:
    """Return whether there are rows, no pad is wider than the taps' reach, and it isn't pointwise."""
    return found.out[0] > 1 and 0 <= found.before[0] <= found.reach and not found.pointwise


def _met(found: Geometry) -> Rows:
    """Return the rows of x that rows of y need."""
    return Rows.read(found.size[0], found.steps[0], found.before[0], found.reach)


def _slice(found: Geometry, channels: int, columns: int, rows: Rows) -> ChunkSlice:
    return ChunkSlice(OUTER, ELEMENT_BYTES * columns, found.images * found.groups * channels, rows)


def _bias(call: Call, chunk: Chunk, channels: int) -> str:
    return f"(const float *){chunk.inputs[2].at} + g * {channels}" if call.has(2) else "NULL"


def _span(chunk: Chunk, needed: Rows) -> str:
    begin, count = chunk.begin[OUTER], chunk.count[OUTER]
    first, last = needed.in_c(begin, f"{begin} + {count}")
    return f"const int32_t first = {first}, last = {last};"


def _grouped(chunk: Chunk, found: Geometry, needed: Rows, channels: tuple[int, int], line: str) -> str:
    """Return C with a call for each group of each image; `channels` are x's and y's, x has rows `first` to `last`."""
    x, y = chunk.inputs[0], chunk.outputs[0]
    image = f"(i0 * {found.groups} + g)"
    body = block(
        "const int32_t g = i1;",
        f"const float *x = (const float *){x.at} + {image} * {channels[0]} * ({x.apart});",
        f"float *y = (float *){y.at} + {image} * {channels[1]} * ({y.apart});",
        f"const float *w = (const float *){chunk.inputs[1].at} + g * {found.outs * found.ins * prod(found.kernel)};",
        line,
    )
    return block(_span(chunk, needed), loops((found.images, found.groups), body))


def _summing(
    call: Call,
    found: Geometry,
    loop: Loop,
    taken: tuple[ChunkSlice, ChunkSlice],
    code: Callable[[Call, Chunk], str],
    optimizer: str,
) -> Tiling:
    """Return a tiling of dy and x; with an optimizer, scratch has sums as large as the weights."""
    nbytes = ELEMENT_BYTES * found.groups * found.outs * found.ins * prod(found.kernel) if optimizer else 0
    inputs, outputs = (*taken, *(None for _ in call.inputs[2:])), tuple(None for _ in call.outputs)
    return Tiling(loop, None, inputs, outputs, code, scratch_bytes=lambda outer: nbytes)


def _updating(
    call: Call,
    chunk: Chunk,
    found: Geometry,
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
            "po_images_by_weight", *target, dy.at, x.at, 1, found.groups, found.outs, found.ins, *planes,
            *found.kernel, *found.steps, *found.taps, above, found.before[1], 0, 0, dy.apart, x.apart,
            found.ins * prod(found.kernel), chunk.scratch if optimizer else news[0], f"{begin} == 0",
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
