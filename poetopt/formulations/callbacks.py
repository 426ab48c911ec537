"""Checks of what blocks give a formulation: whatever is wrong with one, or with an answer of its, is told by its name.

Blocks come from other packages too, and their functions run deep inside a solve. `Formulation` takes no block that
wasn't `checked`, and calls its functions through `answer` alone.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyomo.core as pyo

from poetopt.formulations.block import SETS, Block, PyomoBlock
from poetopt.formulations.goal import Goal
from poetopt.formulations.rows import Row
from poetopt.util import work
from poetopt.util.errors import FormulationError, PoetError
from poetopt.util.imports import failure, origin, registered

ATTRIBUTES = (
    "space",
    "formulation",
    "block_names",
    "goal",
    "baseline_j",
    "baselines_j",
    "reserved_bytes",
    "overhead_j",
    *SETS,
)
"""The attributes that `Formulation.abstract` sets on the model itself."""
TAKES = {"adds_j": ("trial",), "base_j": ("problem", "baseline_j")}
"""The arguments of functions of figures."""


def checked(block: object) -> Block:
    """`block`, which is one, with a name that a model can have and functions that can be called.

    Raises FormulationError.
    """
    if not isinstance(block, Block):
        shown = f"the class {block.__name__}" if isinstance(block, type) else f"a {type(block).__name__}"
        raise FormulationError(f"{shown} is no block; give a Block, or a text such as 'static-power=0.5W'")
    if not isinstance(block.name, str) or not block.name.isidentifier():
        raise FormulationError(
            f"block {block.name!r}: its name is an attribute of the model; make it a Python identifier"
        )
    if block.name in _taken():
        raise FormulationError(f"block '{block.name}': models have another attribute of this name; give it another")
    for function in ANSWERS:
        given = getattr(block, function)
        if not callable(given) and (given is not None or function == "build"):
            raise _wrong(block, block.build, f"{function} must be a function, and is {_a(given)}")
    for function, arguments in TAKES.items():
        given = getattr(block, function)
        if given is not None and not _takes(given, len(arguments)):
            raise _wrong(block, given, f"{function} must take ({', '.join(arguments)})")
    if not isinstance(block.requires, (tuple, list)) or not all(isinstance(name, str) for name in block.requires):
        raise _wrong(block, block.build, f"requires must be a tuple of names, and is {block.requires!r}")
    for attribute in ("goal", "limits"):
        if not isinstance(getattr(block, attribute), Goal | None):
            raise _wrong(block, block.build, f"{attribute} must be a Goal, and is {_a(getattr(block, attribute))}")
    if not isinstance(block.transfer_times, bool | None):
        raise _wrong(block, block.build, f"transfer_times must be True or False, and is {_a(block.transfer_times)}")
    if not isinstance(block.says, str):
        raise _wrong(block, block.build, f"says must be a text, and is {_a(block.says)}")
    return block


def answer(block: Block, function: str, *arguments: object) -> Any:
    """The checked result of one of the block's functions.

    Raises FormulationError for an answer that can't be right, and for what the function raises, which is its cause. Our
    own errors pass, and so does what a function of poetopt's own raises: that is a defect, and told as such.
    """
    asked = getattr(block, function)
    try:
        found = asked(*arguments)
    except (PoetError, MemoryError):
        raise
    except Exception as error:
        if _module(asked).partition(".")[0] == "poetopt":
            raise
        raise _wrong(block, asked, f"{function} failed: {failure(error)}") from error
    wrong = ANSWERS[function](found)
    if wrong is not None:
        raise _wrong(block, asked, f"{function} returned {wrong}")
    return found


def fill(block: Block, component: PyomoBlock) -> None:
    """Pyomo's rule for the block; one that its space doesn't need stays empty. Raises TimeUpError."""
    work.check()
    if block.name in component.model().block_names:
        answer(block, "build", component)


@contextmanager
def told_once() -> Iterator[None]:
    """Without what Pyomo logs of an error on stderr, which it raises as well."""

    def keep(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR or not record.name.startswith("pyomo")

    handlers: list[logging.Handler] = []
    log: logging.Logger | None = logging.getLogger("pyomo.core")
    while log is not None:
        handlers += log.handlers
        log = log.parent
    for handler in handlers:
        handler.addFilter(keep)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(keep)


@functools.cache
def _taken() -> frozenset[str]:
    return frozenset((*ATTRIBUTES, *dir(pyo.AbstractModel())))


def _wrong(block: Block, function: object, what: str) -> FormulationError:
    """`block 'wakeups': ...`, and whose it is, where a package has registered the module of the function."""
    point = registered([_module(function)])
    if point is None:
        return FormulationError(f"block '{block.name}': {what}")
    return FormulationError(f"block '{block.name}' ({origin(point)}): {what}; tell its authors")


def _module(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__module__", ""))


def _takes(function: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # one of C, without a signature
        return True
    return True


def _a(value: object) -> str:
    return repr(value) if value is None or isinstance(value, (int, float, str)) else f"a {type(value).__name__}"


# What is wrong with an answer, or None.


def _anything(found: object) -> None:
    return None


def _no_reason(found: object) -> str | None:
    return None if found is None or isinstance(found, str) else f"{_a(found)}, not a text or None"


def _no_figure(found: Any) -> str | None:
    try:
        return None if math.isfinite(found) else f"{float(found)}, not a finite number of joules"
    except (TypeError, ValueError):
        return f"{_a(found)}, not a number of joules"


def _no_size(found: Any) -> str | None:
    try:
        return None if found >= 0 and found == int(found) else f"{found}, not a whole number of bytes from 0 on"
    except (TypeError, ValueError, OverflowError):
        return f"{_a(found)}, not a number of bytes"


def _no_list(what: str, check: Callable[[Any], str | None], found: object) -> str | None:
    if not isinstance(found, (list, tuple)):
        return f"{_a(found)}, not a list of {what}"
    return next((wrong for wrong in map(check, found) if wrong is not None), None)


def _no_row(row: Any) -> str | None:
    """Its variables are looked at where they become columns: here it is no step of Python for each entry."""
    if not isinstance(row, Row):
        return f"{_a(row)} in place of a Row"
    kind = f"a row ({row.kind})"
    try:
        if len(row.variables) != len(row.coefficients):
            return f"{kind} of {len(row.variables)} variables and {len(row.coefficients)} coefficients"
        if not len(row.variables):
            return f"{kind} without variables"
        if not math.isfinite(sum(row.coefficients)):
            return f"{kind} with a coefficient that is not finite"
        if not row.lower <= row.upper:
            return f"{kind} from {row.lower} to {row.upper}, which nothing keeps"
        if not (math.isfinite(row.lower) or math.isfinite(row.upper)):
            return f"{kind} from {row.lower} to {row.upper}: one of them must be finite"
        if math.isnan(row.violation):
            return f"{kind} whose violation is nan"
        hash(row.key)
    except (TypeError, ValueError) as error:
        return f"{kind} that isn't made as Row says: {error}"
    return None


ANSWERS: dict[str, Callable[[Any], str | None]] = {
    "build": _anything,
    "separator": functools.partial(_no_list, "rows", _no_row),
    "when": _anything,
    "revive": lambda row: None if row is None else _no_row(row),
    "refuses": _no_reason,
    "adds_j": _no_figure,
    "base_j": _no_figure,
    "impossible": _no_reason,
    "reserve_bytes": _no_size,
}
"""By function; all that a block may have."""
