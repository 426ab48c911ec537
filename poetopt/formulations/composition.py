"""Formulations made from others: with more blocks in the right order, or without one of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poetopt.formulations.block import Block, Kind, PyomoBlock
from poetopt.formulations.callbacks import checked
from poetopt.formulations.goal import ENERGY, SUMS, WRITTEN, Goal
from poetopt.util.errors import FormulationError

if TYPE_CHECKING:
    from poetopt.formulations.language import Formulation


def with_block(chosen: Formulation, blocks: Sequence[Block], name: str | None, doc: str | None) -> Formulation:
    """Return `chosen` with more blocks (`Formulation.with_block`)."""
    combined = list(chosen.blocks)
    for block in map(checked, blocks):
        if any(block.name == other.name for other in combined):
            raise FormulationError(
                f"formulation '{chosen.name}' has a block '{block.name}' already; leave one of them out, or "
                "give it another name"
            )
        combined.insert(_insert_index(chosen, block, combined), block)
    goals = [block.name for block in combined if block.goal is not None]
    if len(goals) > 1:
        raise FormulationError(f"blocks {' and '.join(goals)} each set the goal; take one of them")
    added = "+".join([chosen.name, *(block.name for block in blocks)])
    description = (
        doc
        if doc is not None
        else "; ".join([f"{chosen.name} with {_list_blocks(blocks)}", *(b.says for b in blocks if b.says)])
    )
    return _with_other_blocks(chosen, name or added, description, combined)


def without(chosen: Formulation, block: Block, *, minimising: Goal | None = None) -> Formulation:
    """Return `chosen` without one of its blocks.

    Parameters
    ----------
    minimising
        The goal that replaces the goals of the blocks.
    """
    rest = tuple(other for other in chosen.blocks if other is not block)
    if minimising is not None:
        rest = tuple(replace(other, goal=None) for other in rest)
        if minimising is not ENERGY:
            rest = (*rest, Block("least", _no_rows, restricts=False, collects=True, goal=minimising))
    return _with_other_blocks(chosen, f"{chosen.name} less {block.name}", chosen.doc, rest)


def outer_of(chosen: Formulation) -> Formulation | None:
    """Return the outer relaxation with the added blocks that bound sums over decisions, which hold for every plan."""
    if chosen.search.outer is None or not chosen.plans_count:
        return None
    others = [block for block in chosen.blocks if block.name not in chosen.simulated]
    sums = (WRITTEN,) if any(block.adds_j is not None for block in others) else SUMS
    bounds = [replace(b, goal=None) for b in others if b.limits in sums and not b.depends_on_stages]
    return chosen.search.outer.with_block(*bounds)


def bounding(chosen: Formulation, outer: Formulation) -> Formulation | None:
    """Return `outer` with the objective of `chosen`, so that no plan costs less than its optimum; None if unknown.

    It has the blocks with a price or a goal, and of the others those that bound sums.
    """
    others = [block for block in chosen.blocks if block.name not in chosen.simulated]
    counted = [block for block in others if block.adds_j is not None or block.goal is not None]
    if chosen.goal not in SUMS or any(block.depends_on_stages for block in counted):
        return None
    limits = [b for b in others if b not in counted and b.limits in SUMS and not b.depends_on_stages]
    return outer.with_block(*limits, *counted)


def _insert_index(chosen: Formulation, block: Block, together: Sequence[Block]) -> int:
    """Return the index at which `Formulation.with_block` inserts a new block."""
    if not block.collects:
        return next((k for k, other in enumerate(together) if other.collects), len(together))
    if block.adds_j is None:
        return len(together)
    before = (
        k + 1
        for k, other in enumerate(together)
        if not other.collects or other.name in (*chosen.simulated, *block.requires) or other.adds_j is not None
    )
    return max(before, default=0)


def _with_other_blocks(chosen: Formulation, name: str, doc: str, blocks: Sequence[Block]) -> Formulation:
    """Return `chosen` with other blocks, and without the reductions that are proven only for its own blocks.

    Another block may need decisions that a lean space lacks, and schedules that scope-difference cuts exclude.
    """
    return replace(
        chosen,
        name=name,
        doc=doc,
        blocks=tuple(blocks),
        kind=Kind.SHADOW if chosen.kind is Kind.SHADOW else Kind.WHOLE,
        search=replace(chosen.search, scope_difference=None, streaming_difference=None),
    )


def _no_rows(block: PyomoBlock) -> None:
    """Add no rows: the block only sets the goal."""


def _list_blocks(blocks: Sequence[Block]) -> str:
    return " and ".join(f"the block {block.name}" for block in blocks)
