"""Pieces of C that kernels are written with: numbers, declarations, calls."""

from __future__ import annotations

import math

import numpy as np

from poetopt.graph import Tensor
from poetopt.runtimes.c.kernel import C_TYPES, Arguments, Call
from poetopt.runtimes.c.loops import block


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
