"""Pooling and resizing of planes in C: whole, in chunks of planes, and in chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose, prod

import numpy as np

from poetopt.graph import DTYPE_BYTES, OWN_DOMAIN, Tensor
from poetopt.ops.runtimes.c.axes import Code, along
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel, block, c_float, called, real, refuse_types, two
from poetopt.ops.runtimes.c.tiling import ELEMENT_BYTES, OUTER, Chunk, ChunkSlice, Loop, Rows, Tiling


@dataclass(frozen=True, slots=True)
class _PoolingWindow:
    """Pooling of planes [planes, size] to [planes, out]: rows before columns."""

    planes: int
    out: tuple[int, int]
    size: tuple[int, int]
    kernel: tuple[int, int]
    steps: tuple[int, int]
    taps: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]

    def numbers(self) -> tuple[int, ...]:
        """Return the arguments of the header's functions, up to the pads before."""
        return (self.planes, *self.out, *self.size, *self.kernel, *self.steps, *self.taps, *self.before)

    @property
    def reach(self) -> int:
        """Rows from the first tap to the last."""
        return (self.kernel[0] - 1) * self.taps[0]

    def plane(self, rows: str, height: str, above: str) -> tuple[str | int, ...]:
        """Return `numbers` for some rows of a plane."""
        (_, columns), (_, width) = self.out, self.size
        return (
            1, rows, columns, height, width, *self.kernel, *self.steps, *self.taps, above, self.before[1],
        )  # fmt: skip


Line = Callable[[_PoolingWindow, Chunk, Sequence[str]], str]
"""Writer of the call for one plane p, from the addresses of its part of each operand, outputs first.

The input's rows in RAM are `first` to `last`.
"""


def pooled_rows(call: Call, window: _PoolingWindow, line: Line) -> tuple[Tiling, ...]:
    """Return the tiling by the outputs' rows, with the input's rows that their windows reach."""
    needed = Rows.read(window.size[0], window.steps[0], window.before[0], window.reach)
    return _row_tilings(call, window, window.out[0], needed, Rows(window.out[0]), line)


def spread_rows(call: Call, window: _PoolingWindow, line: Line) -> tuple[Tiling, ...]:
    """Return the tiling by the rows of the gradient by the input, with the inputs' rows whose windows meet them."""
    needed = Rows.meeting(window.out[0], window.steps[0], window.before[0], window.reach)
    return _row_tilings(call, window, window.size[0], needed, Rows(window.size[0]), line)


def _row_tilings(
    call: Call, window: _PoolingWindow, extent: int, needed: Rows, output_rows: Rows, line: Line
) -> tuple[Tiling, ...]:
    inside = 0 <= window.before[0] <= window.reach and (window.out[0] - 1) * window.steps[0] < window.size[0]
    if extent < 2 or not inside:
        return ()

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        first, last = needed.in_c(begin, f"{begin} + {count}")
        tensors, parts = (*call.outputs, *call.inputs), (*chunk.outputs, *chunk.inputs)
        at = [
            "NULL" if t is None else f"PO_AT({part.at}, (uint32_t)(p * ({part.apart})) * {DTYPE_BYTES[t.dtype]}u)"
            for t, part in zip(tensors, parts, strict=True)
        ]
        body = "\n".join(f"    {text}" for text in line(window, chunk, at).splitlines())
        return block(
            f"const int32_t first = {first}, last = {last};",
            f"for (int32_t p = 0; p < {window.planes}; ++p) {{\n{body}\n}}",
        )

    def slices(tensors: Sequence[Tensor | None], rows: Rows) -> tuple[ChunkSlice | None, ...]:
        return tuple(
            None if t is None else ChunkSlice(OUTER, t.shape[-1] * DTYPE_BYTES[t.dtype], prod(t.shape[:2]), rows)
            for t in tensors
        )

    return (Tiling(Loop(extent), None, slices(call.inputs, needed), slices(call.outputs, output_rows), code),)


HEADER = "po_pool.h"
NORM = "po_norm.h"


def _window(call: Call, x: Tensor, y: Tensor) -> _PoolingWindow:
    axes = len(x.shape) - 2

    pads = call.integers("pads", (0,) * 2 * axes)
    return _PoolingWindow(
        prod(x.shape[:2]), two(y.shape[2:], 1), two(x.shape[2:], 1), two(call.integers("kernel_shape"), 1),
        two(call.integers("strides", (1,) * axes), 1), two(call.integers("dilations", (1,) * axes), 1),
        two(pads[:axes], 0), two(pads[axes:], 0),
    )  # fmt: skip


