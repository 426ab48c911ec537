"""Fewer runs of transfers: where waking the storage costs energy, page-outs wait for company and page-ins seek it.

Computes keep their order. A transfer may stand anywhere within its stay; it is tried beside every other one there, and
a move that the simulator passes within the budget and finds cheaper is taken, until there is none.
"""

from __future__ import annotations

from dataclasses import replace

from poetopt.errors import PlanError
from poetopt.plan.assemble import with_frees
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.simulate import Simulation, simulate

TRIALS = 4000
"""Moves tried, at most."""


def gather(plan: Plan, ram_bytes: int, *, trials: int = TRIALS) -> Plan:
    """`plan` with its transfers in fewer runs, or itself where that saves nothing.

    plan
        One that `simulate` passes with `ram_bytes`.
    ram_bytes
        The budget that the new plan keeps as well; it may use more of it than the old one.

    Raises PlanError for a plan that is not valid. A new plan has no offsets.
    """
    best = simulate(plan, ram_bytes=ram_bytes)
    if not plan.problem.wake_j or best.wakes < 2:
        return plan
    found = plan
    gained = True
    while gained and trials > 0:
        gained = False
        events = [step for step in found.instructions if step.action is not Action.FREE]
        moving = [k for k, step in enumerate(events) if step.action is not Action.COMPUTE]
        for here in moving:
            for there in moving:
                if here == there or trials <= 0:
                    continue
                trials -= 1
                rest = [*events[:here], *events[here + 1 :]]
                place = there if there < here else there - 1
                for at in (place, place + 1):
                    tried = [*rest[:at], events[here], *rest[at:]]
                    simulation = _passed(plan, tried, ram_bytes)
                    if simulation is not None and simulation.overhead_j < best.overhead_j * (1 - 1e-12):
                        best, gained = simulation, True
                        found = replace(plan, instructions=_freed(plan, tried), offsets=())
                        break
                if gained:
                    break
            if gained:
                break
    return found


def _freed(plan: Plan, events: list[Instruction]) -> tuple[Instruction, ...]:
    return tuple(with_frees(plan.problem, events))


def _passed(plan: Plan, events: list[Instruction], ram_bytes: int) -> Simulation | None:
    try:
        return simulate(plan.problem, _freed(plan, events), ram_bytes=ram_bytes)
    except PlanError:
        return None
