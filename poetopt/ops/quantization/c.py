"""DequantizeLinear in C: one loop nest, which finds the scale of each element by its place."""

from __future__ import annotations

from dataclasses import replace

from poetopt.graph import PACKED, Tensor
from poetopt.ops.nodes import around
from poetopt.ops.quantization import Sharing, cut_in_bytes, sharing
from poetopt.ops.runtimes.c.axes import along
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel, block, loops, read, written
from poetopt.ops.runtimes.c.tiling import Tiling

_INTEGERS = ("int4", "int8", "int32", "uint4", "uint8")


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
    given = [("x", x, arguments.inputs[0], "i"), ("s", call.input(1), arguments.inputs[1], "j")]
    given += [("z", call.input(2), arguments.inputs[2], "j")] if call.has(2) else []
    x_i, s_j, *zero = (_element(name, tensor, at) for name, tensor, _, at in given)
    # integers are subtracted as integers, as onnxruntime does
    body = block(
        f"const int32_t i = (i0 * {along_axis} + i1) * {behind} + i2, j = {scale};",
        f"y[i] = (float)({' - '.join([x_i, *zero])}) * {s_j};",
    )
    return block(
        *(read(name, _as_bytes(tensor), at) for name, tensor, at, _ in given),
        written("y", call.output(), arguments.outputs[0]),
        loops((before, along_axis, behind), body),
    )


def _as_bytes(tensor: Tensor) -> Tensor:
    return replace(tensor, dtype="uint8") if tensor.dtype in PACKED else tensor


def _element(name: str, tensor: Tensor, at: str) -> str:
    """An element as C reads it: one of four bits out of its byte."""
    if tensor.dtype not in PACKED:
        return f"{name}[{at}]"
    bits = f"({name}[{at} / 2] >> ({at} % 2 * 4) & 15)"
    return f"(({bits} ^ 8) - 8)" if tensor.dtype == "int4" else bits


def _tilings(call: Call) -> tuple[Tiling, ...]:
    """Chunks along each axis, but the one that blocks lie along."""
    (axis, size), found = _sharing(call), []
    for cut, extent in enumerate(call.shape(0)):
        if extent < 2 or (size and cut == axis):
            continue
        scale = cut if size else 0 if cut == axis else None
        axes = (cut, *(scale for _ in call.inputs[1:]))
        if all(t is None or a is None or cut_in_bytes(t, a) for t, a in zip(call.inputs, axes, strict=True)):
            found += along(_code, call, axes, (cut,))
    return tuple(found)


HEADER = "po_math.h"
KERNELS: tuple[Kernel, ...] = (
    Kernel("DequantizeLinear", _code, refuses=_refuses, tilings=_tilings, headers=(HEADER,)),
)
