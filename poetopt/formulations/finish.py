"""The last look at a built model: what its blocks may not hold, its components' words, and what doesn't pickle."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import pyomo.environ as pyo

from poetopt.formulations.block import Block
from poetopt.formulations.mathematics import symbols, title
from poetopt.util.errors import FormulationError

REFUSED = {
    "Objective": "a model has one: contribute joules as `energy_j = terms(...)`, or say with `goal` what is minimised",
    "SOSConstraint": "backends take rows alone: say it with binaries",
    "Disjunction": "backends take rows alone: end the block's build with "
    "TransformationFactory('gdp.bigm').apply_to(block)",
    "LogicalConstraint": "backends take rows alone: say it with binaries, or end the block's build with "
    "TransformationFactory('core.logical_to_linear').apply_to(block)",
}
"""What a block may not leave behind, and what to do instead."""


def finish(model: Any, blocks: Iterable[Block]) -> None:
    """Go through the blocks of a model that `create_instance` has returned.

    Raises FormulationError for a component that no backend would see.
    """
    for block in blocks:
        if block.name not in model.block_names:
            continue
        component = model.component(block.name)
        heading, meanings = _words(block)
        component.doc = component.doc or heading
        for part in list(component.component_objects(descend_into=(pyo.Block,))):
            kind = part.ctype.__name__
            if kind in REFUSED and part.active:
                raise FormulationError(f"block '{block.name}': {part.name} is of the kind {kind}; {REFUSED[kind]}")
            part.doc = part.doc or meanings.get(part.local_name)
            if part.ctype is pyo.Constraint:
                if not part.is_indexed() and not part:
                    part.parent_block().del_component(part)  # skipped: Pyomo's own tools stumble over its rest
                part._rule = None  # done with; and functions inside functions don't pickle


def _words(block: Block) -> tuple[str, dict[str, str]]:
    """What the block's docstring calls it, and the meaning of each symbol by its attribute."""
    try:
        return _read(block)
    except TypeError:  # a block with a list in it can't be remembered
        return _read.__wrapped__(block)


@functools.lru_cache(maxsize=256)
def _read(block: Block) -> tuple[str, dict[str, str]]:
    return title(block), {
        symbol.attribute: symbol.meaning + (f" [{symbol.unit}]" if symbol.unit.strip("-") else "")
        for symbol in symbols(block)
    }