def _refuses(call: Call) -> str | None:
    rank = len(call.input(0).shape)
    if rank not in (3, 4):
        return f"{call.node.op_type} over {rank - 2} axes is not supported; one or two are"
    if call.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or call.integer("storage_order", 0):
        return f"{call.node.op_type} with auto_pad or storage_order is not supported"
    return refuse_types(call, "float32", "int64", "int32")


def _max_pool(call: Call, arguments: Arguments, first: str = "0") -> str:
    x, y = call.input(0), call.output()
    indexed = len(call.outputs) > 1 and call.outputs[1] is not None
    where = arguments.outputs[1] if indexed else "NULL"
    wide = "_int64" if indexed and call.output(1).dtype == "int64" else ""
    numbers = _window(call, x, y).numbers()
    return called(f"po_max_pool{wide}", arguments.outputs[0], where, arguments.inputs[0], *numbers, first)


def _max_pool_gradient(call: Call, arguments: Arguments, first: str = "0") -> str:
    dy, where, dx = call.input(0), call.input(1), call.output()
    wide = "_int64" if where.dtype == "int64" else ""
    return called(f"po_max_pool_gradient{wide}", arguments.outputs[0], *arguments.inputs[:2], dx.size, dy.size, first)


def _average_pool(call: Call, arguments: Arguments) -> str:
    window, padded = _window(call, call.input(0), call.output()), call.integer("count_include_pad", 0)
    operands = arguments.outputs[0], arguments.inputs[0]
    return called("po_average_pool", *operands, *window.numbers(), *window.after, padded)


def _average_pool_gradient(call: Call, arguments: Arguments) -> str:
    window, padded = _window(call, call.output(), call.input(0)), call.integer("count_include_pad", 0)
    operands = arguments.outputs[0], arguments.inputs[0]
    return called("po_average_pool_gradient", *operands, *window.numbers(), *window.after, padded)


def _global_average(call: Call, arguments: Arguments) -> str:
    x = call.input(0)
    planes, size = prod(x.shape[:2]), prod(x.shape[2:])
    line = f"y[i] = po_row_sum(x + i * {size}, {size}, 1) * {c_float(1.0 / max(size, 1))};"
    return block(
        f"const float *x = {arguments.inputs[0]};",
        f"float *y = {arguments.outputs[0]};",
        f"for (int32_t i = 0; i < {planes}; ++i) {{\n    {line}\n}}",
    )


def _planes_refuse(call: Call) -> str | None:
    rank = len(call.output().shape)
    return (
        f"{call.node.op_type} over {rank - 2} axes is not supported; one or two are"
        if rank not in (3, 4)
        else real(call)
    )


def _max_pool_rows(call: Call) -> tuple[Tiling, ...]:
    def line(window: _PoolingWindow, chunk: Chunk, at: Sequence[str]) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        y, where, x = at if len(at) == 3 else (at[0], "NULL", at[1])
        wide = "_int64" if len(at) == 3 and where != "NULL" and call.output(1).dtype == "int64" else ""
        above = f"{window.before[0]} + first - {begin} * {window.steps[0]}"
        first = f"(p * {window.size[0]} + first) * {window.size[1]}"
        return called(f"po_max_pool{wide}", y, where, x, *window.plane(count, "last - first", above), first)

    return pooled_rows(call, _window(call, call.input(0), call.output()), line)


def _average_pool_rows(call: Call) -> tuple[Tiling, ...]:
    padded = call.integer("count_include_pad", 0)

    def line(window: _PoolingWindow, chunk: Chunk, at: Sequence[str]) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        above = f"{window.before[0]} + first - {begin} * {window.steps[0]}"
        below = f"{window.size[0] + window.after[0]} - last"
        return called(
            "po_average_pool", *at, *window.plane(count, "last - first", above), below, window.after[1], padded
        )

    return pooled_rows(call, _window(call, call.input(0), call.output()), line)


def _average_pool_gradient_rows(call: Call) -> tuple[Tiling, ...]:
    padded = call.integer("count_include_pad", 0)

    def line(window: _PoolingWindow, chunk: Chunk, at: Sequence[str]) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        above = f"{window.before[0]} + {begin} - first * {window.steps[0]}"
        return called(
            "po_average_pool_gradient_rows", *at, *window.plane("last - first", count, above), *window.after, padded,
            begin, window.size[0], window.before[0],
        )  # fmt: skip

    return spread_rows(call, _window(call, call.output(), call.input(0)), line)


