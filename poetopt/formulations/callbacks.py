"""Checks of blocks and of the results of their functions. Each error names the block that caused it.

Other packages supply blocks too, and their functions run deep inside a solve. `Formulation` accepts only blocks that
`checked` has passed, and calls their functions only through `answer`.
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
"""Attributes that `Formulation.abstract` sets on the model itself."""
FUNCTION_ARGUMENTS = {"adds_j": ("trial",), "base_j": ("problem", "baseline_j")}
"""Arguments of the functions that return figures."""


def checked(block: object) -> Block:
    """Return `block` after a check of its type, name, functions and flags.

    Raises
    ------
    FormulationError
        The object is no Block, its name can't be an attribute of a model, or one of its fields has a wrong type.
    """
    if not isinstance(block, Block):
        shown = f"the class {block.__name__}" if isinstance(block, type) else f"a {type(block).__name__}"
        raise FormulationError(f"{shown} is no block; give a Block, or a text such as 'static-power=0.5W'")
    if not isinstance(block.name, str) or not block.name.isidentifier():
        raise FormulationError(
            f"block {block.name!r}: its name becomes an attribute of the model; make it a Python identifier"
        )
    if block.name in _reserved_names():
        raise FormulationError(
            f"block '{block.name}': models already have an attribute of this name; give the block another name"
        )
    for function in RESULT_CHECKS:
        value = getattr(block, function)
        if not callable(value) and (value is not None or function == "build"):
            raise _block_error(block, block.build, f"{function} must be a function, and is {_describe(value)}")
    for function, arguments in FUNCTION_ARGUMENTS.items():
        value = getattr(block, function)
        if value is not None and not _accepts(value, len(arguments)):
            raise _block_error(block, value, f"{function} must take ({', '.join(arguments)})")
    if not isinstance(block.requires, (tuple, list)) or not all(isinstance(name, str) for name in block.requires):
        raise _block_error(block, block.build, f"requires must be a tuple of names, and is {block.requires!r}")
    for attribute in ("goal", "limits"):
        if not isinstance(getattr(block, attribute), Goal | None):
            raise _block_error(
                block, block.build, f"{attribute} must be a Goal, and is {_describe(getattr(block, attribute))}"
            )
    if not isinstance(block.transfer_times, bool | None):
        raise _block_error(
            block, block.build, f"transfer_times must be True or False, and is {_describe(block.transfer_times)}"
        )
    if not isinstance(block.says, str):
        raise _block_error(block, block.build, f"says must be a text, and is {_describe(block.says)}")
    return block


def answer(block: Block, function: str, *arguments: object) -> Any:
    """Return the checked result of one of the block's functions.

    Raises
    ------
    FormulationError
        The result can't be right, or the function raised an exception, which is then the cause. Errors of poetopt pass
        unchanged. So does any exception from a function of poetopt itself, because that is a defect of poetopt.
    """
    callback = getattr(block, function)
    try:
        result = callback(*arguments)
    except (PoetError, MemoryError):
        raise
    except Exception as error:
        if _module(callback).partition(".")[0] == "poetopt":
            raise
        raise _block_error(block, callback, f"{function} failed: {failure(error)}") from error
    fault = RESULT_CHECKS[function](result)
    if fault is not None:
        raise _block_error(block, callback, f"{function} returned {fault}")
    return result


def fill(block: Block, component: PyomoBlock) -> None:
    """Build the block as Pyomo's rule; a block that its space doesn't need stays empty. Raises TimeUpError."""
    work.check()
    if block.name in component.model().block_names:
        answer(block, "build", component)


@contextmanager
def told_once() -> Iterator[None]:
    """Suppress Pyomo's error log on stderr, because Pyomo raises the same errors."""

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
def _reserved_names() -> frozenset[str]:
    return frozenset((*ATTRIBUTES, *dir(pyo.AbstractModel())))


def _block_error(block: Block, function: object, what: str) -> FormulationError:
    """Return the error `block 'wakeups': ...`, with the package that registered the module of the function, if any."""
    point = registered([_module(function)])
    if point is None:
        return FormulationError(f"block '{block.name}': {what}")
    return FormulationError(f"block '{block.name}' ({origin(point)}): {what}; tell its authors")


def _module(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__module__", ""))


def _accepts(function: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a function in C has no signature
        return True
    return True


def _describe(value: object) -> str:
    return repr(value) if value is None or isinstance(value, (int, float, str)) else f"a {type(value).__name__}"


# Checks of results: each returns what is wrong with it, or None.


def _accept_any(result: object) -> None:
    return None


def _reason_fault(result: object) -> str | None:
    return None if result is None or isinstance(result, str) else f"{_describe(result)}, not a text or None"


def _joules_fault(result: Any) -> str | None:
    try:
        return None if math.isfinite(result) else f"{float(result)}, not a finite number of joules"
    except (TypeError, ValueError):
        return f"{_describe(result)}, not a number of joules"


def _bytes_fault(result: Any) -> str | None:
    try:
        return None if result >= 0 and result == int(result) else f"{result}, not a whole number of bytes from 0 on"
    except (TypeError, ValueError, OverflowError):
        return f"{_describe(result)}, not a number of bytes"


def _list_fault(what: str, check: Callable[[Any], str | None], result: object) -> str | None:
    if not isinstance(result, (list, tuple)):
        return f"{_describe(result)}, not a list of {what}"
    return next((wrong for wrong in map(check, result) if wrong is not None), None)


def _row_fault(row: Any) -> str | None:
    """Check a row without a Python step for each entry; its variables are checked when they become columns."""
    if not isinstance(row, Row):
        return f"{_describe(row)} in place of a Row"
    kind = f"a row ({row.kind})"
    try:
        if len(row.variables) != len(row.coefficients):
            return f"{kind} of {len(row.variables)} variables and {len(row.coefficients)} coefficients"
        if not len(row.variables):
            return f"{kind} without variables"
        if not math.isfinite(sum(row.coefficients)):
            return f"{kind} with a coefficient that is not finite"
        if not row.lower <= row.upper:
            return f"{kind} from {row.lower} to {row.upper}, which no point satisfies"
        if not (math.isfinite(row.lower) or math.isfinite(row.upper)):
            return f"{kind} from {row.lower} to {row.upper}: one of them must be finite"
        if math.isnan(row.violation):
            return f"{kind} whose violation is nan"
        hash(row.key)
    except (TypeError, ValueError) as error:
        return f"{kind} with wrong field types: {error}"
    return None


RESULT_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "build": _accept_any,
    "separator": functools.partial(_list_fault, "rows", _row_fault),
    "when": _accept_any,
    "revive": lambda row: None if row is None else _row_fault(row),
    "refuses": _reason_fault,
    "adds_j": _joules_fault,
    "base_j": _joules_fault,
    "impossible": _reason_fault,
    "reserve_bytes": _bytes_fault,
}
"""Check of the result, for each function that a block may have."""
