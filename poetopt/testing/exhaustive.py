"""All schedules of a small space, simulated: the optimum that a formulation is held against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from poetopt.errors import PlanError
from poetopt.formulations.goal import Trial
from poetopt.formulations.language import Formulation
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import Simulation, simulate
from poetopt.schedule import Schedule

MOST_DECISIONS = 13
"""2 to the power of it is how many schedules are simulated for one problem."""
FEW_DECISIONS = 10
"""The same of most problems: a second's worth of simulations is for few."""


Tried = list[tuple[Schedule, Plan, Simulation]]
"""Schedules whose plans the simulator passed."""


def decisions(space: RetentionSpace) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(stage, operator) that may run again, and (stage, tensor) that may be paged in."""
    again = list(zip(space.recompute_stage.tolist(), space.recompute_operator.tolist(), strict=True))
    points = space.page_point if space.paging else space.page_point[:0]
    back = list(zip(space.point_stage[points].tolist(), space.point_tensor[points].tolist(), strict=True))
    return again, back


def schedules(space: RetentionSpace) -> Iterator[Schedule]:
    """Every set of recomputations and page-ins of the space, sensible or not."""
    again, back = decisions(space)
    for chosen in itertools.product((False, True), repeat=len(again) + len(back)):
        recomputes = itertools.compress(again, chosen[: len(again)])
        yield Schedule(frozenset(recomputes), frozenset(itertools.compress(back, chosen[len(again) :])))


def valid(space: RetentionSpace, ram_bytes: int) -> Tried:
    """Every schedule whose plan the simulator passes within `ram_bytes`."""
    found = []
    for schedule in schedules(space):
        plan = plan_of(space.problem, schedule)
        try:
            found.append((schedule, plan, simulate(plan, ram_bytes=ram_bytes)))
        except PlanError:
            continue
    return found


def best(formulation: Formulation, tried: Tried, ram_bytes: int) -> tuple[float, Schedule] | None:
    """The least value of any schedule that fits and that every block accepts, and the schedule; None: there is none."""
    found: tuple[float, Schedule] | None = None
    for schedule, trial in accepted(formulation, tried, ram_bytes):
        value = formulation.goal.value(trial)
        if found is None or value < found[0]:
            found = value, schedule
    return found


def accepted(formulation: Formulation, tried: Tried, ram_bytes: int) -> Iterator[tuple[Schedule, Trial]]:
    """Every schedule that fits and that every block accepts, as blocks judge it."""
    for schedule, plan, simulation in tried:
        if simulation.peak_bytes <= ram_bytes - formulation.reserve_bytes(plan.problem):
            trial = formulation.trial(plan, simulation)
            if formulation.refusal(trial) is None:
                yield schedule, trial
