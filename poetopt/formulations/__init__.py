"""The mathematics: Pyomo blocks, and the formulations made of them.

`poetopt.formulations.poet` and `poetopt.formulations.retention` are imported when they are first used,
because Pyomo takes a quarter of a second to import.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from poetopt.util import imports
from poetopt.util.errors import FormulationError
from poetopt.util.text import closest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from poetopt.formulations import (
        energy_budget,
        flash_wear,
        language,
        poet,
        retention,
        static_power,
        within,
    )
    from poetopt.formulations.language import Formulation

NAMES = ("retention", "poet")
"""The formulations that come with poetopt, the default first."""

BLOCKS = ("static_power", "energy_budget", "flash_wear", "within")
"""The modules of blocks that are put into a formulation; each has a function of its name."""

__all__ = [
    "BLOCKS",
    "NAMES",
    "energy_budget",
    "flash_wear",
    "formulation",
    "language",
    "names",
    "poet",
    "retention",
    "static_power",
    "within",
]


def names() -> tuple[str, ...]:
    """The formulations that are installed: our own, then those of the entry points `poetopt.formulations`."""
    from importlib.metadata import entry_points

    return (*NAMES, *sorted(point.name for point in entry_points(group="poetopt.formulations")))


def formulation(name: str | Formulation | ModuleType) -> Formulation:
    """The formulation called `name`; a Formulation is itself, and a module the formulation of its name in it.

    Raises FormulationError, with the closest names, where there is none.
    """
    from poetopt.formulations.language import Formulation

    if isinstance(name, ModuleType):
        held: object = getattr(name, name.__name__.rpartition(".")[2], None)
        if not isinstance(held, Formulation):
            raise FormulationError(
                f"the module {name.__name__} has no Formulation of its name; give a Formulation in it"
            )
        return held
    if isinstance(name, Formulation):
        return name
    if not isinstance(name, str):
        raise FormulationError(f"a formulation is a name or a Formulation, not a {type(name).__name__}")
    if name in NAMES:
        module = importlib.import_module(f"poetopt.formulations.{name}")
        found: Formulation = getattr(module, name)
        return found
    from importlib.metadata import entry_points

    for point in entry_points(group="poetopt.formulations"):
        if point.name == name:
            return _loaded(point)
    raise FormulationError(f"unknown formulation '{name}': there are {', '.join(names())}{closest(name, names())}")


def _loaded(point: EntryPoint) -> Formulation:
    """The object of an entry point. Raises FormulationError where it can't be loaded, or holds something else."""
    from poetopt.formulations.language import Formulation

    found = imports.load(point, "formulation", FormulationError)
    if not isinstance(found, Formulation):
        raise FormulationError(
            f"formulation '{point.name}' ({imports.origin(point)}) is a {type(found).__name__}, not a Formulation"
        )
    return found


def __getattr__(name: str) -> object:
    if name in (*NAMES, *BLOCKS, "language"):
        return importlib.import_module(f"poetopt.formulations.{name}")
    raise AttributeError(f"module 'poetopt.formulations' has no attribute '{name}'")
