"""DequantizeLinear in C: one loop nest, which finds the scale of each element by its index.

Products and convolutions with a quantized weight dequantize a few of its columns or channels at a time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import lcm, prod

from poetopt.graph import OWN_DOMAIN, PACKED, Tensor
from poetopt.ops.convolution.c import HEADER
from poetopt.ops.convolution.c import KERNELS as CONVOLUTIONS
from poetopt.ops.nodes import around
from poetopt.ops.quantization import Sharing, cut_in_bytes, settings, sharing
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
from poetopt.ops.runtimes.c.tiling import (
    COUNT,
    ELEMENT_BYTES,
    FROM,
    INNER,
    OUTER,
    PART,
    Chunk,
    ChunkSlice,
    Loop,
    Part,
    Rows,
    Tiling,
    sliced,
    whole,
)

_INTEGERS = ("int4", "int8", "int32", "uint4", "uint8")


def _sharing(call: Call) -> Sharing:
    return sharing(call.shape(0), call.shape(1), *settings(call.node))


def refuses(call: Call) -> str | None:
    if call.input(0).dtype not in _INTEGERS:
        return f"DequantizeLinear of {call.input(0).dtype} is not supported (supported: {', '.join(_INTEGERS)})"
    if {call.input(1).dtype, call.output().dtype} != {"float32"}:
        return f"DequantizeLinear to {call.output().dtype} is not supported; float32 is"
    return None


def _code(call: Call, arguments: Arguments) -> str:
    x, (axis, size) = call.input(0), _sharing(call)
    before, along_axis, behind = around(x.shape, axis) if axis is not None else (1, 1, x.size)
    scale = "0" if axis is None else "i1"
    if size:
        scale = f"(i0 * {-(-along_axis // size)} + i1 / {size}) * {behind} + i2"
    tensors = [("x", x, arguments.inputs[0], "i"), ("s", call.input(1), arguments.inputs[1], "j")]
    tensors += [("z", call.input(2), arguments.inputs[2], "j")] if call.has(2) else []
    x_i, s_j, *zero = (element(name, tensor, at) for name, tensor, _, at in tensors)
    # integers are subtracted as integers, as in onnxruntime
    body = block(
        f"const int32_t i = (i0 * {along_axis} + i1) * {behind} + i2, j = {scale};",
        f"y[i] = (float)({' - '.join([x_i, *zero])}) * {s_j};",
    )
    return block(
        *(read(name, as_bytes(tensor), at) for name, tensor, at, _ in tensors),
        written("y", call.output(), arguments.outputs[0]),
        loops((before, along_axis, behind), body),
    )


PANEL = 8
"""Columns that a product dequantizes at once."""


def _sizes(call: Call) -> tuple[int, int, int]:
    """Return rows, columns and depth of a product."""
    inner, columns = call.shape(1)[:: -1 if call.integer("transB", 0) else 1]
    return call.output().size // columns, columns, inner


def _product_refuses(call: Call) -> str | None:
    (a, x, s, z, *c), y = call.inputs, call.output()
    if a is None or x is None or s is None:
        return "the product lacks operands"
    if len(x.shape) != 2 or call.integer("transA", 0) or not y.size or not x.size:
        return f"a product with a weight of shape {list(x.shape)}, or with a transposed first operand, is not supported"
    if why := refuses(replace(call, inputs=(x, s, z))):
        return why
    if any(t is not None and t.dtype != "float32" for t in (a, *c)):
        return "a product of another type than float32 is not supported"
    return None


def _product(call: Call, chunk: Chunk, letter: str = "") -> str:
    """Return the C of y = alpha a w + beta c: it dequantizes `PANEL` columns of w at a time, for the plain kernel.

    Parameters
    ----------
    letter
        The axis of chunks: columns ("n"), depth ("k"), or none.
    """
    rows, columns, depth = _sizes(call)
    level = OUTER if letter == "n" else INNER
    begin, count = chunk.begin[level], chunk.count[level]
    wide, deep = count if letter == "n" else str(columns), count if letter == "k" else str(depth)
    tensors = [(name, call.input(k), chunk.inputs[k].at) for k, name in ((1, "x"), (2, "s"), (3, "z")) if call.has(k)]
    places = {
        n: _weight_index(call, k, chunk.inputs[k].apart if letter == "n" else "")
        for k, n in enumerate("xsz"[: len(tensors)], 1)
    }
    elements = {name: element(name, t, f"i{name}") for name, t, _ in tensors}
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    added = call.has(4) and bool(beta)
    y_row = chunk.outputs[0].apart if letter == "n" else str(columns)
    scaled = ""
    if added or alpha != 1.0:
        row, column = broadcast_strides(call.shape(4), (rows, columns)) if added else (0, 0)
        at = f"c + ({begin if letter == 'n' else '0'} + n) * {column}" if added else "NULL"
        factors = float(alpha), float(beta if added else 0)
        scaled = called("po_scaled", "y + n", at, rows, "wide", y_row, row, column, *factors)
    adds = f"{begin} > 0" if letter == "k" else "0"
    return block(
        f"const float *a = (const float *){chunk.inputs[0].at}{f' + {begin}' if letter == 'k' else ''};",
        *(read(name, as_bytes(tensor), at) for name, tensor, at in tensors),
        *([read("c", call.input(4), chunk.inputs[4].at)] if added else []),
        written("y", call.output(), chunk.outputs[0].at),
        f"float *w = {chunk.scratch};",
        f"for (int32_t n = 0; n < {wide}; n += {PANEL}) {{",
        f"    const int32_t wide = po_smaller({PANEL}, {wide} - n);",
        f"    for (int32_t k = 0; k < {deep}; ++k) {{",
        "        for (int32_t o = n; o < n + wide; ++o) {",
        f"            const int32_t {', '.join(f'i{name} = {place}' for name, place in places.items())};",
        f"            w[k * wide + o - n] = (float)({' - '.join(elements[m] for m in 'xz' if m in elements)}) * "
        f"{elements['s']};",
        "        }",
        "    }",
        f"    {called('po_product', 'y + n', 'a', 'w', rows, 'wide', deep, y_row, 1, depth, 1, 'wide', 1, adds)}",
        *([f"    {scaled}"] if scaled else []),
        "}",
    )


def _weight_index(call: Call, index: int, apart: str) -> str:
    """Return the C index of the weight (1), scale (2) or zero point (3) of row k and column o of w.

    Parameters
    ----------
    apart
        Elements between rows, if a chunk has some columns.
    """
    turned, (axis, size) = call.integer("transB", 0), _weight_sharing(call)
    steps = ["k", "o"][:: -1 if turned else 1]
    if index > 1 and not size:
        return "0" if axis is None else steps[axis]
    if index > 1 and axis is not None:
        steps[axis] = f"{steps[axis]} / {size}"
    return f"{steps[0]} * {call.shape(index)[1] if turned or not apart else apart} + {steps[1]}"


def _weight_sharing(call: Call) -> Sharing:
    return sharing(call.shape(1), call.shape(2), *settings(call.node))


def _product_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tilings by columns, and by depth if it goes row by row of the weight."""
    (rows, columns, depth), (axis, size), tilings = _sizes(call), _weight_sharing(call), list[Tiling]()
    turned, added = call.integer("transB", 0), call.has(4) or call.number("alpha", 1.0) != 1.0
    column_axis = 0 if turned else 1
    operands = [(call.inputs[k], k > 1 and not size) for k in (1, 2, 3)]

    def cut(along: int, level: int, blocks: int) -> list[ChunkSlice | None] | None:
        """Return a chunk's slices of weight, scale and zero point; None if they aren't whole bytes."""
        slices: list[ChunkSlice | None] = []
        for k, (t, one_axis) in enumerate(operands):
            if t is None or (one_axis and axis != along):
                slices.append(None)
                continue
            place = 0 if one_axis else along
            if not cut_in_bytes(t, place):
                return None
            one = sliced(t, place, level)
            whole_blocks = Rows(t.shape[place], 1, blocks, 0, blocks - 1)
            slices.append(replace(one, rows=whole_blocks) if k and blocks > 1 else one)
        return slices

    rest = (None,) * (len(call.inputs) - 4)
    if columns > 1 and not (size > 1 and axis == column_axis) and (parts := cut(column_axis, OUTER, 1)) is not None:
        y = ChunkSlice(OUTER, ELEMENT_BYTES, rows)
        tilings.append(Tiling(Loop(columns), None, (None, *parts, *rest), (y,), partial(_product, letter="n")))
    blocks = size if size and axis == 1 - column_axis else 1
    loop = Loop(depth, lcm(PART, blocks))
    if depth > loop.multiple and not turned and not added and (parts := cut(0, INNER, blocks)) is not None:
        tilings.append(Tiling(None, loop, (None, *parts, *rest), (None,), partial(_product, letter="k")))
    return tuple(tilings)


