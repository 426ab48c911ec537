"""DequantizeLinear in C: one loop nest, which finds the scale of each element by its place."""

from __future__ import annotations

from dataclasses import replace

from poetopt.graph import OWN_DOMAIN, PACKED, Tensor
from poetopt.ops.nodes import around
from poetopt.ops.quantization import Sharing, cut_in_bytes, sharing
from poetopt.ops.runtimes.c.axes import along
from poetopt.ops.runtimes.c.kernel import (
    Arguments,
    Call,
    Kernel,
    block,
    broadcast_strides,
    called,
    loops,
    read,
    written,
)
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


PANEL = 8
"""Columns that a product has dequantized at once."""


def _sizes(call: Call) -> tuple[int, int, int]:
    """Rows, columns and depth of a product."""
    inner, columns = call.shape(1)[:: -1 if call.integer("transB", 0) else 1]
    return call.output().size // columns, columns, inner


def _product_refuses(call: Call) -> str | None:
    (a, x, s, z, *c), y = call.inputs, call.output()
    if a is None or x is None or s is None:
        return "a product without operands"
    if len(x.shape) != 2 or call.integer("transA", 0) or not y.size or not x.size:
        return f"a product with a weight of shape {list(x.shape)}, or that is transposed first"
    if why := _refuses(replace(call, inputs=(x, s, z))):
        return why
    return None if all(t is None or t.dtype == "float32" for t in (a, *c)) else "a product of another type than float32"


def _product(call: Call, arguments: Arguments) -> str:
    """y = alpha a w + beta c: of w, `PANEL` columns at a time are dequantized, and multiplied by the plain kernel."""
    (rows, columns, depth), turned = _sizes(call), call.integer("transB", 0)
    x, (axis, size) = (
        call.input(1),
        sharing(call.shape(1), call.shape(2), call.integer("axis", 1), call.integer("block_size", 0)),
    )
    given = [(name, call.input(k), arguments.inputs[k]) for k, name in ((1, "x"), (2, "s"), (3, "z")) if call.has(k)]
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    added = call.has(4) and bool(beta)
    c_steps = broadcast_strides(call.shape(4), (rows, columns)) if added else (0, 0)

    def panel(begin: str, count: int) -> str:
        """Columns of w are rows of x where that is transposed."""
        row, column = ("i1 + n", "i0") if turned else ("i0", "i1 + n")
        places = {None: "0", 0: row, 1: column}
        scale = places[axis]
        if size:
            width, place = x.shape[1], {0: (f"({row}) / {size}", column), 1: (row, f"({column}) / {size}")}[axis or 0]
            scale = f"({place[0]}) * {width if axis == 0 else -(-width // size)} + {place[1]}"
        elements = {name: _element(name, t, "i" if name == "x" else "j") for name, t, _ in given}
        difference = " - ".join(elements[name] for name in ("x", "z") if name in elements)
        dequantized = block(
            f"const int32_t i = ({row}) * {x.shape[1]} + {column}, j = {scale};",
            f"w[i0 * {count} + i1] = (float)({difference}) * {elements['s']};",
        )
        steps = columns, 1, depth, 1, count, 1
        scaled = []
        if added or alpha != 1.0:
            at = f"c + n * {c_steps[1]}" if added else "NULL"
            scaled = [
                called(
                    "po_scaled", "y + n", at, rows, count, columns, *c_steps, float(alpha), float(beta if added else 0)
                )
            ]
        return block(
            f"const int32_t n = {begin};",
            loops((depth, count), dequantized),
            called("po_product", "y + n", "a", "w", rows, count, depth, *steps, 0),
            *scaled,
        )

    whole, rest = columns // PANEL, columns % PANEL
    inner = "\n".join(f"    {line}" for line in panel(f"panel * {PANEL}", PANEL).splitlines())
    return block(
        read("a", call.input(0), arguments.inputs[0]),
        *(read(name, _as_bytes(tensor), at) for name, tensor, at in given),
        *([read("c", call.input(4), arguments.inputs[4])] if added else []),
        written("y", call.output(), arguments.outputs[0]),
        f"float *w = {arguments.scratch};",
        *([f"for (int32_t panel = 0; panel < {whole}; ++panel) {{\n{inner}\n}}"] if whole else []),
        *([panel(str(whole * PANEL), rest)] if rest else []),
    )


def _panel_bytes(call: Call) -> int:
    _, columns, depth = _sizes(call)
    return 4 * depth * min(PANEL, columns)


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
    *(
        Kernel(f"DequantizeLinear+{op}", _product, OWN_DOMAIN, _product_refuses, _panel_bytes, headers=("po_gemm.h",))
        for op in ("Gemm", "MatMul")
    ),
)