def _by_plane(
    code: Code, by_rows: Callable[[Call], tuple[Tiling, ...]] | None = None
) -> Callable[[Call], tuple[Tiling, ...]]:
    """Return a function for the tilings by planes, and by rows."""

    def tilings(call: Call) -> tuple[Tiling, ...]:
        planes = along(code, call, [1] * len(call.inputs), [1] * len(call.outputs), merged=True)
        return planes if by_rows is None else (*planes, *by_rows(call))

    return tilings


def _by_indexed_plane(
    code: Callable[[Call, Arguments, str], str], wide: int, by_rows: Callable[[Call], tuple[Tiling, ...]] | None = None
) -> Callable[[Call], tuple[Tiling, ...]]:
    """Return `_by_plane` for code with indices into a whole operand (0: the input, 1: the output).

    The code gets the index of the chunk's first element.
    """

    def tilings(call: Call) -> tuple[Tiling, ...]:
        shape = (call.output() if wide else call.input(0)).shape
        unit = prod(shape[2:])

        def begun(call: Call, arguments: Arguments, begin: str) -> str:
            return code(call, arguments, f"{begin} * {unit}")

        planes = along(_max_pool, call, [1] * len(call.inputs), [1] * len(call.outputs), begun, merged=True)
        return planes if by_rows is None else (*planes, *by_rows(call))

    return tilings


MAX_TILINGS = _by_indexed_plane(_max_pool, 0, _max_pool_rows)


ResizingLine = Callable[[Call, tuple[str, str], Sequence[str | int]], str]
"""Writer of C from the call, the addresses of y and x, and numbers.

The numbers are planes, the first row of y, the number of rows, the first row of x, and the strides of y's and x's
planes.
"""


def resized_rows(call: Call, planes: int, needed: Rows, line: ResizingLine) -> tuple[Tiling, ...]:
    """Return the tiling by y's rows; rows of x that the next chunk needs stay in RAM."""
    x, y = call.input(0), call.output()
    rows = prod(y.shape[2:-1])

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        first, _ = needed.in_c(begin, f"{begin} + {count}")
        x_part, y_part = chunk.inputs[0], chunk.outputs[0]
        at = planes, begin, count, "first", f"({y_part.apart})", f"({x_part.apart})"
        return block(f"const int32_t first = {first};", line(call, (y_part.at, x_part.at), at))

    def cut(width: int, of: Rows) -> ChunkSlice:
        return ChunkSlice(OUTER, ELEMENT_BYTES * width, planes, of)

    inputs = cut(x.shape[-1], needed), *(None for _ in call.inputs[1:])
    return (Tiling(Loop(rows), None, inputs, (cut(y.shape[-1], Rows(rows)),), code),)


PLACES = {
    "half_pixel": "PO_HALF_PIXEL", "asymmetric": "PO_ASYMMETRIC", "align_corners": "PO_ALIGN_CORNERS",
    "pytorch_half_pixel": "PO_TORCH_HALF_PIXEL",
}  # fmt: skip
"""C constants of coordinate_transformation_mode, which maps positions of y to x."""
TIES = {
    "round_prefer_floor": "PO_PREFER_FLOOR", "round_prefer_ceil": "PO_PREFER_CEIL", "floor": "PO_FLOOR",
    "ceil": "PO_CEIL",
}  # fmt: skip
REACH = {"nearest": 2, "linear": 2, "cubic": 3}
"""Rows of x that a chunk needs beside those of its begin and end: neighbours, and one for rounding."""


@dataclass(frozen=True, slots=True)
class _ResizeSizes:
    """Planes of y [out] and x [size], rows before columns, and the ratio of y's length to x's."""

    planes: int
    out: tuple[int, int]
    size: tuple[int, int]
    scale: tuple[float, float]


def _sizes(call: Call) -> _ResizeSizes:
    x, y = call.input(0), call.output()
    out, size = two(y.shape[2:], 1), two(x.shape[2:], 1)
    scales = call.value(2)
    scale = [o / max(n, 1) for o, n in zip(out, size, strict=True)]
    if scales is not None and scales.size:
        rank = len(x.shape)
        cut = [axis % rank for axis in call.integers("axes", tuple(range(rank)))]
        for axis, value in zip(cut, np.asarray(scales, np.float64).reshape(-1), strict=True):
            if axis >= 2:
                scale[axis - rank] = float(value)
    return _ResizeSizes(prod(x.shape[:2]), out, size, (scale[0], scale[1]))


