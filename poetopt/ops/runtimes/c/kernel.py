"""A kernel of the `c` runtime: what it needs of RAM, and how it is called in C99. What the code generator builds on.

One kernel is for one op: of ONNX (`Conv`), or one that a run of an operator's nodes amounts to, in `OWN_DOMAIN`
(`Conv.grad_weight`; see `poetopt.graph.Whole`). `poetopt.ops.runtimes.c.steps.steps` says of an operator, `Step` by
`Step`, what to call, in order, with which kernel, and where its scratch lies. Views are no steps: they move no bytes.

| whose | what | when it is asked |
|---|---|---|
| planner | `refuses`, `scratch_bytes`, `in_place`, `state`: from shapes, types, attributes | before solving |
| generator | `missing`, `code`, `headers`: constants are known then | when C is written |

How the generated C looks, and what it must be compiled with:

- `code(call, arguments)` is one C99 statement (a call with all numbers written out, or a block with a loop nest). It
  declares nothing outside of a block, so statements can follow one another in one function.
- `arguments` are C expressions of object pointers: `void *`, or of the element's type (`C_TYPES`). Each is used as
  often as need be, so it has no side effect, and names only what begins with `po_`: other names are the statement's.
  An absent input or output is "". Tensors are dense, in ONNX's order; a scalar has one element. Every buffer starts
  at a multiple of `ALIGNMENT`.
- Output 0 may lie on an input that `in_place` names, at the same address; where an operator updates tensors
  (`Operator.updates`), each new value lies on the old one. Nothing else may overlap.
- `headers` are files of `poetopt/ops/runtimes/c/include/` (or of the package `include` of a third party's), to be
  copied beside the C code and included by name, once each. They need <stdint.h>, <math.h>, <string.h>, and include
  these themselves. Functions in them are `static inline`, and always inlined (`PO_INLINE`), so that numbers that are
  written out become constants of the loops.
- Compile with `FLAGS`: a fused multiply-add rounds once where two operations round twice, so the same bits come out
  everywhere only where none is made. (`#pragma STDC FP_CONTRACT OFF` is not honoured by gcc.) Never -ffast-math.
- Where the same operator is to give the same bits at each call, it must be one function that no compiler clones: give
  it `__attribute__((noipa))`, or noinline where that is unknown.

Third parties register kernels by entry points `poetopt.kernels`: a `Kernel`, or a sequence of them. One for an op
that has a kernel already takes its place.
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
"""Bytes that every buffer starts at a multiple of: those of the largest element, an int64."""

MOST_BYTES = 2**31
"""Of a tensor, and of all that a program links: loops and addresses are of int32_t, so each has less."""

WORD_BYTES = 4
"""Of a word that a kernel keeps from step to step."""

FLAGS = ("-std=c99", "-ffp-contract=off", "-fno-strict-aliasing")
"""What a compiler must be told, whatever else it is: one place in the arena holds floats now, and integers later."""

INCLUDE = "poetopt.ops.runtimes.c.include"
"""The package whose data are the headers of our own kernels."""

C_TYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t", "bool": "uint8_t",
    "uint8": "uint8_t", "int8": "int8_t",
}  # fmt: skip
"""The C type of an element, by numpy's name of it. A bool is 0 or 1."""

UPDATE = ".update"
"""How the ops of updates end: `sgd.update`, and with the gradient before it, `Gemm+sgd.update`."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """C expressions of where the operands of a call lie; "" for what is absent, and for scratch or state of 0 bytes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scratch: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Holds what runs one op.

    op_type, domain
        Which op; the domain is "" for ONNX's.
    code
        The C99 statement that runs a call which the kernel doesn't refuse, and of whose constants none is `missing`.
    refuses
        Why it can't run such a call (a type, an attribute, a rank), from shapes and attributes alone; None: it can.
    scratch_bytes
        What it needs of RAM while it runs, beside operands: part of the operator's workspace, so it is planned with.
    in_place
        Which inputs its output 0 may lie on, if of the same size: the results are the same bits.
    constants
        Inputs that must be known when the code is written (axes, shapes, pads), by position. They are not read at run
        time.
    state
        32-bit words that outlive the step (a random generator's), by their first values, from attributes alone. They
        are a part of the resident region.
    tilings
        How it runs chunk by chunk, with what it needs of storage in between: from shapes and attributes, and constants
        as far as they are known (`poetopt.ops.runtimes.c.tiling`). None: it takes whole operands alone.
    headers
        C files that its code includes.
    include
        The package whose data these files are.
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
        """Says which input would have to be a constant, in words; None where all are that must be."""
        for index in self.constants:
            if call.has(index) and call.value(index) is None:
                return f"its input {index} ('{call.input(index).name}') is computed; it must be a constant"
        return None


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


def real(call: Call) -> str | None:
    """Why not, where an operand is no float32."""
    return refuse_types(call, "float32")


def operands(call: Call, arguments: Arguments) -> list[str]:
    """Declarations of inputs a, b, c, ... and of output y, where they are there."""
    found = [
        read("abcdefgh"[k], tensor, arguments.inputs[k]) for k, tensor in enumerate(call.inputs) if tensor is not None
    ]
    return [*found, written("y", call.output(), arguments.outputs[0])]


def known_types(call: Call) -> str | None:
    """Why not, where an operand has an element type that there is no C type of."""
    return refuse_types(call, *C_TYPES)


def filled(y: Tensor, target: str, value: str) -> str:
    """Sets all elements of a tensor."""
    return block(written("y", y, target), f"for (int32_t i = 0; i < {y.size}; ++i) {{\n    y[i] = {value};\n}}")


def two(values: Sequence[int], filler: int) -> tuple[int, int]:
    """The numbers of one axis or two as those of two: a line is a plane of height one."""
    found = (*(filler,) * (2 - len(values)), *values)
    return found[0], found[1]
