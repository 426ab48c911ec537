"""The kernels that there are, by op: our own, and those that other packages register (`poetopt.kernels`)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from poetopt.graph import Node
from poetopt.ops import KERNELS
from poetopt.ops.runtimes.c.kernel import MOST_BYTES, Call, Kernel
from poetopt.util import plugins
from poetopt.util.errors import DeviceError

GROUP = "poetopt.kernels"

Op = tuple[str, str]
"""Domain and type."""


def kernel_for(node: Node) -> Kernel | None:
    """The kernel for an op, whatever its operands; None where there is none."""
    return kernels().get((node.domain, node.op_type))


def reason(call: Call) -> str | None:
    """Why nothing runs a call, by shapes and attributes alone; None where its kernel does."""
    kernel = kernel_for(call.node)
    name = f"{call.node.domain}.{call.node.op_type}".lstrip(".")
    if kernel is None:
        return f"there is no kernel for {name}"
    for tensor in (*call.inputs, *call.outputs):
        if tensor is not None and tensor.nbytes >= MOST_BYTES:
            return (
                f"tensor {tensor.name!r} has {tensor.nbytes:,} B, and loops in C take less than {MOST_BYTES:,}; give a "
                "smaller --batch"
            )
    return kernel.refuses(call)


@cache
def kernels() -> Mapping[Op, Kernel]:
    """All kernels. Raises DeviceError where an entry point can't be loaded, or holds something else."""
    found: dict[Op, Kernel] = {}
    for module in KERNELS:
        for kernel in importlib.import_module(f"poetopt.ops.{module}").KERNELS:
            op = kernel.domain, kernel.op_type
            if op in found:
                raise ValueError(f"two kernels for {op}")
            found[op] = kernel
    for point in _points():
        found.update(((kernel.domain, kernel.op_type), kernel) for kernel in _registered(point))
    return found


@cache
def version(own: str) -> str:
    """`own`, and the packages that other kernels come from with their versions."""
    others = sorted({f"{p.dist.name} {p.dist.version}" if p.dist else p.name for p in _points()})
    return "+".join((own, *others))


def _points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def _registered(point: EntryPoint) -> Iterator[Kernel]:
    held = plugins.load(point, "kernel", DeviceError)
    for kernel in held if isinstance(held, (list, tuple)) else (held,):
        if not isinstance(kernel, Kernel):
            kind = type(kernel).__name__
            origin = plugins.origin(point)
            raise DeviceError(f"kernel '{point.name}' ({origin}) is a {kind}, no Kernel; tell its authors")
        yield kernel
