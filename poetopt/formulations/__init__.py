"""The mathematics: Pyomo blocks, and the formulations made of them.

`poetopt.formulations.poet` and `poetopt.formulations.retention` are imported at their first use,
because the import of Pyomo takes a quarter of a second.
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
"""Formulations that come with poetopt, the default first."""

BLOCKS = ("static_power", "energy_budget", "flash_wear", "within")
"""Modules of blocks that a user adds to a formulation. Each has a function of its own name."""

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
    """Return the installed formulations: poetopt's own, then those of the entry points `poetopt.formulations`."""
    from importlib.metadata import entry_points

    return (*NAMES, *sorted(point.name for point in entry_points(group="poetopt.formulations")))


def formulation(name: str | Formulation | ModuleType) -> Formulation:
    """Return the formulation called `name`.

    Parameters
    ----------
    name
        A name, a Formulation (returned as it is), or a module that holds a Formulation under the module's own name.

    Raises
    ------
    FormulationError
        No such formulation exists. The message names the closest ones.
    """
    from poetopt.formulations.language import Formulation

    if isinstance(name, ModuleType):
        inside: object = getattr(name, name.__name__.rpartition(".")[2], None)
        if not isinstance(inside, Formulation):
            raise FormulationError(
                f"the module {name.__name__} has no Formulation of its own name; pass the Formulation itself"
            )
        return inside
    if isinstance(name, Formulation):
        return name
    if not isinstance(name, str):
        raise FormulationError(f"formulation must be a name or a Formulation, and is a {type(name).__name__}")
    if name in NAMES:
        module = importlib.import_module(f"poetopt.formulations.{name}")
        chosen: Formulation = getattr(module, name)
        return chosen
    from importlib.metadata import entry_points

    for point in entry_points(group="poetopt.formulations"):
        if point.name == name:
            return _load(point)
    raise FormulationError(f"unknown formulation '{name}': there are {', '.join(names())}{closest(name, names())}")


def _load(point: EntryPoint) -> Formulation:
    """Return the Formulation of an entry point. Raises FormulationError if it can't be loaded or is another object."""
    from poetopt.formulations.language import Formulation

    loaded = imports.load(point, "formulation", FormulationError)
    if not isinstance(loaded, Formulation):
        raise FormulationError(
            f"formulation '{point.name}' ({imports.origin(point)}) is a {type(loaded).__name__}, not a Formulation"
        )
    return loaded


def __getattr__(name: str) -> object:
    if name in (*NAMES, *BLOCKS, "language"):
        return importlib.import_module(f"poetopt.formulations.{name}")
    raise AttributeError(f"module 'poetopt.formulations' has no attribute '{name}'")
