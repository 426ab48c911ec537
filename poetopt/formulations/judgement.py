"""How blocks judge a simulated plan, one after the other, and what they say of a problem before there is any plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from poetopt.formulations.block import Block
from poetopt.formulations.callbacks import answer
from poetopt.formulations.goal import Trial
from poetopt.graph.problem import Problem

if TYPE_CHECKING:
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
    """Why a simulated plan breaks a block's rule, or None."""
    for block in blocks:
        reason: str | None = None if block.refuses is None else answer(block, "refuses", found)
        if reason is not None:
            return reason
    return None


def impossible(blocks: Sequence[Block], problem: Problem) -> str | None:
    """Why no schedule keeps the blocks' rules, where that is plain without a search; or None."""
    _, baseline_j = baselines_j(blocks, problem)
    for block in blocks:
        told = None if block.impossible is None else answer(block, "impossible", problem, baseline_j)
        if told is not None:
            return str(told)
    return None
