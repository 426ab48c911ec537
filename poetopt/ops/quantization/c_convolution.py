"""Convolutions in C with a weight that they dequantize, some of its channels at a time."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from poetopt.graph import OWN_DOMAIN
from poetopt.ops.convolution.c import HEADER
from poetopt.ops.convolution.c import KERNELS as PLAIN
from poetopt.ops.quantization import settings, sharing
from poetopt.ops.quantization.c import as_bytes, element, refuses
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel, block, loops, read
from poetopt.ops.runtimes.c.tiling import COUNT, ELEMENT_BYTES, FROM, OUTER, Chunk, ChunkSlice, Loop, Part, Tiling

PANEL_BYTES = 1024
"""So much of the weight is dequantized at once, or a step of the chunks that its plain kernel goes in."""


def _plain(call: Call) -> Call:
    """The convolution with its weight as floats, and without what that is made of."""
    a, _, _, _, *rest = call.inputs
    return replace(call, inputs=(a, replace(call.input(1), dtype="float32"), *rest))


def _cut(kernel: Kernel, call: Call) -> tuple[Tiling, Loop, ChunkSlice] | None:
    """How the plain kernel goes in chunks of the weight's channels, or groups: the loop, and the weight's slices."""
    for tiling in kernel.tilings(_plain(call)):
        loop, taken = tiling.outer, tiling.inputs[1]
        rows = any(one is not None and one.rows is not None for one in (*tiling.inputs, *tiling.outputs))
        if loop is not None and tiling.inner is None and taken is not None and not rows:
            return tiling, loop, taken
    return None


def _steps(loop: Loop, taken: ChunkSlice) -> int:
    """Steps of a chunk."""
    each = loop.multiple * taken.unit_bytes * taken.pieces
    return min(loop.extent, loop.multiple * max(1, PANEL_BYTES // each))


def _within(kernel: Kernel) -> Kernel:
    """The kernel of a convolution that reads a quantized weight, its scale and its zero point instead."""

    def refused(call: Call) -> str | None:
        why = refuses(replace(call, inputs=call.inputs[1:4])) or kernel.refuses(_plain(call))
        return why or (None if _cut(kernel, call) else f"{kernel.op_type} that isn't cut along channels")

    def scratch_bytes(call: Call) -> int:
        found = _cut(kernel, call)
        assert found is not None
        _, loop, taken = found
        return _steps(loop, taken) * taken.unit_bytes * taken.pieces

    def code(call: Call, arguments: Arguments) -> str:
        found = _cut(kernel, call)
        assert found is not None
        tiling, loop, taken = found
        begin, count, size = FROM[OUTER], COUNT[OUTER], _steps(loop, taken)

        def part(at: str, one: ChunkSlice | None) -> Part:
            if one is None or not at:
                return Part(at, "0")
            apart = str(loop.extent * one.unit_bytes // ELEMENT_BYTES)
            return Part(f"((void *)((unsigned char *){at} + (uint32_t){begin} * {one.unit_bytes}u))", apart)

        inputs = (arguments.inputs[0], "", *arguments.inputs[4:])
        parts = [part(at, one) for at, one in zip(inputs, tiling.inputs, strict=True)]
        behind = taken.unit_bytes // ELEMENT_BYTES
        parts[1] = Part(arguments.scratch, f"{count} * {behind}")
        outs = tuple(part(at, one) for at, one in zip(arguments.outputs, tiling.outputs, strict=True))
        convolved = tiling.code(_plain(call), Chunk(tuple(parts), outs, (begin, "0"), (count, "0"), ""))
        given = [(n, call.input(k), arguments.inputs[k]) for k, n in ((1, "x"), (2, "s"), (3, "z")) if call.has(k)]
        elements = {n: element(n, t, "i" if n == "x" else "j") for n, t, _ in given}
        difference = " - ".join(elements[n] for n in "xz" if n in elements)
        body = block(
            f"const int32_t i = (i0 * {loop.extent} + {begin} + i1) * {behind} + i2, j = {_scale_at(call)};",
            f"w[(i0 * {count} + i1) * {behind} + i2] = (float)({difference}) * {elements['s']};",
        )
        body = f"for (int32_t i1 = 0; i1 < {count}; ++i1) {{\n{loops((behind,), body, 'j')}\n}}".replace("j0", "i2")
        dequantized = block(
            *(read(n, as_bytes(t), at) for n, t, at in given),
            f"float *w = {arguments.scratch};",
            loops((taken.pieces,), body),
        )
        inner = "\n".join(f"    {line}" for text in (dequantized, convolved) for line in text.splitlines())
        return (
            f"for (int32_t {begin} = 0; {begin} < {loop.extent}; {begin} += {size}) {{\n"
            f"    const int32_t {count} = po_smaller({size}, {loop.extent} - {begin});\n{inner}\n}}"
        )

    return Kernel(f"DequantizeLinear+{kernel.op_type}", code, OWN_DOMAIN, refused, scratch_bytes, headers=(HEADER,))


def _scale_at(call: Call) -> str:
    """Says where the scale of element i of the weight is."""
    shape = call.shape(1)
    axis, size = sharing(shape, call.shape(2), *settings(call.node))
    if axis is None:
        return "0"
    inner, length = prod(shape[axis + 1 :]), shape[axis]
    step = f"i / {inner} % {length}"
    if not size:
        return step
    return f"(i / {inner * length} * {-(-length // size)} + {step} / {size}) * {inner} + i % {inner}"


KERNELS: tuple[Kernel, ...] = tuple(_within(k) for k in PLAIN if k.op_type in ("Conv", "Conv.grad_input"))
