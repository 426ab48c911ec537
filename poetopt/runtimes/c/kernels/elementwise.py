"""Element-wise ops: one loop nest each, with broadcasting by strides of 0. Output may lie on an operand of its size."""

from __future__ import annotations

from collections.abc import Callable

from poetopt.runtimes.c.kernel import C_TYPES, Arguments, Call, Kernel
from poetopt.runtimes.c.loops import block, broadcast_strides, nest
from poetopt.runtimes.c.write import operands

HEADER = "po_math.h"
REAL = frozenset({"float32"})
NUMBERS = frozenset({"float32", "int64", "int32"})
ANY = frozenset(C_TYPES)

Expression = str | Callable[[Call], str]
"""What is written of the elements {a}, {b}, {c}."""


def elementwise(
    op_type: str, expression: Expression, types: frozenset[str] = REAL, in_place: tuple[int, ...] = (0,)
) -> Kernel:
    """A kernel of the element-wise family.

    types
        Of the operands, as they are read.
    """

    def refuses(call: Call) -> str | None:
        for tensor in (*call.inputs, *call.outputs):
            if tensor is not None and tensor.dtype not in types | {"bool"}:
                return f"{op_type} of {tensor.dtype}: it has {', '.join(sorted(types))}"
        return f"{op_type} of {len(call.inputs)} operands" if len(call.inputs) > MOST else None

    def code(call: Call, arguments: Arguments) -> str:
        shape = call.output().shape
        text = expression if isinstance(expression, str) else expression(call)
        strides = {
            letter: broadcast_strides(tensor.shape, shape)
            for letter, tensor in zip("abcdefgh", call.inputs, strict=False)
            if tensor is not None
        }
        strides = {letter: found for letter, found in strides.items() if f"{{{letter}}}" in text}
        strides["y"] = broadcast_strides(shape, shape)
        declared = [line for line in operands(call, arguments) if line.split("*")[1].split()[0] in strides]
        return block(*declared, nest(shape, strides, f"{{y}} = {text};"))

    return Kernel(op_type, code, refuses=refuses, in_place=in_place, headers=(HEADER,))


MOST = 8
"""Operands of one call."""
KERNELS: tuple[Kernel, ...] = (elementwise("Add", "{a} + {b}", NUMBERS, (0, 1)),)
