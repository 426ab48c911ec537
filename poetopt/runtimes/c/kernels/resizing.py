"""Resize of planes along one or two axes: nearest elements, means of the neighbours, or cubic ones of four."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose, prod

import numpy as np

from poetopt.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.runtimes.c.tiles.axes import along
from poetopt.runtimes.c.tiles.resizes import resized_rows
from poetopt.runtimes.c.tiles.tiling import Rows, Tiling
from poetopt.runtimes.c.write import called, refuse_types

HEADER = "po_resize.h"
PLACES = {
    "half_pixel": "PO_HALF_PIXEL", "asymmetric": "PO_ASYMMETRIC", "align_corners": "PO_ALIGN_CORNERS",
    "pytorch_half_pixel": "PO_TORCH_HALF_PIXEL",
}  # fmt: skip
"""How places of y lie among those of x, by coordinate_transformation_mode."""
TIES = {
    "round_prefer_floor": "PO_PREFER_FLOOR", "round_prefer_ceil": "PO_PREFER_CEIL", "floor": "PO_FLOOR",
    "ceil": "PO_CEIL",
}  # fmt: skip
REACH = {"nearest": 2, "linear": 2, "cubic": 3}
"""Rows of x that are had beside those where a chunk's begin and end lie: neighbours, and one for rounding."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Planes of y [out] and x [size], rows before columns, and y's length over x's."""

    planes: int
    out: tuple[int, int]
    size: tuple[int, int]
    scale: tuple[float, float]


def _sizes(call: Call) -> _Sizes:
    x, y = call.input(0), call.output()
    axes = len(x.shape) - 2

    def two(values: Sequence[int], filler: int) -> tuple[int, int]:
        found = (filler,) * (2 - axes) + tuple(values)
        return found[0], found[1]

    out, size = two(y.shape[2:], 1), two(x.shape[2:], 1)
    given = call.value(2)
    scale = [o / max(n, 1) for o, n in zip(out, size, strict=True)]
    if given is not None and given.size:
        rank = len(x.shape)
        cut = [axis % rank for axis in call.integers("axes", tuple(range(rank)))]
        for axis, value in zip(cut, np.asarray(given, np.float64).reshape(-1), strict=True):
            if axis >= 2:
                scale[axis - rank] = float(value)
    return _Sizes(prod(x.shape[:2]), out, size, (scale[0], scale[1]))


def _refuses(call: Call) -> str | None:
    x, y = call.input(0), call.output()
    if len(x.shape) not in (3, 4) or x.shape[:2] != y.shape[:2] or not x.size:
        return f"{call.node.op_type} of other axes than one or two of planes"
    mode, places = call.text("mode", "nearest"), call.text("coordinate_transformation_mode", "half_pixel")
    if mode not in REACH or places not in PLACES:
        return f"{call.node.op_type} in mode {mode} with {places}"
    if call.integer("antialias", 0) or call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return f"{call.node.op_type} with antialias or keep_aspect_ratio_policy"
    return None if x.dtype == "float32" else refuse_types(call, "float32")


def _line(call: Call, operands: tuple[str, str], at: Sequence[str | int]) -> str:
    """`at`: planes, the first row and how many, the first one of x, and how far apart the planes of y and x lie."""
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
    return _line(call, (arguments.outputs[0], arguments.inputs[0]), at)


def _tilings(call: Call) -> tuple[Tiling, ...]:
    """Chunks of planes, and of rows where the scale is that of the lengths."""
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
    return (*planes, *resized_rows(call, sizes.planes, needed, _line))


KERNELS: tuple[Kernel, ...] = (
    Kernel("Resize", _resize, refuses=_refuses, constants=(1, 2, 3), tilings=_tilings, headers=(HEADER,)),
)
