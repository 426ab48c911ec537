"""The mathematics of a block, read from the docstring beside the code that builds it."""

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
    """A row of a block's table: the symbol as TeX, the attribute on the built block (`-`: none), unit and meaning."""

    symbol: str
    attribute: str
    unit: str
    meaning: str


def mathematics(block: Block) -> str:
    """The docstring of the block's file where it is about the block, else of the function that builds it.

    Empty where neither has one.
    """
    build = _plain(block.build)
    own = inspect.getdoc(build) or ""
    module = sys.modules.get(getattr(build, "__module__", ""))
    shared = inspect.cleandoc(module.__doc__) if module is not None and module.__doc__ else ""
    about = shared if f"`{block.name}`" in shared.partition("\n")[0] else ""
    return about or own or shared


def title(block: Block) -> str:
    """The first sentence of the mathematics, without the block's name."""
    first = mathematics(block).partition("\n\n")[0].replace("\n", " ")
    return _HEADING.sub("", first).rstrip(".")


def symbols(block: Block) -> tuple[Symbol, ...]:
    """The rows of the docstring's table `symbol | attribute | unit | meaning`; empty where there is none."""
    found: list[Symbol] = []
    inside = False
    for line in mathematics(block).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
        if cells[:4] == ["symbol", "attribute", "unit", "meaning"]:
            inside = True
        elif inside and len(cells) == 4:
            if not set(cells[0]) <= {"-", ":"}:
                found.append(Symbol(cells[0].strip("$ "), cells[1].strip("` "), cells[2].strip("` "), cells[3]))
        elif inside:
            break
    return tuple(found)


def _plain(build: Callable[..., Any]) -> Callable[..., Any]:
    return build.func if isinstance(build, functools.partial) else build
