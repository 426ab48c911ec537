"""Runtimes by name, and their contract: the RAM that operators take, and what kernels may write over."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from poetopt.util import imports
from poetopt.util.errors import DeviceError
from poetopt.util.text import closest

if TYPE_CHECKING:
    from poetopt.ops.runtimes.contract import Runtime

DEFAULT = "onnxruntime"
"""The runtime of a device that names none."""

RUNTIMES = {DEFAULT: "poetopt.ops.runtimes.onnxruntime", "c": "poetopt.ops.runtimes.c"}
"""The runtimes that come with poetopt, by name: the module that holds an object `runtime`."""

PARTS = (
    "name", "version", "alignment", "in_place", "kernel_bytes", "workspace", "variants", "reserve_bytes", "notes",
    "rows_of_parts", "block_bytes", "row_numbers_bytes", "losses_bytes",
)  # fmt: skip
"""What every runtime has: see `poetopt.ops.runtimes.contract.Runtime`."""


def names() -> tuple[str, ...]:
    """The runtimes that are known: our own, then those of the entry points `poetopt.runtimes`."""
    from importlib.metadata import entry_points

    return (*RUNTIMES, *sorted(point.name for point in entry_points(group="poetopt.runtimes")))


def unknown(name: str) -> str | None:
    """That there is no runtime of that name, with those that there are; None where there is one."""
    if name in names():
        return None
    return f"unknown runtime '{name}': there are {', '.join(names())}{closest(name, names())}"


def runtime(name: str) -> Runtime:
    """The runtime called `name`.

    Raises DeviceError where there is none, with those that there are, and where an entry point can't be loaded or holds
    something else.
    """
    if name in RUNTIMES:
        own: Runtime = importlib.import_module(RUNTIMES[name]).runtime
        return own
    from importlib.metadata import entry_points

    for point in entry_points(group="poetopt.runtimes"):
        if point.name == name:
            found = imports.load(point, "runtime", DeviceError)
            missing = [part for part in PARTS if not hasattr(found, part)]
            called = str(getattr(found, "name", name))
            wrong = f"without {', '.join(missing)}" if missing else f"of the name '{called}'" if called != name else ""
            if wrong:
                kind = type(found).__name__
                raise DeviceError(f"runtime '{name}' ({imports.origin(point)}) is a {kind} {wrong}; tell its authors")
            return cast("Runtime", found)
    raise DeviceError(str(unknown(name)))
