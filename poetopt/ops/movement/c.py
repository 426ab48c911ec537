"""Ops that transpose, slice, pad, join or draw data in C: one loop nest for each block of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from poetopt.graph import OWN_DOMAIN, VIEW_OPS, Tensor
from poetopt.ops.movement.chunks import cut_out, one_by_one, padded, transposed
from poetopt.ops.runtimes.c.axes import Code, aligned, along, leading
from poetopt.ops.runtimes.c.kernel import (
    Arguments,
    Call,
    Kernel,
    Strides,
    block,
    broadcast_strides,
    c_float,
    c_number,
    filled,
    index,
    known_types,
    loops,
    nest,
    read,
    strides_of,
    written,
)
from poetopt.ops.runtimes.c.tiling import Tiling

HEADER = "po_math.h"


def _ints(call: Call, place: int) -> list[int]:
    value = call.value(place)
    return [int(v) for v in np.asarray(value).reshape(-1)] if value is not None else []


def copied(
    shape: Sequence[int], x: Tensor, source: str, xs: Strides, y: Tensor, target: str, ys: Strides, *, at: int = 0,
    to: int = 0,
) -> str:  # fmt: skip
    """Copy `shape` elements by strides, from element `at` of x to element `to` of y."""
    moved = [f"x += {at};"] * bool(at) + [f"y += {to};"] * bool(to)
    body = nest(shape, {"x": xs, "y": ys}, "{y} = {x};")
    return block(read("x", x, source), written("y", y, target), *moved, body)


def _copy(call: Call, arguments: Arguments) -> str:
    return f"memcpy({arguments.outputs[0]}, {arguments.inputs[0]}, {call.output().nbytes});"


def _perm(call: Call) -> tuple[int, ...]:
    return call.integers("perm", tuple(reversed(range(len(call.input(0).shape)))))


def _transpose(call: Call, arguments: Arguments) -> str:
    x, y = call.input(0), call.output()
    x_strides = strides_of(x.shape)
    strides = tuple(x_strides[axis] for axis in _perm(call))
    return copied(y.shape, x, arguments.inputs[0], strides, y, arguments.outputs[0], strides_of(y.shape))


def _expand(call: Call, arguments: Arguments) -> str:
    x, y = call.input(0), call.output()
    strides = broadcast_strides(x.shape, y.shape)
    return copied(y.shape, x, arguments.inputs[0], strides, y, arguments.outputs[0], strides_of(y.shape))


def _expand_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tilings along each axis of the result."""
    x, y = call.input(0), call.output()
    rest = [None for _ in call.inputs[1:]]
    axes = (axis for axis, extent in enumerate(y.shape) if extent > 1)
    return tuple(
        tiling for axis in axes for tiling in along(_expand, call, [aligned(x, axis, len(y.shape)), *rest], [axis])
    )


