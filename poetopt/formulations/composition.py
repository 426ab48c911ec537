"""Formulations made of others: with further blocks in the order in which they see each other, or with one less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poetopt.formulations.block import Block, PyomoBlock
from poetopt.formulations.callbacks import answer, checked
from poetopt.formulations.goal import ENERGY, SUMS, WRITTEN, Goal, Trial
from poetopt.graph.problem import Problem
from poetopt.util.errors import FormulationError

if TYPE_CHECKING:
    from poetopt.formulations.language import Formulation
    from poetopt.plan.instructions import Plan
    from poetopt.plan.simulate import Simulation


def reserve_bytes(blocks: Sequence[Block], problem: Problem) -> int:
    """Bytes of the budget that blocks take for the whole step."""
    return sum(int(answer(b, "reserve_bytes", problem)) for b in blocks if b.reserve_bytes is not None)


def baselines_j(blocks: Sequence[Block], problem: Problem) -> tuple[dict[str, float], float]:
    """Joules of one compute of each operator as each block finds them, and with what all blocks add."""
    found: dict[str, float] = {}
    total = problem.baseline_energy_j
    for block in blocks:
        found[block.name] = total
        if block.base_j is not None:
            total += answer(block, "base_j", problem, total)
    return found, total


def trial(blocks: Sequence[Block], plan: Plan, simulation: Simulation) -> Trial:
    """A simulated plan with what blocks add to it, each to what those before it have made of it."""
    before, total = baselines_j(blocks, plan.problem)
    overhead = simulation.overhead_j
    for block in blocks:
        if block.adds_j is not None:
            overhead += answer(block, "adds_j", Trial(plan, simulation, before[block.name], overhead))
    return Trial(plan, simulation, total, overhead)


def refusal(blocks: Sequence[Block], found: Trial) -> str | None:
    """The reason why a simulated plan breaks a block's rule, or None."""
    for block in blocks:
        reason: str | None = None if block.refuses is None else answer(block, "refuses", found)
        if reason is not None:
            return reason
    return None


def impossible(blocks: Sequence[Block], problem: Problem) -> str | None:
    """The reason why no schedule keeps the blocks' rules, where that is plain without a search; or None."""
    _, baseline_j = baselines_j(blocks, problem)
    for block in blocks:
        told = None if block.impossible is None else answer(block, "impossible", problem, baseline_j)
        if told is not None:
            return str(told)
    return None


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


def without(chosen: Formulation, block: Block, minimising: Goal | None) -> Formulation:
    """See `Formulation.without`."""
    rest = tuple(other for other in chosen.blocks if other is not block)
    if minimising is not None:
        rest = tuple(replace(other, goal=None) for other in rest)
        if minimising is not ENERGY:
            rest = (*rest, Block("least", _no_rows, restricts=False, collects=True, goal=minimising))
    return _other(chosen, f"{chosen.name} less {block.name}", chosen.doc, rest)


def outer_of(chosen: Formulation) -> Formulation | None:
    """See `Formulation.outer_of`."""
    if chosen.outer is None or not chosen.plans_count:
        return None
    others = [block for block in chosen.blocks if block.name not in chosen.simulated]
    sums = (WRITTEN,) if any(block.adds_j is not None for block in others) else SUMS
    bounds = [replace(b, goal=None) for b in others if b.limits in sums and not b.cares_when]
    return chosen.outer.with_block(*bounds)


def bounding(chosen: Formulation, outer: Formulation) -> Formulation | None:
    """See `Formulation.bounding`."""
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
        lean=False,
        scope_difference=None,
        streaming_difference=None,
    )


def _no_rows(block: PyomoBlock) -> None:
    """Nothing: the block is there for its goal."""


def _and(blocks: Sequence[Block]) -> str:
    return " and ".join(f"the block {block.name}" for block in blocks)
