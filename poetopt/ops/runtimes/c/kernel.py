"""The contract of a kernel of the `c` runtime: the RAM that it needs, and its call in C99.

One kernel is for one op. It is an ONNX op (`Conv`), or the fused op of several nodes in a row, in `OWN_DOMAIN`
(`Conv.grad_weight`; see `poetopt.graph.Whole`). `poetopt.ops.runtimes.c.steps.steps` lists the calls of an operator in
order, each with its kernel and the offset of its scratch. Views have no calls: they move no bytes.

| reader | members | when it asks |
|---|---|---|
| planner | `refuses`, `scratch_bytes`, `in_place`, `state`: by shapes, types, attributes | before solving |
| generator | `missing`, `code`, `headers`: constants are known then | when C is written |

Rules of the generated C, and of its compilation:

- `code(call, arguments)` is one C99 statement (a call with all numbers written out, or a block with a loop nest). It
  declares nothing outside of a block, so statements can follow one another in one function.
- `arguments` are C expressions of object pointers: `void *`, or of the element's type (`C_TYPES`). The code may use an
  expression several times, so it has no side effect. It uses only names that begin with `po_`: other names belong to
  the statement. An absent input or output is "". Tensors are dense, in ONNX's order; a scalar has one element. Every
  buffer starts at a multiple of `ALIGNMENT`.
- Output 0 may lie on an input that `in_place` names, at the same address; where an operator updates tensors
  (`Operator.updates`), each new value lies on the old one. Nothing else may overlap.
- `headers` are files of `poetopt/ops/runtimes/c/include/`, or of the package `include` of a third party. They are
  copied beside the C code and included by name, once each. They need <stdint.h>, <math.h>, <string.h>, and include
  these themselves. Functions in them are `static inline`, and always inlined (`PO_INLINE`), so that literal numbers
  become constants of the loops.
- Compile with `FLAGS`: a fused multiply-add rounds once where two operations round twice, so results are the same bits
  on all machines only without it. (gcc ignores `#pragma STDC FP_CONTRACT OFF`.) Never use -ffast-math.
- An operator that must give the same bits at each call has to be one function that no compiler clones: give it
  `__attribute__((noipa))`, or noinline where that is unknown.

Third parties register kernels by entry points `poetopt.kernels`: a `Kernel`, or a sequence of them. It replaces an
existing kernel for the op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from poetopt.graph import Tensor
from poetopt.ops.nodes import Call as Call

if TYPE_CHECKING:
    from poetopt.ops.runtimes.c.tiling import Tiling


ALIGNMENT = 8
"""Every buffer starts at a multiple of so many bytes: those of the largest element, an int64."""

MOST_BYTES = 2**31
"""Limit of the bytes of a tensor, and of all data of a program: loops and addresses are int32_t."""

WORD_BYTES = 4
"""Bytes of a word that a kernel keeps from step to step."""

FLAGS = ("-std=c99", "-ffp-contract=off", "-fno-strict-aliasing")
"""Options that every compiler needs: one place in the arena holds floats first, and integers later."""

INCLUDE = "poetopt.ops.runtimes.c.include"
"""The package with the headers of poetopt's own kernels."""

C_TYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t", "bool": "uint8_t",
    "uint8": "uint8_t", "int8": "int8_t",
}  # fmt: skip
"""The C type of an element, by numpy's name of the type. A bool is 0 or 1."""