def _panel_bytes(call: Call) -> int:
    _, columns, depth = _sizes(call)
    return 4 * depth * min(PANEL, columns)


def as_bytes(tensor: Tensor) -> Tensor:
    return replace(tensor, dtype="uint8") if tensor.dtype in PACKED else tensor


def element(name: str, tensor: Tensor, at: str) -> str:
    """Return the C that reads an element; an element of four bits is read out of its byte."""
    if tensor.dtype not in PACKED:
        return f"{name}[{at}]"
    bits = f"({name}[{at} / 2] >> ({at} % 2 * 4) & 15)"
    return f"(({bits} ^ 8) - 8)" if tensor.dtype == "int4" else bits


def _tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tilings along each axis except the axis of the blocks."""
    (axis, size), tilings = _sharing(call), list[Tiling]()
    for cut, extent in enumerate(call.shape(0)):
        if extent < 2 or (size and cut == axis):
            continue
        scale = cut if size else 0 if cut == axis else None
        axes = (cut, *(scale for _ in call.inputs[1:]))
        if all(t is None or a is None or cut_in_bytes(t, a) for t, a in zip(call.inputs, axes, strict=True)):
            tilings += along(_code, call, axes, (cut,))
    return tuple(tilings)


def _dequantized_call(call: Call) -> Call:
    """Return the convolution with its weight as floats, without scale and zero point."""
    a, _, _, _, *rest = call.inputs
    return replace(call, inputs=(a, replace(call.input(1), dtype="float32"), *rest))


def _channel_tiling(kernel: Kernel, call: Call) -> tuple[Tiling, Loop, ChunkSlice] | None:
    """Return the plain kernel's tiling by the weight's channels or groups, its loop, and the weight's slice."""
    for tiling in kernel.tilings(_dequantized_call(call)):
        loop, weight_slice = tiling.outer, tiling.inputs[1]
        rows = any(one is not None and one.rows is not None for one in (*tiling.inputs, *tiling.outputs))
        if loop is not None and tiling.inner is None and weight_slice is not None and not rows:
            return tiling, loop, weight_slice
    return None


