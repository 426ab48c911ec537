"""Pieces of C that kernels are written with: numbers, declarations, calls, loop nests.

Axes of length one are left out of nests, and neighbours that every operand steps over evenly become one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from poetopt.graph import Tensor
from poetopt.ops.runtimes.c.kernel import C_TYPES, Arguments, Call

Strides = tuple[int, ...]


def strides_of(shape: Sequence[int]) -> Strides:
    """Elements between neighbours along each axis of a dense tensor."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_strides(shape: Sequence[int], to: Sequence[int]) -> Strides:
    """Strides by which a dense tensor of `shape` is read along the axes of `to`: 0 where it is repeated."""
    own = strides_of(shape)
    extra = len(to) - len(shape)
    return (0,) * extra + tuple(0 if length == 1 else step for length, step in zip(shape, own, strict=True))


def merged(shape: Sequence[int], operands: Mapping[str, Strides]) -> tuple[tuple[int, ...], dict[str, Strides]]:
    """Fewer axes that run over the same elements in the same order."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        steps = tuple(strides[axis] for strides in operands.values())
        if axes and axes[-1][1] == tuple(step * length for step in steps):
            axes[-1] = axes[-1][0] * length, steps
        else:
            axes.append((length, steps))
    lengths = tuple(length for length, _ in axes)
    return lengths, {name: tuple(steps[k] for _, steps in axes) for k, name in enumerate(operands)}


def index(strides: Sequence[int], offset: int = 0, prefix: str = "i") -> str:
    """`i0 * 12 + i1`, `5`, ...: where the element of a loop's variables is."""
    terms = [
        f"{prefix}{axis}" if step == 1 else f"{prefix}{axis} * {step}" for axis, step in enumerate(strides) if step
    ]
    return " + ".join([*terms, *([str(offset)] if offset else [])]).replace("+ -", "- ") or "0"


def loops(shape: Sequence[int], body: str, prefix: str = "i") -> str:
    """`body` for every element of `shape`, with the variables `i0`, `i1`, ... of type int32_t."""
    for axis in reversed(range(len(shape))):
        variable = f"{prefix}{axis}"
        inner = "\n".join(f"    {line}" for line in body.splitlines())
        body = f"for (int32_t {variable} = 0; {variable} < {shape[axis]}; ++{variable}) {{\n{inner}\n}}"
    return body


def block(*lines: str) -> str:
    """One C statement of several."""
    inner = "\n".join(f"    {line}" for text in lines for line in text.splitlines())
    return f"{{\n{inner}\n}}"


def nest(shape: Sequence[int], operands: Mapping[str, Strides], statement: str) -> str:
    """`statement` for every element of `shape`; `{name}` in it becomes the element of that operand."""
    lengths, strides = merged(shape, operands)
    elements = {name: f"{name}[{index(steps)}]" for name, steps in strides.items()}
    return loops(lengths, statement.format(**elements))


def c_float(value: float) -> str:
    """A float32 as C writes it, with as few digits as tell it apart: `0.1f`, `INFINITY`."""
    number = np.float32(value)
    if not np.isfinite(number):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"
    text = str(number)
    text = text if "." in text or "e" in text else f"{text}.0"
    return f"({text}f)" if text.startswith("-") else f"{text}f"


def c_number(value: float | int | bool, dtype: str) -> str:
    """A constant of a type."""
    if dtype == "float32":
        return c_float(float(value))
    if dtype == "float64":
        return repr(float(value))
    whole = int(value)
    if whole == -(2**63):
        return "INT64_MIN"
    text = f"INT64_C({abs(whole)})" if dtype == "int64" and abs(whole) >= 2**31 else str(abs(whole))
    return f"(-{text})" if whole < 0 else text


def read(name: str, tensor: Tensor, expression: str) -> str:
    """`const float *a = ...;`"""
    return f"const {C_TYPES[tensor.dtype]} *{name} = {expression};"


def written(name: str, tensor: Tensor, expression: str) -> str:
    """`float *y = ...;`"""
    return f"{C_TYPES[tensor.dtype]} *{name} = {expression};"


def called(function: str, *operands: str | int | float) -> str:
    """`function(y, x, 12, 0.5f);`"""
    texts = (c_float(o) if isinstance(o, float) else str(o) for o in operands)
    return f"{function}({', '.join(texts)});"


def refuse_types(call: Call, *allowed: str) -> str | None:
    """Why not, where an operand that is there has another element type."""
    for tensor in (*call.inputs, *call.outputs):
        if tensor is not None and tensor.dtype not in allowed:
            return f"{call.node.op_type} of {tensor.dtype}: it has {', '.join(allowed)}"
    return None


def operands(call: Call, arguments: Arguments) -> list[str]:
    """Declarations of inputs a, b, c, ... and of output y, where they are there."""
    found = [
        read("abcdefgh"[k], tensor, arguments.inputs[k]) for k, tensor in enumerate(call.inputs) if tensor is not None
    ]
    return [*found, written("y", call.output(), arguments.outputs[0])]


def known_types(call: Call) -> str | None:
    """Why not, where an operand has an element type that there is no C type of."""
    for tensor in (*call.inputs, *call.outputs):
        if tensor is not None and tensor.dtype not in C_TYPES:
            return f"{call.node.op_type} of {tensor.dtype}: it has {', '.join(C_TYPES)}"
    return None


def filled(y: Tensor, target: str, value: str) -> str:
    """Sets all elements of a tensor."""
    return block(written("y", y, target), f"for (int32_t i = 0; i < {y.size}; ++i) {{\n    y[i] = {value};\n}}")