def _tile(call: Call, arguments: Arguments) -> str:
    x, y = call.input(0), call.output()
    shape = [part for d, n in zip(x.shape, y.shape, strict=True) for part in (n // max(d, 1), d)]
    strides = tuple(part for step in strides_of(x.shape) for part in (0, step))
    return copied(shape, x, arguments.inputs[0], strides, y, arguments.outputs[0], strides_of(shape))


def _slice(call: Call, arguments: Arguments) -> str:
    x, y = call.input(0), call.output()
    starts, ends, axes, steps = (_ints(call, k) for k in (1, 2, 3, 4))
    axes, x_strides = axes or list(range(len(starts))), strides_of(x.shape)
    strides, at = list(x_strides), 0
    for k, axis in enumerate(axes):
        step = steps[k] if steps else 1
        first = slice(starts[k], ends[k], step).indices(x.shape[axis])[0]
        at += first * x_strides[axis]
        strides[axis] = x_strides[axis] * step
    return copied(y.shape, x, arguments.inputs[0], tuple(strides), y, arguments.outputs[0], strides_of(y.shape), at=at)


def _slice_tilings(call: Call) -> tuple[Tiling, ...]:
    x, y = call.input(0), call.output()
    if call.value(1) is None or call.value(2) is None or not y.size:
        return ()
    starts, ends, axes, steps = (_ints(call, k) for k in (1, 2, 3, 4))
    axes = [axis % len(x.shape) for axis in axes or range(len(starts))]
    first, step = [0] * len(x.shape), [1] * len(x.shape)
    for k, axis in enumerate(axes):
        step[axis] = steps[k] if steps else 1
        first[axis] = slice(starts[k], ends[k], step[axis]).indices(x.shape[axis])[0]
    return cut_out(call, first, step)


def _constant_of_shape(call: Call, arguments: Arguments) -> str:
    value = call.node.attributes.get("value")
    number = np.asarray(value).reshape(-1)[0] if value is not None else 0.0
    return filled(call.output(), arguments.outputs[0], c_number(number, call.output().dtype))


def _pads(call: Call) -> tuple[list[int], list[int]]:
    """Return the pads before and after each axis; zeros if they are unknown."""
    rank, amounts = len(call.input(0).shape), _ints(call, 1)
    axes = _ints(call, 3) or list(range(rank))
    before, after = [0] * rank, [0] * rank
    for k, axis in enumerate(axes if amounts else ()):
        before[axis], after[axis] = amounts[k], amounts[len(axes) + k]
    return before, after


def _pad_value(call: Call) -> str:
    known, dtype = call.value(2), call.output().dtype
    if known is not None:
        return c_number(np.asarray(known).reshape(-1)[0], dtype)
    return "0.0f" if dtype == "float32" and not call.has(2) else "0"


def _pad(call: Call, arguments: Arguments) -> str:
    if call.text("mode", "constant") in _REPEATED:
        return _repeated(call, arguments)
    x, y = call.input(0), call.output()
    before, after = _pads(call)
    x_strides, target = strides_of(x.shape), strides_of(y.shape)
    shape = [d + min(b, 0) + min(a, 0) for d, b, a in zip(x.shape, before, after, strict=True)]
    at = sum(max(-b, 0) * s for b, s in zip(before, x_strides, strict=True))
    to = sum(max(b, 0) * s for b, s in zip(before, target, strict=True))
    fill = [filled(y, arguments.outputs[0], _pad_value(call))] if y.size != prod(shape) else []
    moved = copied(shape, x, arguments.inputs[0], x_strides, y, arguments.outputs[0], target, at=at, to=to)
    return block(*fill, moved)


_REPEATED = {
    "wrap": "(i{k} % {n} + {n} - {b}) % {n}",
    "reflect": "(i{k} < {b} ? {b} - i{k} : i{k} < {b} + {n} ? i{k} - {b} : 2 * {n} - 2 + {b} - i{k})",
    "edge": "po_smaller(po_larger(i{k} - {b}, 0), {n} - 1)",
}
"""Source index of an element of a padded axis; {n} elements remain, and {b} are padded before the first."""


def _repeated(call: Call, arguments: Arguments) -> str:
    """Return the C of a Pad in a mode other than `constant`; negative pads cut first, as in onnxruntime."""
    x, y = call.input(0), call.output()
    before, after = _pads(call)
    x_strides, at = strides_of(x.shape), sum(max(-b, 0) * s for b, s in zip(before, strides_of(x.shape), strict=True))
    mode = call.text("mode", "constant")
    text = _REPEATED[mode]
    body = f"y[{index(strides_of(y.shape))}] = x[{index(x_strides, prefix='p')}];"
    for axis in reversed(range(len(y.shape))):
        b, n = max(before[axis], 0), x.shape[axis] + min(before[axis], 0) + min(after[axis], 0)
        place = text.format(k=axis, n=n, b=b % n if mode == "wrap" else b)
        inner = f"const int32_t p{axis} = {place};\n{body}".replace("\n", "\n    ")
        body = f"for (int32_t i{axis} = 0; i{axis} < {y.shape[axis]}; ++i{axis}) {{\n    {inner}\n}}"
    moved = [f"x += {at};"] * bool(at)
    return block(read("x", x, arguments.inputs[0]), written("y", y, arguments.outputs[0]), *moved, body)


def _concat(call: Call, arguments: Arguments) -> str:
    y = call.output()
    axis = call.integer("axis", 0) % len(y.shape)
    y_strides, parts, place = strides_of(y.shape), [], 0
    for k, source in enumerate(arguments.inputs):
        x = call.input(k)
        if x.size:
            parts.append(
                copied(
                    x.shape,
                    x,
                    source,
                    strides_of(x.shape),
                    y,
                    arguments.outputs[0],
                    y_strides,
                    to=place * y_strides[axis],
                )
            )
        place += x.shape[axis]
    return block(*parts)


def _split(call: Call, arguments: Arguments) -> str:
    x = call.input(0)
    axis = call.integer("axis", 0) % len(x.shape)
    x_strides, parts, place = strides_of(x.shape), [], 0
    for k, target in enumerate(arguments.outputs):
        y = call.output(k)
        parts.append(
            copied(
                y.shape, x, arguments.inputs[0], x_strides, y, target, strides_of(y.shape), at=place * x_strides[axis]
            )
        )
        place += y.shape[axis]
    return block(*parts)


def _concat_tilings(call: Call) -> tuple[Tiling, ...]:
    axis = call.integer("axis", 0) % len(call.output().shape)
    return (*_along_first(_concat, call, call.output(), axis), *one_by_one(call, axis, together=True))


def _split_tilings(call: Call) -> tuple[Tiling, ...]:
    axis = call.integer("axis", 0) % len(call.input(0).shape)
    return (*_along_first(_split, call, call.input(0), axis), *one_by_one(call, axis, together=False))


def _along_first(code: Code, call: Call, whole: Tensor, axis: int) -> tuple[Tiling, ...]:
    """Return the tiling along an axis before the axis of a Concat or Split."""
    first = leading(whole.shape, axis)
    if first is None or any(t is None for t in (*call.inputs[:1], *call.outputs)):
        return ()
    many = len(call.inputs) if whole is call.output() else 1
    inputs = [first if k < many else None for k in range(len(call.inputs))]
    return along(code, call, inputs, [first] * len(call.outputs))


def _draw(call: Call, arguments: Arguments, expression: str, *declared: str) -> str:
    """Return C that evaluates `made` for each number `drawn` in [0, 1) by the minimal standard generator.

    onnxruntime draws the same numbers.
    """
    draw = block(
        "float drawn;",
        "seed = (uint32_t)((uint64_t)seed * 16807u % 2147483647u);",
        "drawn = po_min((float)(seed - 1u) * 4.656613e-10f, 0.99999994f);",
        f"y[i0] = {expression};",
    )
    return block(
        *declared,
        written("y", call.output(), arguments.outputs[0]),
        f"uint32_t *kept = {arguments.state};",
        "uint32_t seed = kept[0];",
        loops((call.output().size,), draw),
        "kept[0] = seed;",
    )


def _random_uniform(call: Call, arguments: Arguments) -> str:
    low, high = call.number("low", 0.0), call.number("high", 1.0)
    scaled = "" if (low, high) == (0.0, 1.0) else f" * {c_float(high - low)} + {c_float(low)}"
    return _draw(call, arguments, f"drawn{scaled}")


def _dropout_mask(call: Call, arguments: Arguments) -> str:
    return _draw(call, arguments, "(uint8_t)(drawn >= b[0])", read("b", call.input(0), arguments.inputs[0]))


def _seed(call: Call) -> tuple[int, ...]:
    return (int(call.number("seed", 1.0)) % 2147483647 or 1,)


KERNELS: tuple[Kernel, ...] = (
    *(Kernel(op_type, _copy, refuses=known_types, headers=(HEADER,)) for op_type in sorted(VIEW_OPS)),
    Kernel(
        "Transpose", _transpose, refuses=known_types, headers=(HEADER,),
        tilings=lambda call: transposed(call, _perm(call)),
    ),
    Kernel("Expand", _expand, refuses=known_types, headers=(HEADER,), tilings=_expand_tilings),
    Kernel("Tile", _tile, refuses=known_types, headers=(HEADER,)),
    Kernel("Slice", _slice, refuses=known_types, constants=(1, 2, 3, 4), headers=(HEADER,), tilings=_slice_tilings),
    Kernel("ConstantOfShape", _constant_of_shape, refuses=known_types, headers=(HEADER,)),
    Kernel(
        "Pad", _pad, refuses=known_types, constants=(1, 2, 3), headers=(HEADER,),
        tilings=lambda call: () if call.text("mode", "constant") in _REPEATED
        else padded(call, *_pads(call), _pad_value(call)),
    ),
    Kernel("Concat", _concat, refuses=known_types, headers=(HEADER,), tilings=_concat_tilings),
    Kernel("Split", _split, refuses=known_types, headers=(HEADER,), tilings=_split_tilings),
    Kernel("Size", lambda call, arguments: filled(call.output(), arguments.outputs[0], str(call.input(0).size))),
    Kernel("RandomUniform", _random_uniform, refuses=known_types, state=_seed, headers=(HEADER,)),
    Kernel("Dropout.mask", _dropout_mask, OWN_DOMAIN, known_types, state=_seed, headers=(HEADER,)),
)  # fmt: skip
