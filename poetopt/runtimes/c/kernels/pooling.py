"""Pooling over one or two axes, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from poetopt.graph import OWN_DOMAIN, Tensor
from poetopt.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.axes import Code, along
from poetopt.runtimes.c.tiles.tiling import Tiling
from poetopt.runtimes.c.write import c_float, called, refuse_types

HEADER = "po_pool.h"
NORM = "po_norm.h"


def _window(call: Call, x: Tensor, y: Tensor) -> tuple[int, ...]:
    """Planes, y's and x's size, kernel, steps, taps, pads before: as the functions of the header take them."""
    axes = len(x.shape) - 2

    def two(values: tuple[int, ...], filler: int) -> tuple[int, ...]:
        return (filler,) * (2 - axes) + values

    kernel = call.integers("kernel_shape")
    return (
        prod(x.shape[:2]), *two(y.shape[2:], 1), *two(x.shape[2:], 1), *two(kernel, 1),
        *two(call.integers("strides", (1,) * axes), 1), *two(call.integers("dilations", (1,) * axes), 1),
        *two(call.integers("pads", (0,) * 2 * axes)[:axes], 0),
    )  # fmt: skip


def _after(call: Call, x: Tensor) -> tuple[int, ...]:
    axes = len(x.shape) - 2
    return (0,) * (2 - axes) + call.integers("pads", (0,) * 2 * axes)[axes:]


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
    return called(f"po_max_pool{wide}", arguments.outputs[0], where, arguments.inputs[0], *_window(call, x, y), first)


def _max_pool_gradient(call: Call, arguments: Arguments, first: str = "0") -> str:
    dy, where, dx = call.input(0), call.input(1), call.output()
    wide = "_int64" if where.dtype == "int64" else ""
    return called(f"po_max_pool_gradient{wide}", arguments.outputs[0], *arguments.inputs[:2], dx.size, dy.size, first)


def _average_pool(call: Call, arguments: Arguments) -> str:
    x, y = call.input(0), call.output()
    padded = call.integer("count_include_pad", 0)
    return called(
        "po_average_pool", arguments.outputs[0], arguments.inputs[0], *_window(call, x, y), *_after(call, x), padded
    )


def _average_pool_gradient(call: Call, arguments: Arguments) -> str:
    dy, dx = call.input(0), call.output()
    padded = call.integer("count_include_pad", 0)
    return called(
        "po_average_pool_gradient", arguments.outputs[0], arguments.inputs[0], *_window(call, dx, dy),
        *_after(call, dx), padded,
    )  # fmt: skip


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


def _by_plane(code: Code) -> Callable[[Call], tuple[Tiling, ...]]:
    """Chunks of planes."""

    def tilings(call: Call) -> tuple[Tiling, ...]:
        return along(code, call, [1] * len(call.inputs), [1] * len(call.outputs), merged=True)

    return tilings


def _by_indexed_plane(code: Callable[[Call, Arguments, str], str], wide: int) -> Callable[[Call], tuple[Tiling, ...]]:
    """The same of what counts places in all of an operand (0: the input, 1: the output), from the chunk's first one."""

    def tilings(call: Call) -> tuple[Tiling, ...]:
        shape = (call.output() if wide else call.input(0)).shape
        unit = prod(shape[2:])

        def begun(call: Call, arguments: Arguments, begin: str) -> str:
            return code(call, arguments, f"{begin} * {unit}")

        return along(_max_pool, call, [1] * len(call.inputs), [1] * len(call.outputs), begun, merged=True)

    return tilings


KERNELS: tuple[Kernel, ...] = (
    Kernel("MaxPool", _max_pool, refuses=_refuses, headers=(HEADER,), tilings=_by_indexed_plane(_max_pool, 0)),
    Kernel(
        "MaxPool.indexed", _max_pool, OWN_DOMAIN, _refuses, headers=(HEADER,), tilings=_by_indexed_plane(_max_pool, 0)
    ),
    Kernel(
        "MaxPool.grad_input", _max_pool_gradient, OWN_DOMAIN, _indexed, headers=(HEADER,),
        tilings=_by_indexed_plane(_max_pool_gradient, 1),
    ),
    Kernel("AveragePool", _average_pool, refuses=_refuses, headers=(HEADER,), tilings=_by_plane(_average_pool)),
    Kernel(
        "AveragePool.grad_input", _average_pool_gradient, OWN_DOMAIN, _planes, headers=(HEADER,),
        tilings=_by_plane(_average_pool_gradient),
    ),
    Kernel("GlobalAveragePool", _global_average, refuses=_real, headers=(NORM,), tilings=_by_plane(_global_average)),
)  # fmt: skip
