"""Runtimes by name, and their contract: the RAM that operators need, and the operands that kernels may overwrite."""

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
"""The module of each runtime that comes with poetopt; it has an object `runtime`."""

PARTS = (
    "name", "version", "alignment", "in_place", "kernel_bytes", "workspace", "variants", "reserve_bytes", "notes",
    "rows_of_parts", "block_bytes", "row_numbers_bytes", "losses_bytes",
)  # fmt: skip
"""Attributes and methods of every runtime (`poetopt.ops.runtimes.contract.Runtime`)."""


def names() -> tuple[str, ...]:
    """Return the names of all runtimes: poetopt's own, then those of the entry points `poetopt.runtimes`."""
    from importlib.metadata import entry_points

    return (*RUNTIMES, *sorted(point.name for point in entry_points(group="poetopt.runtimes")))


def unknown(name: str) -> str | None:
    """Return a message that no runtime has this name, with the names that exist; None if one has it."""
    if name in names():
        return None
    return f"runtime '{name}' is unknown; known are {', '.join(names())}{closest(name, names())}"


def runtime(name: str) -> Runtime:
    """Return the runtime called `name`.

    Raises
    ------
    DeviceError
        No runtime has the name, or its entry point can't be loaded or is no runtime.
    """
    if name in RUNTIMES:
        builtin: Runtime = importlib.import_module(RUNTIMES[name]).runtime
        return builtin
    from importlib.metadata import entry_points

    for point in entry_points(group="poetopt.runtimes"):
        if point.name == name:
            loaded = imports.load(point, "runtime", DeviceError)
            missing = [part for part in PARTS if not hasattr(loaded, part)]
            called = str(getattr(loaded, "name", name))
            wrong = f"without {', '.join(missing)}" if missing else f"of the name '{called}'" if called != name else ""
            if wrong:
                kind = type(loaded).__name__
                raise DeviceError(f"runtime '{name}' ({imports.origin(point)}) is a {kind} {wrong}; tell its authors")
            return cast("Runtime", loaded)
    raise DeviceError(str(unknown(name)))
