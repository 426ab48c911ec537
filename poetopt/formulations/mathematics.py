"""Mathematics of a block, read from the docstring next to the code that builds it."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from poetopt.formulations.block import Block

_HEADING = re.compile(r"^Block `[^`]+`[^:]*:\s*")


class Symbol(NamedTuple):
    """Row of a block's table: the symbol as TeX, the attribute on the built block (`-`: none), unit and meaning."""

    symbol: str
    attribute: str
    unit: str
    meaning: str


def mathematics(block: Block) -> str:
    """Return the docstring of the block's file if that is about the block, else that of its build function.

    The result is empty if neither has one.
    """
    build = _unwrap(block.build)
    build_doc = inspect.getdoc(build) or ""
    module = sys.modules.get(getattr(build, "__module__", ""))
    module_doc = inspect.cleandoc(module.__doc__) if module is not None and module.__doc__ else ""
    about = module_doc if f"`{block.name}`" in module_doc.partition("\n")[0] else ""
    return about or build_doc or module_doc


def title(block: Block) -> str:
    """Return the first sentence of the mathematics, without the block's name."""
    first = mathematics(block).partition("\n\n")[0].replace("\n", " ")
    return _HEADING.sub("", first).rstrip(".")


def symbols(block: Block) -> tuple[Symbol, ...]:
    """Return the rows of the docstring's table `symbol | attribute | unit | meaning`; empty without one."""
    table_rows: list[Symbol] = []
    in_table = False
    for line in mathematics(block).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
        if cells[:4] == ["symbol", "attribute", "unit", "meaning"]:
            in_table = True
        elif in_table and len(cells) == 4:
            if not set(cells[0]) <= {"-", ":"}:
                table_rows.append(Symbol(cells[0].strip("$ "), cells[1].strip("` "), cells[2].strip("` "), cells[3]))
        elif in_table:
            break
    return tuple(table_rows)


def _unwrap(build: Callable[..., Any]) -> Callable[..., Any]:
    return build.func if isinstance(build, functools.partial) else build
