"""Pooling over one or two axes, and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from poetopt.graph import OWN_DOMAIN, Tensor
from poetopt.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.axes import Code, along
from poetopt.runtimes.c.tiles.pools import Window, pooled_rows, spread_rows
from poetopt.runtimes.c.tiles.tiling import OUTER, Chunk, Tiling
from poetopt.runtimes.c.write import c_float, called, refuse_types

HEADER = "po_pool.h"
NORM = "po_norm.h"


def _window(call: Call, x: Tensor, y: Tensor) -> Window:
    axes = len(x.shape) - 2

    def two(values: tuple[int, ...], filler: int) -> tuple[int, int]:
        found = (filler,) * (2 - axes) + values
        return found[0], found[1]

    pads = call.integers("pads", (0,) * 2 * axes)
    return Window(
        prod(x.shape[:2]), two(y.shape[2:], 1), two(x.shape[2:], 1), two(call.integers("kernel_shape"), 1),
        two(call.integers("strides", (1,) * axes), 1), two(call.integers("dilations", (1,) * axes), 1),
        two(pads[:axes], 0), two(pads[axes:], 0),
    )  # fmt: skip


def _refuses(call: Call) -> str | None:
    rank = len(call.input(0).shape)
    if rank not in (3, 4):
        return f"{call.node.op_type} over {rank - 2} axes; it has one or two"
    if call.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or call.integer("storage_order", 0):
        return f"{call.node.op_type} with auto_pad or storage_order"
    return refuse_types(call, "float32", "int64", "int32")


def _max_pool(call: Call, arguments: Arguments, first: str = "0") -> str:
    x, y = call.input(0), call.output()
    indexed = len(call.outputs) > 1 and call.outputs[1] is not None
    where = arguments.outputs[1] if indexed else "NULL"
    wide = "_int64" if indexed and call.output(1).dtype == "int64" else ""
    numbers = _window(call, x, y).numbers()
    return called(f"po_max_pool{wide}", arguments.outputs[0], where, arguments.inputs[0], *numbers, first)


def _max_pool_gradient(call: Call, arguments: Arguments, first: str = "0") -> str:
    dy, where, dx = call.input(0), call.input(1), call.output()
    wide = "_int64" if where.dtype == "int64" else ""
    return called(f"po_max_pool_gradient{wide}", arguments.outputs[0], *arguments.inputs[:2], dx.size, dy.size, first)


def _average_pool(call: Call, arguments: Arguments) -> str:
    window, padded = _window(call, call.input(0), call.output()), call.integer("count_include_pad", 0)
    operands = arguments.outputs[0], arguments.inputs[0]
    return called("po_average_pool", *operands, *window.numbers(), *window.after, padded)


def _average_pool_gradient(call: Call, arguments: Arguments) -> str:
    window, padded = _window(call, call.output(), call.input(0)), call.integer("count_include_pad", 0)
    operands = arguments.outputs[0], arguments.inputs[0]
    return called("po_average_pool_gradient", *operands, *window.numbers(), *window.after, padded)


def _global_average(call: Call, arguments: Arguments) -> str:
    x = call.input(0)
    planes, size = prod(x.shape[:2]), prod(x.shape[2:])
    line = f"y[i] = po_row_sum(x + i * {size}, {size}, 1) * {c_float(1.0 / max(size, 1))};"
    return block(
        f"const float *x = {arguments.inputs[0]};",
        f"float *y = {arguments.outputs[0]};",
        f"for (int32_t i = 0; i < {planes}; ++i) {{\n    {line}\n}}",
    )


def _real(call: Call) -> str | None:
    return refuse_types(call, "float32")


def _planes(call: Call) -> str | None:
    rank = len(call.output().shape)
    return f"{call.node.op_type} over {rank - 2} axes; it has one or two" if rank not in (3, 4) else _real(call)


def _indexed(call: Call) -> str | None:
    return refuse_types(call, "float32", "int64", "int32")


def _max_pool_rows(call: Call) -> tuple[Tiling, ...]:
    def line(window: Window, chunk: Chunk, at: Sequence[str]) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        y, where, x = at if len(at) == 3 else (at[0], "NULL", at[1])
        wide = "_int64" if len(at) == 3 and where != "NULL" and call.output(1).dtype == "int64" else ""
        above = f"{window.before[0]} + first - {begin} * {window.steps[0]}"
        first = f"(p * {window.size[0]} + first) * {window.size[1]}"
        return called(f"po_max_pool{wide}", y, where, x, *window.plane(count, "last - first", above), first)

    return pooled_rows(call, _window(call, call.input(0), call.output()), line)


def _average_pool_rows(call: Call) -> tuple[Tiling, ...]:
    padded = call.integer("count_include_pad", 0)

    def line(window: Window, chunk: Chunk, at: Sequence[str]) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        above = f"{window.before[0]} + first - {begin} * {window.steps[0]}"
        below = f"{window.size[0] + window.after[0]} - last"
        return called(
            "po_average_pool", *at, *window.plane(count, "last - first", above), below, window.after[1], padded
        )

    return pooled_rows(call, _window(call, call.input(0), call.output()), line)


def _average_pool_gradient_rows(call: Call) -> tuple[Tiling, ...]:
    padded = call.integer("count_include_pad", 0)

    def line(window: Window, chunk: Chunk, at: Sequence[str]) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        above = f"{window.before[0]} + {begin} - first * {window.steps[0]}"
        return called(
            "po_average_pool_gradient_rows", *at, *window.plane("last - first", count, above), *window.after, padded,
            begin, window.size[0], window.before[0],
        )  # fmt: skip

    return spread_rows(call, _window(call, call.output(), call.input(0)), line)


def _by_plane(
    code: Code, by_rows: Callable[[Call], tuple[Tiling, ...]] | None = None
) -> Callable[[Call], tuple[Tiling, ...]]:
    """Chunks of planes, and of rows."""

    def tilings(call: Call) -> tuple[Tiling, ...]:
        planes = along(code, call, [1] * len(call.inputs), [1] * len(call.outputs), merged=True)
        return planes if by_rows is None else (*planes, *by_rows(call))

    return tilings


def _by_indexed_plane(
    code: Callable[[Call, Arguments, str], str], wide: int, by_rows: Callable[[Call], tuple[Tiling, ...]] | None = None
) -> Callable[[Call], tuple[Tiling, ...]]:
    """The same of what counts places in all of an operand (0: the input, 1: the output), from the chunk's first one."""

    def tilings(call: Call) -> tuple[Tiling, ...]:
        shape = (call.output() if wide else call.input(0)).shape
        unit = prod(shape[2:])

        def begun(call: Call, arguments: Arguments, begin: str) -> str:
            return code(call, arguments, f"{begin} * {unit}")

        planes = along(_max_pool, call, [1] * len(call.inputs), [1] * len(call.outputs), begun, merged=True)
        return planes if by_rows is None else (*planes, *by_rows(call))

    return tilings


MAX_TILINGS = _by_indexed_plane(_max_pool, 0, _max_pool_rows)

KERNELS: tuple[Kernel, ...] = (
    Kernel("MaxPool", _max_pool, refuses=_refuses, headers=(HEADER,), tilings=MAX_TILINGS),
    Kernel("MaxPool.indexed", _max_pool, OWN_DOMAIN, _refuses, headers=(HEADER,), tilings=MAX_TILINGS),
    Kernel(
        "MaxPool.grad_input", _max_pool_gradient, OWN_DOMAIN, _indexed, headers=(HEADER,),
        tilings=_by_indexed_plane(_max_pool_gradient, 1),
    ),
    Kernel(
        "AveragePool", _average_pool, refuses=_refuses, headers=(HEADER,),
        tilings=_by_plane(_average_pool, _average_pool_rows),
    ),
    Kernel(
        "AveragePool.grad_input", _average_pool_gradient, OWN_DOMAIN, _planes, headers=(HEADER,),
        tilings=_by_plane(_average_pool_gradient, _average_pool_gradient_rows),
    ),
    Kernel("GlobalAveragePool", _global_average, refuses=_real, headers=(NORM,), tilings=_by_plane(_global_average)),
)  # fmt: skip
