r"""Block `within`: a bound on a goal that isn't minimised, the epsilon constraint.

With $g_k$ what the blocks contribute to the goal, above one pass:

$$ \sum_k g_k \le \varepsilon $$

| symbol        | attribute | unit | meaning                                             |
|---------------|-----------|------|-----------------------------------------------------|
| $\varepsilon$ | -         | -    | the most, above one pass, in the unit of the goal   |

Of the makespan it is $l \le \varepsilon$, with the rows of `lateness`. Together with `least`, which says what is
minimised instead of energy, it makes the problems of a front: the least of one goal for each bound on another.

Source: Haimes, Lasdon and Wismer 1971; Chankong and Haimes 1983.
"""

from __future__ import annotations

import functools

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, at_most, contributions
from poetopt.formulations.figures import is_figure
from poetopt.formulations.goal import SUMS, TIME, Goal, Trial
from poetopt.formulations.lateness import lateness
from poetopt.formulations.rows import terms
from poetopt.util.errors import FormulationError
from poetopt.util.units import show_amount

TOLERANCE = 1e-9
"""A value may exceed the bound by this fraction: sums of floats depend on their order."""


def _build(block: PyomoBlock, *, goal: Goal, most: float) -> None:
    if goal.attribute == TIME.attribute:
        parts = [terms(lateness(block), np.array([1.0]))]
    else:
        parts = contributions(block.model(), goal.attribute)
    bound = at_most(parts, most, most or 1.0)
    block.bound = pyo.Constraint(rule=lambda _: bound, doc="the goal above one pass [the bound]")


def _refuses(trial: Trial, *, goal: Goal, most: float) -> str | None:
    found = goal.value(trial)
    if found <= most * (1 + TOLERANCE):
        return None
    return (
        f"the plan takes {goal.name} of {show_amount(found, goal.unit)} above one pass, more than the "
        f"{show_amount(most, goal.unit)} that it may"
    )


def within(goal: Goal, most: float) -> Block:
    """The block for a step whose `goal` is at most `most` above one pass. Raises FormulationError for what is none."""
    if not isinstance(goal, Goal):
        raise FormulationError(f"within: {goal!r} is no Goal; give one, such as ENERGY of poetopt.formulations.goal")
    if not is_figure(most):
        raise FormulationError(f"within: {most!r} is no bound above one pass; give a number from 0 on")
    return Block(
        "within",
        functools.partial(_build, goal=goal, most=most),
        collects=True,
        refuses=functools.partial(_refuses, goal=goal, most=most),
        limits=goal,
        transfer_times=False if goal in SUMS else None,
        says=f"{goal.name} of at most {show_amount(most, goal.unit)} above one pass",
    )


def _least(block: PyomoBlock, *, goal: Goal) -> None:
    if goal.attribute == TIME.attribute:
        block.late_s = terms(lateness(block), np.array([1.0]))


def least(goal: Goal) -> Block:
    """The block that says what is minimised. For energy none is needed. Raises FormulationError for what is no goal."""
    if not isinstance(goal, Goal):
        raise FormulationError(f"least: {goal!r} is no Goal; give one, such as TIME of poetopt.formulations.goal")
    return Block(
        "least",
        functools.partial(_least, goal=goal),
        collects=True,
        restricts=False,
        goal=goal,
        says=f"the least {goal.name}",
    )
