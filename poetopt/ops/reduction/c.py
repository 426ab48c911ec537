"""Reductions over axes: sums in parts of PO_PART terms, in one fixed order."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from poetopt.graph import OWN_DOMAIN
from poetopt.ops.runtimes.c.axes import Code, along, leading
from poetopt.ops.runtimes.c.kernel import (
    C_TYPES,
    Arguments,
    Call,
    Kernel,
    block,
    c_float,
    index,
    loops,
    merged,
    read,
    strides_of,
    written,
)
from poetopt.ops.runtimes.c.tiling import Tiling


def _refuses(call: Call) -> str | None:
    dtype, types = (
        call.input(0).dtype,
        ("float32", "int64", "int32") if call.node.op_type == "ReduceSum" else ("float32",),
    )
    return (
        None if dtype in types else f"{call.node.op_type} of {dtype} is not supported (supported: {', '.join(types)})"
    )


def _axes(call: Call) -> tuple[int, ...]:
    rank = len(call.input(0).shape)
    value = call.value(1)
    axes = call.integers("axes") if value is None else tuple(int(v) for v in np.asarray(value).reshape(-1))
    if not axes:
        return () if call.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(axis % rank for axis in axes)


def _reduction_code(first: str, term: str, joined: str, last: str = "{s}") -> Code:
    """Return the writer of a reduction's C.

    Parameters
    ----------
    first
        Initial value of each partial result.
    term, joined
        C expressions that add an element {x}, and another partial result {p}, to the result so far {s}.
    last
        C expression of the final result.
    """

    def code(call: Call, arguments: Arguments) -> str:
        x, y = call.input(0), call.output()
        axes, kind = _axes(call), C_TYPES[x.dtype]
        x_strides = strides_of(x.shape)
        kept = [axis for axis in range(len(x.shape)) if axis not in axes]
        outer = [x.shape[axis] for axis in kept]
        outer_axes, outer_strides = merged(
            outer, {"x": tuple(x_strides[axis] for axis in kept), "y": strides_of(outer)}
        )
        inner = sorted(axes)
        lengths, steps = merged([x.shape[axis] for axis in inner], {"x": tuple(x_strides[axis] for axis in inner)})
        lengths, strides = (lengths or (1,)), (steps["x"] or (0,))
        where = index(outer_strides["x"])
        *before, length = range(len(lengths))
        step = strides[length]
        run = " + ".join([where, *(f"r{k} * {strides[k]}" for k in before), f"k * {step}"])
        count = lengths[length]
        part = block(
            f"const int32_t end = po_smaller({count}, r{length} + PO_PART);",
            f"{kind} part = {first};",
            f"for (int32_t k = r{length}; k < end; ++k) {{\n    part = {term.format(s='part', x=f'x[{run}]')};\n}}",
            f"sum = {joined.format(s='sum', p='part')};",
        )
        runs = f"for (int32_t r{length} = 0; r{length} < {count}; r{length} += PO_PART) {part}"
        runs = loops([lengths[k] for k in before], runs, "r")
        terms = int(np.prod(lengths, dtype=np.int64))
        element = f"y[{index(outer_strides['y'])}]"
        result = last.format(s="sum", n=c_float(1.0 / max(terms, 1)))
        body = block(f"{kind} sum = {first};", runs, f"{element} = {result};")
        return block(read("x", x, arguments.inputs[0]), written("y", y, arguments.outputs[0]), loops(outer_axes, body))

    return code


def _tilings(code: Code, first: str, term: str, joined: str, last: str) -> Callable[[Call], tuple[Tiling, ...]]:
    """Return a function for the tiling along the first axis of more than one step.

    It is a kept axis, or a reduced axis if all kept axes are behind it.
    """

    def summed(call: Call, arguments: Arguments, begin: str, terms: int) -> str:
        """Return C that adds rows to each column's part in the scratch, and whole parts to the result."""
        rows, columns = call.input(0).size // call.output().size, call.output().size
        row = f"r + {begin}" if begin != "0" else "r"
        result = last.format(s="y[k]", n=c_float(1.0 / terms))
        return block(
            read("x", call.input(0), arguments.inputs[0]),
            written("y", call.output(), arguments.outputs[0]),
            f"float *parts = {arguments.scratch};",
            f"for (int32_t r = 0; r < {rows}; ++r) {{",
            f"    for (int32_t k = 0; k < {columns}; ++k) {{",
            f"        const float part = ({row}) % PO_PART == 0 ? {first} : parts[k];",
            f"        parts[k] = {term.format(s='part', x=f'x[r * {columns} + k]')};",
            f"        if (({row} + 1) % PO_PART == 0 || {row} + 1 == {terms}) {{",
            f"            const float sum = {row} < PO_PART ? {first} : y[k];",
            f"            y[k] = {joined.format(s='sum', p='parts[k]')};",
            f"            if ({row} + 1 == {terms}) {{" if result != "y[k]" else "",
            f"                y[k] = {result};\n            }}" if result != "y[k]" else "",
            "        }",
            "    }",
            "}",
        )

    def tilings(call: Call) -> tuple[Tiling, ...]:
        shape = call.input(0).shape
        if (call.has(1) and call.value(1) is None) or call.input(0).dtype != "float32":
            return ()
        reduced = _axes(call)
        axis = leading(shape, len(shape))
        if axis is not None and axis in reduced:
            kept_axes = [a for a in range(axis, len(shape)) if shape[a] > 1 and a not in reduced]
            axis = min(kept_axes, default=len(shape)) - 1
            if any(shape[a] > 1 and a in reduced for a in range(axis + 1, len(shape))) or not call.output().size:
                return ()
            terms, nbytes = prod(shape[: axis + 1]), call.output().nbytes

            def begun(call: Call, arguments: Arguments, begin: str) -> str:
                return summed(call, arguments, begin, terms)

            inputs = [axis, *(None for _ in call.inputs[1:])]
            return along(code, call, inputs, [None], begun, nbytes, merged=True)
        if axis is None:
            return ()
        kept = axis if call.integer("keepdims", 1) else sum(1 for a in range(axis) if a not in reduced)
        return along(code, call, [axis, *(None for _ in call.inputs[1:])], [kept])

    return tilings


def _kernel(op_type: str, first: str, term: str, joined: str, last: str = "{s}", *, domain: str = "") -> Kernel:
    code = _reduction_code(first, term, joined, last)
    tilings = _tilings(code, first, term, joined, last)
    return Kernel(op_type, code, domain, refuses=_refuses, constants=(1,), tilings=tilings, headers=("po_math.h",))


_ADDED = "{s} + {p}"
KERNELS: tuple[Kernel, ...] = (
    _kernel("ReduceSum", "0", "{s} + {x}", _ADDED),
    _kernel("ReduceMean", "0.0f", "{s} + {x}", _ADDED, "{s} * {n}"),
    _kernel("ReduceSumSquare", "0.0f", "{s} + {x} * {x}", _ADDED),
    _kernel("Gradient.squares", "0.0f", "{s} + {x} * {x}", _ADDED, domain=OWN_DOMAIN),
    _kernel("ReduceL1", "0.0f", "{s} + fabsf({x})", _ADDED),
    _kernel("ReduceL2", "0.0f", "{s} + {x} * {x}", _ADDED, "sqrtf({s})"),
    _kernel("ReduceProd", "1.0f", "{s} * {x}", "{s} * {p}"),
    _kernel("ReduceMax", "-INFINITY", "po_max({s}, {x})", "po_max({s}, {p})"),
    _kernel("ReduceMin", "INFINITY", "po_min({s}, {x})", "po_min({s}, {p})"),
)