UPDATE = ".update"
"""Suffix of the ops of updates: `sgd.update`, and with the gradient before it, `Gemm+sgd.update`."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """C expressions for the addresses of a call's operands; "" for absent ones and for scratch or state of 0 bytes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scratch: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel of one op.

    Attributes
    ----------
    op_type, domain
        The op; the domain is "" for ONNX's.
    code
        Writes the C99 statement of a call that the kernel doesn't refuse, and whose constants aren't `missing`.
    refuses
        Returns why the kernel can't run a call (a type, an attribute, a rank), from shapes and attributes alone; None
        if it can.
    scratch_bytes
        Returns the bytes of RAM that the kernel needs beside its operands while it runs. They are part of the
        operator's workspace, so that plans include them.
    in_place
        Inputs that output 0 may overwrite if they have its size: results are the same bits.
    constants
        Positions of inputs that must be known when the code is written (axes, shapes, pads). They are not read at run
        time.
    state
        Returns the first values of 32-bit words that outlive the step (a random generator's), from attributes alone.
        They are part of the resident region.
    tilings
        Returns how the kernel runs chunk by chunk, with operands on storage in between: from shapes, attributes and
        known constants (`poetopt.ops.runtimes.c.tiling`). Empty if it needs whole operands.
    headers
        C header files that its code includes.
    include
        The package with these files.
    """

    op_type: str
    code: Callable[[Call, Arguments], str]
    domain: str = ""
    refuses: Callable[[Call], str | None] = lambda call: None
    scratch_bytes: Callable[[Call], int] = lambda call: 0
    in_place: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    state: Callable[[Call], tuple[int, ...]] = lambda call: ()
    tilings: Callable[[Call], tuple[Tiling, ...]] = lambda call: ()
    headers: tuple[str, ...] = ()
    include: str = INCLUDE

    def missing(self, call: Call) -> str | None:
        """Return a message on an input that must be a constant but isn't; None if there is none."""
        for index in self.constants:
            if call.has(index) and call.value(index) is None:
                return f"its input {index} ('{call.input(index).name}') is computed; it must be a constant"
        return None


Strides = tuple[int, ...]


def strides_of(shape: Sequence[int]) -> Strides:
    """Return the elements between neighbours along each axis of a dense tensor."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_strides(shape: Sequence[int], to: Sequence[int]) -> Strides:
    """Return the strides of a dense tensor of `shape` along the axes of `to`: 0 where it is broadcast."""
    dense = strides_of(shape)
    extra = len(to) - len(shape)
    return (0,) * extra + tuple(0 if length == 1 else step for length, step in zip(shape, dense, strict=True))


def merged(shape: Sequence[int], operands: Mapping[str, Strides]) -> tuple[tuple[int, ...], dict[str, Strides]]:
    """Merge axes of a loop nest: fewer axes over the same elements in the same order."""
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
    """Return the index of the element at a loop's variables as a C expression: `i0 * 12 + i1`, `5`, ..."""
    terms = [
        f"{prefix}{axis}" if step == 1 else f"{prefix}{axis} * {step}" for axis, step in enumerate(strides) if step
    ]
    return " + ".join([*terms, *([str(offset)] if offset else [])]).replace("+ -", "- ") or "0"


def loops(shape: Sequence[int], body: str, prefix: str = "i") -> str:
    """Return C loops that run `body` for every element of `shape`, with the int32_t variables `i0`, `i1`, ..."""
    for axis in reversed(range(len(shape))):
        variable = f"{prefix}{axis}"
        inner = "\n".join(f"    {line}" for line in body.splitlines())
        body = f"for (int32_t {variable} = 0; {variable} < {shape[axis]}; ++{variable}) {{\n{inner}\n}}"
    return body


def block(*lines: str) -> str:
    """Return one C statement of several."""
    inner = "\n".join(f"    {line}" for text in lines for line in text.splitlines())
    return f"{{\n{inner}\n}}"


def nest(shape: Sequence[int], operands: Mapping[str, Strides], statement: str) -> str:
    """Return C loops that run `statement` for every element of `shape`; `{name}` is the element of that operand."""
    lengths, strides = merged(shape, operands)
    elements = {name: f"{name}[{index(steps)}]" for name, steps in strides.items()}
    return loops(lengths, statement.format(**elements))


def c_float(value: float) -> str:
    """Return a float32 literal of C with the fewest digits that identify it: `0.1f`, `INFINITY`."""
    number = np.float32(value)
    if not np.isfinite(number):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"
    text = str(number)
    text = text if "." in text or "e" in text else f"{text}.0"
    return f"({text}f)" if text.startswith("-") else f"{text}f"


def c_number(value: float | int | bool, dtype: str) -> str:
    """Return a literal of C for a constant of a type."""
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
    """Return the declaration `const float *a = ...;` of an operand that is read."""
    return f"const {C_TYPES[tensor.dtype]} *{name} = {expression};"


def written(name: str, tensor: Tensor, expression: str) -> str:
    """Return the declaration `float *y = ...;` of an operand that is written."""
    return f"{C_TYPES[tensor.dtype]} *{name} = {expression};"


def called(function: str, *operands: str | int | float) -> str:
    """Return the call `function(y, x, 12, 0.5f);` in C."""
    texts = (c_float(o) if isinstance(o, float) else str(o) for o in operands)
    return f"{function}({', '.join(texts)});"


def refuse_types(call: Call, *allowed: str) -> str | None:
    """Return a refusal if an operand has another element type than `allowed`; None otherwise."""
    for tensor in (*call.inputs, *call.outputs):
        if tensor is not None and tensor.dtype not in allowed:
            return f"{call.node.op_type} of {tensor.dtype} is not supported (supported: {', '.join(allowed)})"
    return None


def real(call: Call) -> str | None:
    """Return a refusal if an operand isn't float32; None otherwise."""
    return refuse_types(call, "float32")


def operands(call: Call, arguments: Arguments) -> list[str]:
    """Return the declarations of the present inputs a, b, c, ... and of output y."""
    declarations = [
        read("abcdefgh"[k], tensor, arguments.inputs[k]) for k, tensor in enumerate(call.inputs) if tensor is not None
    ]
    return [*declarations, written("y", call.output(), arguments.outputs[0])]


def known_types(call: Call) -> str | None:
    """Return a refusal if an operand has an element type without a C type; None otherwise."""
    return refuse_types(call, *C_TYPES)


def filled(y: Tensor, target: str, value: str) -> str:
    """Return a C statement that sets all elements of a tensor."""
    return block(written("y", y, target), f"for (int32_t i = 0; i < {y.size}; ++i) {{\n    y[i] = {value};\n}}")


def two(values: Sequence[int], filler: int) -> tuple[int, int]:
    """Return the numbers of one axis or two as those of two axes: a line is a plane of height one."""
    padded = (*(filler,) * (2 - len(values)), *values)
    return padded[0], padded[1]
