r"""Block `energy_budget`: the quickest step that a battery can pay for.

The objective is swapped: with $E$ the joules that all blocks contribute above one pass, and $\Phi$ those of one pass,

$$ \min\; l \quad \text{subject to} \quad \Phi + E \le J, \qquad l \ge \text{makespan} - \Psi $$

| symbol | attribute | unit | meaning                                     |
|--------|-----------|------|---------------------------------------------|
| $J$    | -         | J    | what a step may take in all                 |
| $E$    | -         | J    | joules above one pass, over all blocks      |
| $\Phi$ | -         | J    | joules of one compute of each operator      |
| $l$    | `late`    | s    | makespan above one pass (see `lateness`)    |
| $\Psi$ | -         | s    | seconds of one compute of each operator     |

The bound and the gap are then of seconds above one pass. On a device with DMA the model's makespan is a lower bound
of the simulated one, so that a gap may stay open; without DMA both agree.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, at_most, contributions
from poetopt.formulations.figures import is_figure
from poetopt.formulations.goal import ENERGY, TIME, Trial
from poetopt.formulations.lateness import lateness
from poetopt.formulations.options import BlockOption
from poetopt.formulations.rows import terms
from poetopt.util.errors import FormulationError
from poetopt.util.units import Factor, parse_energy, show_joules, show_limit

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem

TOLERANCE = 1e-9
"""Joules may exceed the limit by this fraction: sums of floats depend on their order."""


def _build(block: PyomoBlock, *, energy_j: float) -> None:
    model = block.model()
    block.late_s = terms(lateness(block), np.array([1.0]))
    within = at_most(contributions(model, "energy_j"), energy_j - model.baseline_j, model.baseline_j or 1.0)
    block.within = pyo.Constraint(rule=lambda _: within, doc="what a step may take [one pass]")


def _refuses(trial: Trial, *, energy_j: float) -> str | None:
    if trial.energy_j <= energy_j * (1 + TOLERANCE):
        return None
    return f"the plan takes {trial.energy_j:.6g} J, more than the {energy_j:.6g} J that a step may take"


def _impossible(problem: Problem, baseline_j: float, *, energy_j: float) -> str | None:
    if energy_j >= baseline_j * (1 - TOLERANCE):
        return None
    return (
        f"the energy limit of {energy_j:.6g} J is below the {show_limit(baseline_j, 'J')} of one pass over all "
        "operators, which every schedule takes"
    )


def energy_budget(energy_j: float) -> Block:
    """The block for a step of at most `energy_j` joules. Raises FormulationError unless they are positive."""
    if not is_figure(energy_j, positive=True):
        raise FormulationError(f"energy_budget: {energy_j!r} J is no energy; give a positive number of joules")
    return Block(
        "energy_budget",
        functools.partial(_build, energy_j=energy_j),
        collects=True,
        refuses=functools.partial(_refuses, energy_j=energy_j),
        impossible=functools.partial(_impossible, energy_j=energy_j),
        goal=TIME,
        limits=ENERGY,
        transfer_times=False,  # sums of joules; which order takes the least time is the planner's matter
        says=f"the least time within {show_joules(energy_j)} a step",
    )


def _option(value: str, problem: Problem, steps: int) -> Block:
    """A multiple is one of a step; joules are divided by the steps that they are for."""
    limit = parse_energy(value, option="--energy-limit")
    return energy_budget(limit.times * problem.baseline_energy_j if isinstance(limit, Factor) else limit / steps)


option = BlockOption("JOULES|FACTOR", _option, "3J")
