"""Blocks by name and value, such as `--block static-power=0.5W`.

A package adds one through the entry point group `poetopt.blocks`. The entry point's name is the text before the equals
sign, and its object is a `BlockOption`.
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
"""Blocks that come with poetopt, by name, with the module whose attribute `option` makes the block."""


@dataclass(frozen=True)
class BlockOption:
    """A block that is made from a text.

    Attributes
    ----------
    metavar
        Form of the value, for people: `WATTS`.
    make
        (value, problem, steps) -> the block. The value is the text after the equals sign, or empty. A total is divided
        by `steps`, the number of training steps. Raises OptionError for an invalid value.
    example
        A valid value, with which `poetopt formulations` makes the block for a problem of two operators.
    """

    metavar: str
    make: Callable[[str, Problem, int], Block]
    example: str


def names() -> tuple[str, ...]:
    """Return the names of all blocks that a text can make: poetopt's own, then those of the entry points."""
    from importlib.metadata import entry_points

    return (*HOMES, *sorted(point.name for point in entry_points(group=ENTRY_POINTS)))


def option(name: str) -> BlockOption:
    """Return the option called `name`. Raises FormulationError with the closest name if there is none."""
    if name in HOMES:
        known: BlockOption = importlib.import_module(HOMES[name]).option
        return known
    point = _find_entry_point(name)
    if point is None:
        raise FormulationError(f"unknown block '{name}': there are {', '.join(names())}{closest(name, names())}")
    loaded = imports.load(point, "block", FormulationError)
    if not isinstance(loaded, BlockOption):
        raise FormulationError(
            f"block '{name}' ({imports.origin(point)}): the entry point is a {type(loaded).__name__}, not a BlockOption"
        )
    return loaded


def _find_entry_point(name: str) -> EntryPoint | None:
    from importlib.metadata import entry_points

    return next((point for point in entry_points(group=ENTRY_POINTS) if point.name == name), None)


def made(name: str, value: str, problem: Problem, steps: int) -> Block:
    """Make the block of an option. Raises FormulationError or OptionError, which name the package that fails."""
    from poetopt.formulations.block import Block

    block_option = option(name)
    point = None if name in HOMES else _find_entry_point(name)
    if point is None:
        return block_option.make(value, problem, steps)
    expects = f"use {name}={block_option.metavar}, such as {name}={block_option.example}"
    try:
        block: object = block_option.make(value, problem, steps)
    except PoetError:
        raise
    except Exception as error:
        raise OptionError(f"{imports.failure(error)} in {imports.origin(point)}; {expects}") from error
    if not isinstance(block, Block):
        raise OptionError(f"{imports.origin(point)} made a {type(block).__name__}, not a Block; tell its authors")
    return block


def with_options(chosen: Formulation, entries: Sequence[str | Block], problem: Problem, steps: int) -> Formulation:
    """Return `chosen` with more blocks, given as blocks or as texts such as `static-power=0.5W`.

    Raises
    ------
    FormulationError
        A block is unknown, or the formulation already has it.
    OptionError
        A value is invalid, or a block is given twice.
    """
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise OptionError(f"blocks must be a list of blocks and texts, and is a {type(entries).__name__}")
    blocks: list[Block] = []
    for entry in entries:
        if not isinstance(entry, str):
            blocks.append(entry)
            continue
        name, _, value = entry.partition("=")
        try:
            block = made(name, value, problem, steps)
        except (FormulationError, OptionError) as error:
            message = str(error)
            raise OptionError(message if message.startswith("--") else f"--block {entry}: {message}") from error
        if block.name in (other.name for other in blocks):
            raise OptionError(f"--block {entry}: the same block is given twice; give it once")
        blocks.append(block)
    return chosen.with_block(*blocks) if blocks else chosen