def _chunk_steps(loop: Loop, weight_slice: ChunkSlice) -> int:
    """Return the steps of a chunk."""
    each = loop.multiple * weight_slice.unit_bytes * weight_slice.pieces
    # dequantizes 1024 bytes of the weight at once, or one step of the plain kernel's chunks
    return min(loop.extent, loop.multiple * max(1, 1024 // each))


def _with_quantized_weight(kernel: Kernel) -> Kernel:
    """Return the kernel of a convolution with a quantized weight, its scale and its zero point."""

    def refused(call: Call) -> str | None:
        why = refuses(replace(call, inputs=call.inputs[1:4])) or kernel.refuses(_dequantized_call(call))
        return why or (None if _channel_tiling(kernel, call) else f"{kernel.op_type} can't be cut along channels")

    def scratch_bytes(call: Call) -> int:
        cut = _channel_tiling(kernel, call)
        assert cut is not None
        _, loop, weight_slice = cut
        return _chunk_steps(loop, weight_slice) * weight_slice.unit_bytes * weight_slice.pieces

    def code(call: Call, arguments: Arguments) -> str:
        cut = _channel_tiling(kernel, call)
        assert cut is not None
        tiling, loop, weight_slice = cut
        begin, count, size = FROM[OUTER], COUNT[OUTER], _chunk_steps(loop, weight_slice)

        def part(at: str, one: ChunkSlice | None) -> Part:
            if one is None or not at:
                return Part(at, "0")
            apart = str(loop.extent * one.unit_bytes // ELEMENT_BYTES)
            return Part(f"((void *)((unsigned char *){at} + (uint32_t){begin} * {one.unit_bytes}u))", apart)

        inputs = (arguments.inputs[0], "", *arguments.inputs[4:])
        parts = [part(at, one) for at, one in zip(inputs, tiling.inputs, strict=True)]
        behind = weight_slice.unit_bytes // ELEMENT_BYTES
        parts[1] = Part(arguments.scratch, f"{count} * {behind}")
        outs = tuple(part(at, one) for at, one in zip(arguments.outputs, tiling.outputs, strict=True))
        convolved = tiling.code(_dequantized_call(call), Chunk(tuple(parts), outs, (begin, "0"), (count, "0"), ""))
        tensors = [(n, call.input(k), arguments.inputs[k]) for k, n in ((1, "x"), (2, "s"), (3, "z")) if call.has(k)]
        elements = {n: element(n, t, "i" if n == "x" else "j") for n, t, _ in tensors}
        difference = " - ".join(elements[n] for n in "xz" if n in elements)
        body = block(
            f"const int32_t i = (i0 * {loop.extent} + {begin} + i1) * {behind} + i2, j = {_scale_index(call)};",
            f"w[(i0 * {count} + i1) * {behind} + i2] = (float)({difference}) * {elements['s']};",
        )
        body = f"for (int32_t i1 = 0; i1 < {count}; ++i1) {{\n{loops((behind,), body, 'j')}\n}}".replace("j0", "i2")
        dequantized = block(
            *(read(n, as_bytes(t), at) for n, t, at in tensors),
            f"float *w = {arguments.scratch};",
            loops((weight_slice.pieces,), body),
        )
        inner = "\n".join(f"    {line}" for text in (dequantized, convolved) for line in text.splitlines())
        return (
            f"for (int32_t {begin} = 0; {begin} < {loop.extent}; {begin} += {size}) {{\n"
            f"    const int32_t {count} = po_smaller({size}, {loop.extent} - {begin});\n{inner}\n}}"
        )

    return Kernel(f"DequantizeLinear+{kernel.op_type}", code, OWN_DOMAIN, refused, scratch_bytes, headers=(HEADER,))


def _scale_index(call: Call) -> str:
    """Return the C index of the scale of element i of the weight."""
    shape = call.shape(1)
    axis, size = sharing(shape, call.shape(2), *settings(call.node))
    if axis is None:
        return "0"
    inner, length = prod(shape[axis + 1 :]), shape[axis]
    step = f"i / {inner} % {length}"
    if not size:
        return step
    return f"(i / {inner * length} * {-(-length // size)} + {step} / {size}) * {inner} + i % {inner}"


KERNELS: tuple[Kernel, ...] = (
    Kernel("DequantizeLinear", _code, refuses=refuses, tilings=_tilings, headers=("po_math.h",)),
    *(
        Kernel(
            f"DequantizeLinear+{op}", lambda call, arguments: _product(call, whole(arguments)), OWN_DOMAIN,
            _product_refuses, _panel_bytes, headers=("po_gemm.h",), tilings=_product_tilings,
        )
        for op in ("Gemm", "MatMul")
    ),
    *(_with_quantized_weight(kernel) for kernel in CONVOLUTIONS if kernel.op_type in ("Conv", "Conv.grad_input")),
)  # fmt: skip