def _resize_refuses(call: Call) -> str | None:
    x, y = call.input(0), call.output()
    if len(x.shape) not in (3, 4) or x.shape[:2] != y.shape[:2] or not x.size:
        return f"{call.node.op_type} is supported along one or two spatial axes only"
    mode, places = call.text("mode", "nearest"), call.text("coordinate_transformation_mode", "half_pixel")
    if mode not in REACH or places not in PLACES:
        return f"{call.node.op_type} in mode {mode} with {places} is not supported"
    if call.integer("antialias", 0) or call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return f"{call.node.op_type} with antialias or keep_aspect_ratio_policy is not supported"
    return None if x.dtype == "float32" else real(call)


def _resize_line(call: Call, operands: tuple[str, str], at: Sequence[str | int]) -> str:
    """Return the call of a Resize; `at` has the numbers of `ResizingLine`."""
    sizes, (planes, begin, count, first, y_apart, x_apart) = _sizes(call), at
    numbers = planes, begin, count, *sizes.out, *sizes.size, first, y_apart, x_apart, *sizes.scale
    places = PLACES[call.text("coordinate_transformation_mode", "half_pixel")]
    if call.text("mode", "nearest") == "linear":
        return called("po_resize_linear", *operands, *numbers, places)
    if call.text("mode", "nearest") == "cubic":
        within = int(bool(call.integer("exclude_outside", 0)))
        return called("po_resize_cubic", *operands, *numbers, places, call.number("cubic_coeff_a", -0.75), within)
    ties = TIES[call.text("nearest_mode", "round_prefer_floor")]
    return called("po_resize_nearest", *operands, *numbers, places, ties)


def _resize(call: Call, arguments: Arguments) -> str:
    sizes = _sizes(call)
    at = sizes.planes, 0, sizes.out[0], 0, prod(sizes.out), prod(sizes.size)
    return _resize_line(call, (arguments.outputs[0], arguments.inputs[0]), at)


def _resize_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tilings by planes, and by rows if the scale equals the ratio of the lengths."""
    sizes = _sizes(call)
    rest = [None for _ in call.inputs[1:]]
    planes = along(_resize, call, [1, *rest], [1], merged=True)
    (rows, _), (height, _) = sizes.out, sizes.size
    if rows < 2 or not isclose(sizes.scale[0], rows / height, rel_tol=1e-6):
        return planes
    step, per = height, rows
    if call.text("coordinate_transformation_mode", "half_pixel") == "align_corners":
        step, per = max(height - 1, 1), max(rows - 1, 1)
    reach = REACH[call.text("mode", "nearest")]
    needed = Rows(height, step, per, -reach * per, (reach + 1) * per)
    return (*planes, *resized_rows(call, sizes.planes, needed, _resize_line))


KERNELS: tuple[Kernel, ...] = (
    Kernel("MaxPool", _max_pool, refuses=_refuses, headers=(HEADER,), tilings=MAX_TILINGS),
    Kernel("MaxPool.indexed", _max_pool, OWN_DOMAIN, _refuses, headers=(HEADER,), tilings=MAX_TILINGS),
    Kernel(
        "MaxPool.grad_input", _max_pool_gradient, OWN_DOMAIN,
        lambda call: refuse_types(call, "float32", "int64", "int32"), headers=(HEADER,),
        tilings=_by_indexed_plane(_max_pool_gradient, 1),
    ),
    Kernel(
        "AveragePool", _average_pool, refuses=_refuses, headers=(HEADER,),
        tilings=_by_plane(_average_pool, _average_pool_rows),
    ),
    Kernel(
        "AveragePool.grad_input", _average_pool_gradient, OWN_DOMAIN, _planes_refuse, headers=(HEADER,),
        tilings=_by_plane(_average_pool_gradient, _average_pool_gradient_rows),
    ),
    Kernel("GlobalAveragePool", _global_average, refuses=real, headers=(NORM,), tilings=_by_plane(_global_average)),
    Kernel(
        "Resize", _resize, refuses=_resize_refuses, constants=(1, 2, 3), tilings=_resize_tilings,
        headers=("po_resize.h",),
    ),
)  # fmt: skip
