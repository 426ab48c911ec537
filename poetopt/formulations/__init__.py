"""The mathematics: Pyomo blocks, and the formulations made of them.

`poetopt.formulations.poet` and `poetopt.formulations.retention` are imported when they are first used,
because Pyomo takes a quarter of a second to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from poetopt.closest import closest
from poetopt.errors import FormulationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from poetopt.formulations import energy_budget, flash_wear, language, poet, retention, static_power
    from poetopt.formulations.language import Formulation

NAMES = ("retention", "poet")
"""The formulations that come with poetopt, the default first."""

BLOCKS = ("static_power", "energy_budget", "flash_wear")
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
]


def names() -> tuple[str, ...]:
    """The formulations that are installed: our own, then those of the entry points `poetopt.formulations`."""
    from importlib.metadata import entry_points

    return (*NAMES, *sorted(point.name for point in entry_points(group="poetopt.formulations")))


def formulation(name: str | Formulation) -> Formulation:
    """The formulation called `name`; a Formulation is itself.

    Raises FormulationError, with the closest names, where there is none.
    """
    if not isinstance(name, str):
        return name
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
    """What an entry point holds. Raises FormulationError where it can't be loaded, or holds something else."""
    from poetopt.formulations.language import Formulation

    try:
        found: object = point.load()
    except (ImportError, AttributeError) as error:
        raise FormulationError(
            f"formulation '{point.name}' ({point.value}) can't be loaded: {error}; reinstall its package"
        ) from error
    if not isinstance(found, Formulation):
        raise FormulationError(
            f"formulation '{point.name}': {point.value} is a {type(found).__name__}, not a Formulation"
        )
    return found


def __getattr__(name: str) -> object:
    if name in (*NAMES, *BLOCKS, "language"):
        return importlib.import_module(f"poetopt.formulations.{name}")
    raise AttributeError(f"module 'poetopt.formulations' has no attribute '{name}'")
