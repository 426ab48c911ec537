"""Plans as good as POET's, or better, from outside the space of its proof: which of their moves that space lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from poetopt.formulations.retention.enumeration import recomputable_stages
from poetopt.formulations.scope import scope_option
from poetopt.plan.assemble import schedule_of
from poetopt.plan.instructions import Action, Plan

SAME = 1e-9
"""Relative: sums of the same joules in another order."""
SHOWN = 3
"""How many moves are named."""
WITHIN_STAGE = "uses memory within a stage as the formulation's rows don't allow"
"""The move of a plan that is better than the bound without another one."""


@dataclass(frozen=True)
class Finding:
    """A plan from outside the space that a bound holds in.

    method
        Whose plan it is.
    scope, overhead_bound_j
        The space and its bound; no more is known of the space's own optimum where the plan was taken as a start.
    overhead_j
        The plan's overhead.
    moves
        What it does that the space hasn't, in words.
    """

    method: str
    ram_budget_bytes: int
    scope: str
    overhead_bound_j: float
    overhead_j: float
    moves: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "method": self.method,
            "ram_budget_bytes": self.ram_budget_bytes,
            "scope": self.scope,
            "overhead_bound_j": self.overhead_bound_j,
            "overhead_j": self.overhead_j,
            "moves": list(self.moves),
        }

    def __str__(self) -> str:
        has, bound = self.overhead_j, self.overhead_bound_j
        digits = 6
        if math.isclose(has, bound, rel_tol=SAME):
            beside = "no schedule of which has less"
        else:
            while f"{has:.{digits}g}" == f"{bound:.{digits}g}":
                digits += 1
            beside = f"{'no schedule of which has less than' if has < bound else 'whose bound is'} {bound:.{digits}g} J"
        return (
            f"{self.method} at {self.ram_budget_bytes:,} B has {has:.{digits}g} J of overhead, from outside scope "
            f"{self.scope}, {beside}: it {'; it '.join(self.moves)}"
        )


def moves_outside(plan: Plan, scope: str) -> tuple[str, ...]:
    """What a plan does that the scope of `retention` hasn't, in words; empty where it lies inside.

    Inside a stage, recomputes run once, in the order of the operators; and only those of the scope.
    """
    problem = plan.problem
    names = [operator.name for operator in problem.operators]
    allowed, _ = recomputable_stages(problem, scope_option(scope), scope != "store-all")
    recomputes = sorted(schedule_of(plan).recomputes)
    found = []
    for stage, operator in recomputes:
        if allowed[stage, operator]:
            continue
        kind = "the backward operator" if problem.operators[operator].backward else "the forward operator"
        place = "forward" if stage <= problem.last_forward else "backward"
        found.append(f"recomputes {kind} '{names[operator]}' in the {place} stage of '{names[stage]}'")
    stage, latest = 0, -1
    for step in plan.instructions:
        if step.action is not Action.COMPUTE:
            continue
        if step.target == stage:
            stage, latest = stage + 1, -1
            continue
        if step.target <= latest:
            how = "twice" if step.target == latest else "out of their order"
            found.append(f"runs '{names[step.target]}' and '{names[latest]}' {how} in the stage of '{names[stage]}'")
        latest = max(latest, step.target)
    if len(found) > SHOWN:
        return (*found[:SHOWN], f"does {len(found) - SHOWN} more such things")
    return tuple(found)
