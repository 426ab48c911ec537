"""Blocks by name and value, as `--block static-power=0.5W` asks for them.

A package adds one through the entry point group `poetopt.blocks`: the entry point's name is what stands before the
equals sign, its object a `BlockOption`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.util import imports
from poetopt.util.errors import FormulationError, OptionError, PoetError
from poetopt.util.text import closest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from poetopt.formulations.block import Block
    from poetopt.formulations.language import Formulation
    from poetopt.graph.problem import Problem

ENTRY_POINTS = "poetopt.blocks"
HOMES = {
    "static-power": "poetopt.formulations.static_power",
    "energy-limit": "poetopt.formulations.energy_budget",
    "flash-wear": "poetopt.formulations.flash_wear",
}
"""The blocks that come with poetopt, by name: the module that holds an object `option`."""


@dataclass(frozen=True)
class BlockOption:
    """A block that is made from a text.

    metavar
        What the value looks like, for people: `WATTS`.
    make
        (value, problem, steps) -> the block. The value is the text behind the equals sign, empty where there is none;
        a total is divided by `steps`, the training steps that it is for. Raises OptionError for a value that it can't
        read.
    example
        A value that it can read: what `poetopt formulations` makes the block with, for a problem of two operators.
    """

    metavar: str
    make: Callable[[str, Problem, int], Block]
    example: str


def names() -> tuple[str, ...]:
    """The blocks that can be asked for by name: our own, then those of the entry points."""
    from importlib.metadata import entry_points

    return (*HOMES, *sorted(point.name for point in entry_points(group=ENTRY_POINTS)))


def option(name: str) -> BlockOption:
    """The option called `name`. Raises FormulationError, with the closest name, where there is none."""
    if name in HOMES:
        own: BlockOption = importlib.import_module(HOMES[name]).option
        return own
    point = _point(name)
    if point is None:
        raise FormulationError(f"unknown block '{name}': there are {', '.join(names())}{closest(name, names())}")
    found = imports.load(point, "block", FormulationError)
    if not isinstance(found, BlockOption):
        raise FormulationError(
            f"block '{name}' ({imports.origin(point)}): it holds a {type(found).__name__}, not a BlockOption"
        )
    return found


def _point(name: str) -> EntryPoint | None:
    from importlib.metadata import entry_points

    return next((point for point in entry_points(group=ENTRY_POINTS) if point.name == name), None)


def made(name: str, value: str, problem: Problem, steps: int) -> Block:
    """The block that an option makes. Raises FormulationError or OptionError, naming the package that fails."""
    from poetopt.formulations.block import Block

    asked = option(name)
    point = None if name in HOMES else _point(name)
    if point is None:
        return asked.make(value, problem, steps)
    expects = f"it takes {name}={asked.metavar}, as in {name}={asked.example}"
    try:
        found: object = asked.make(value, problem, steps)
    except PoetError:
        raise
    except Exception as error:
        raise OptionError(f"{imports.failure(error)} in {imports.origin(point)}; {expects}") from error
    if not isinstance(found, Block):
        raise OptionError(f"{imports.origin(point)} made a {type(found).__name__}, not a Block; tell its authors")
    return found


def with_options(chosen: Formulation, asked: Sequence[str | Block], problem: Problem, steps: int) -> Formulation:
    """`chosen` and the blocks that are asked for: blocks, or texts such as `static-power=0.5W`.

    Raises FormulationError for an unknown block, or one that is there already; OptionError for a value.
    """
    if isinstance(asked, str) or not isinstance(asked, Iterable):
        raise OptionError(f"blocks must be a list of blocks and texts, and is a {type(asked).__name__}")
    blocks: list[Block] = []
    for entry in asked:
        if not isinstance(entry, str):
            blocks.append(entry)
            continue
        name, _, value = entry.partition("=")
        try:
            block = made(name, value, problem, steps)
        except (FormulationError, OptionError) as error:
            told = str(error)
            raise OptionError(told if told.startswith("--") else f"--block {entry}: {told}") from error
        if block.name in (other.name for other in blocks):
            raise OptionError(f"--block {entry}: such a block is asked for already; give it once")
        blocks.append(block)
    return chosen.with_block(*blocks) if blocks else chosen
