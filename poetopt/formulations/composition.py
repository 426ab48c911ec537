"""Formulations made of others: with further blocks in the order in which they see each other, or with one less."""

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
    """See `Formulation.with_block`."""
    together = list(chosen.blocks)
    for block in map(checked, blocks):
        if any(block.name == other.name for other in together):
            raise FormulationError(
                f"formulation '{chosen.name}' has a block '{block.name}' already; leave one of them out, or "
                "give it another name"
            )
        together.insert(_place(chosen, block, together), block)
    goals = [block.name for block in together if block.goal is not None]
    if len(goals) > 1:
        raise FormulationError(f"blocks {' and '.join(goals)} each say what to minimise; take one of them")
    added = "+".join([chosen.name, *(block.name for block in blocks)])
    told = (
        doc
        if doc is not None
        else "; ".join([f"{chosen.name} with {_and(blocks)}", *(b.says for b in blocks if b.says)])
    )
    return _other(chosen, name or added, told, together)


def without(chosen: Formulation, block: Block, *, minimising: Goal | None = None) -> Formulation:
    """`chosen` less one of its blocks.

    minimising
        What is minimised instead of what the blocks say.
    """
    rest = tuple(other for other in chosen.blocks if other is not block)
    if minimising is not None:
        rest = tuple(replace(other, goal=None) for other in rest)
        if minimising is not ENERGY:
            rest = (*rest, Block("least", _no_rows, restricts=False, collects=True, goal=minimising))
    return _other(chosen, f"{chosen.name} less {block.name}", chosen.doc, rest)


def outer_of(chosen: Formulation) -> Formulation | None:
    """The outer relaxation with the other blocks whose rows hold of every plan: bounds on sums of what is decided."""
    if chosen.search.outer is None or not chosen.plans_count:
        return None
    others = [block for block in chosen.blocks if block.name not in chosen.simulated]
    sums = (WRITTEN,) if any(block.adds_j is not None for block in others) else SUMS
    bounds = [replace(b, goal=None) for b in others if b.limits in sums and not b.cares_when]
    return chosen.search.outer.with_block(*bounds)


def bounding(chosen: Formulation, outer: Formulation) -> Formulation | None:
    """`outer` with what `chosen` minimises: no plan costs less than its optimum. None: nothing is known of that.

    Blocks with a price or a goal are in it, and of the others those that bound sums.
    """
    others = [block for block in chosen.blocks if block.name not in chosen.simulated]
    counted = [block for block in others if block.adds_j is not None or block.goal is not None]
    if chosen.goal not in SUMS or any(block.cares_when for block in counted):
        return None
    limits = [b for b in others if b not in counted and b.limits in SUMS and not b.cares_when]
    return outer.with_block(*limits, *counted)


def _place(chosen: Formulation, block: Block, together: Sequence[Block]) -> int:
    """The place of a new block among the others: see `Formulation.with_block`."""
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


def _other(chosen: Formulation, name: str, doc: str, blocks: Sequence[Block]) -> Formulation:
    """One with other blocks: without what holds of these alone.

    Another block may care for decisions that a lean space lacks, and for what the arguments behind scope-difference
    cuts leave out.
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
    """Nothing: the block is there for its goal."""


def _and(blocks: Sequence[Block]) -> str:
    return " and ".join(f"the block {block.name}" for block in blocks)
