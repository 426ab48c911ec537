r"""Block `within`: a bound on a goal that isn't minimised, the epsilon constraint.

With $g_k$ what the blocks contribute to the goal, above one pass:

$$ \sum_k g_k \le \varepsilon $$

| symbol        | attribute | unit | meaning                                             |
|---------------|-----------|------|-----------------------------------------------------|
| $\varepsilon$ | -         | -    | the most, above one pass, in the unit of the goal   |

For the makespan the row is $l \le \varepsilon$, with the rows of `lateness`. Together with `least`, which sets the
goal, it makes the problems of a Pareto front: the minimum of one goal for each bound on another.

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
    amount = goal.value(trial)
    if amount <= most * (1 + TOLERANCE):
        return None
    return (
        f"the plan takes {goal.name} of {show_amount(amount, goal.unit)} above one pass, more than the limit of "
        f"{show_amount(most, goal.unit)}"
    )


def within(goal: Goal, most: float) -> Block:
    """Return a block that limits the `goal` of a step to `most` above one pass.

    Raises
    ------
    FormulationError
        `goal` is no Goal, or `most` is not a finite number of at least 0.
    """
    if not isinstance(goal, Goal):
        raise FormulationError(f"within: {goal!r} is no Goal; give one, such as poetopt.formulations.goal.ENERGY")
    if not is_figure(most):
        raise FormulationError(f"within: the bound is {most!r}; give a number from 0 on")
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
    """Return a block that sets the goal (energy needs none). Raises FormulationError if `goal` is no Goal."""
    if not isinstance(goal, Goal):
        raise FormulationError(f"least: {goal!r} is no Goal; give one, such as poetopt.formulations.goal.TIME")
    return Block(
        "least",
        functools.partial(_least, goal=goal),
        collects=True,
        restricts=False,
        goal=goal,
        says=f"the least {goal.name}",
    )
