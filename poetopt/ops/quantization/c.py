"""DequantizeLinear in C: one loop nest, which finds the scale of each element by its place."""

from __future__ import annotations

from poetopt.ops.nodes import around
from poetopt.ops.quantization import Sharing, sharing
from poetopt.ops.runtimes.c.axes import along
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel, block, loops, read, written
from poetopt.ops.runtimes.c.tiling import Tiling

_INTEGERS = ("int8", "uint8", "int32")


def _sharing(call: Call) -> Sharing:
    return sharing(call.shape(0), call.shape(1), call.integer("axis", 1), call.integer("block_size", 0))


def _refuses(call: Call) -> str | None:
    if call.input(0).dtype not in _INTEGERS:
        return f"DequantizeLinear of {call.input(0).dtype}: it has {', '.join(_INTEGERS)}"
    if {call.input(1).dtype, call.output().dtype} != {"float32"}:
        return f"DequantizeLinear to {call.output().dtype}: it has float32"
    return None


def _code(call: Call, arguments: Arguments) -> str:
    x, (axis, size) = call.input(0), _sharing(call)
    before, along_axis, behind = around(x.shape, axis) if axis is not None else (1, 1, x.size)
    scale = "0" if axis is None else "i1"
    if size:
        scale = f"(i0 * {-(-along_axis // size)} + i1 / {size}) * {behind} + i2"
    zero = f" - z[{scale}]" if call.has(2) else ""
    place = f"(i0 * {along_axis} + i1) * {behind} + i2"
    # integers are subtracted as integers, as onnxruntime does; a difference of int32 could leave its type, zeros can't
    body = f"const int32_t i = {place};\ny[i] = (float)(x[i]{zero}) * s[{scale}];"
    return block(
        read("x", x, arguments.inputs[0]),
        read("s", call.input(1), arguments.inputs[1]),
        *([read("z", call.input(2), arguments.inputs[2])] if call.has(2) else []),
        written("y", call.output(), arguments.outputs[0]),
        loops((before, along_axis, behind), body),
    )


def _tilings(call: Call) -> tuple[Tiling, ...]:
    """Chunks along each axis, but the one that blocks lie along."""
    (axis, size), found = _sharing(call), []
    for cut, extent in enumerate(call.shape(0)):
        if extent < 2 or (size and cut == axis):
            continue
        scale = cut if size else 0 if cut == axis else None
        found += along(_code, call, (cut, *(scale for _ in call.inputs[1:])), (cut,))
    return tuple(found)


HEADER = "po_math.h"
KERNELS: tuple[Kernel, ...] = (
    Kernel("DequantizeLinear", _code, refuses=_refuses, tilings=_tilings, headers=(HEADER,)),
)
