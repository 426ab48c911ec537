"""Blocks by name and value, as `--with static-power=0.5W` asks for them.

A package adds one through the entry point group `poetopt.blocks`: the entry point's name is what stands before the
equals sign, its object a `BlockOption`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.closest import closest
from poetopt.errors import FormulationError, OptionError

if TYPE_CHECKING:
    from poetopt.formulations.language import Block, Formulation
    from poetopt.problem import Problem

ENTRY_POINTS = "poetopt.blocks"
HOMES = {
    "static-power": "poetopt.formulations.static_power",
    "energy-limit": "poetopt.formulations.energy_budget",
    "flash-wear": "poetopt.formulations.flash_wear",
}
"""The blocks that come with poetopt, by name: the module that holds an object `option`."""


@dataclass(frozen=True)
class BlockOption:
    """How a block is made from a text.

    metavar
        What the value looks like, for people: `WATTS`.
    make
        (value, problem, steps) -> the block. The value is the text behind the equals sign, empty where there is none;
        a total is divided by `steps`, the training steps that it is for. Raises OptionError for a value that it can't
        read.
    example
        A value that it can read: what `poetopt formulations --show` builds the block with.
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
        found: object = importlib.import_module(HOMES[name]).option
    else:
        from importlib.metadata import entry_points

        point = next((point for point in entry_points(group=ENTRY_POINTS) if point.name == name), None)
        if point is None:
            raise FormulationError(f"unknown block '{name}': there are {', '.join(names())}{closest(name, names())}")
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            raise FormulationError(f"block '{name}' ({point.value}) can't be loaded: {error}; reinstall it") from error
    if not isinstance(found, BlockOption):
        raise FormulationError(f"block '{name}': its entry point holds a {type(found).__name__}, not a BlockOption")
    return found


def with_options(chosen: Formulation, asked: Sequence[str | Block], problem: Problem, steps: int) -> Formulation:
    """`chosen` and the blocks that are asked for: blocks, or texts such as `static-power=0.5W`.

    Raises FormulationError for an unknown block, or one that is there already; OptionError for a value.
    """
    blocks: list[Block] = []
    for entry in asked:
        if not isinstance(entry, str):
            blocks.append(entry)
            continue
        name, _, value = entry.partition("=")
        try:
            made = option(name).make(value, problem, steps)
        except FormulationError as error:
            raise OptionError(f"--with {entry}: {error}") from error
        if made.name in (block.name for block in blocks):
            raise OptionError(f"--with {entry}: such a block is asked for already; give it once")
        blocks.append(made)
    return chosen.with_block(*blocks) if blocks else chosen
