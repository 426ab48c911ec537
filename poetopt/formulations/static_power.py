r"""Block `static_power`: what the device draws merely by being on, for as long as the step takes.

$$ E = P\, l, \qquad l \ge \text{makespan} - \Psi $$

so that the objective is the energy of computes and transfers plus idle power times makespan, above one pass.
The paper's energy has no such term: waiting costs nothing there. With it a schedule that pages on a
slow card pays for its waits, and recomputation becomes dearer by the seconds that it takes.

| symbol | attribute | unit | meaning                                          |
|--------|-----------|------|--------------------------------------------------|
| $P$    | -         | W    | power that is drawn whatever the device does     |
| $l$    | `late`    | s    | makespan above one pass (see `lateness`)         |
| $\Psi$ | -         | s    | one compute of each operator                     |

A simulated plan pays for its exact makespan. On a device with DMA the model's is a lower bound of it, so that a
gap may stay open where transfers don't hide; without DMA both agree.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from poetopt.formulations.block import Block, PyomoBlock
from poetopt.formulations.figures import is_figure
from poetopt.formulations.goal import TIME, Trial
from poetopt.formulations.lateness import lateness
from poetopt.formulations.options import BlockOption
from poetopt.formulations.rows import terms
from poetopt.util.errors import FormulationError
from poetopt.util.units import parse_watts, show_watts

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem


def _build(block: PyomoBlock, *, power_w: float) -> None:
    block.energy_j = terms(lateness(block), np.array([power_w]))


def _adds_j(trial: Trial, *, power_w: float) -> float:
    return power_w * TIME.value(trial)


def _base_j(problem: Problem, baseline_j: float, *, power_w: float) -> float:
    return power_w * problem.baseline_time_s


def static_power(power_w: float) -> Block:
    """The block for a device that draws `power_w` watts in idle. Raises FormulationError unless they are positive."""
    if not is_figure(power_w, positive=True):
        raise FormulationError(f"static_power: {power_w!r} W is no idle power; give a positive number of watts")
    return Block(
        "static_power",
        functools.partial(_build, power_w=power_w),
        collects=True,
        restricts=False,
        adds_j=functools.partial(_adds_j, power_w=power_w),
        base_j=functools.partial(_base_j, power_w=power_w),
        transfer_times=False,  # the makespan's: a sum, or with DMA of the order that the planner finds
        says=f"idle power of {show_watts(power_w)} for the whole step",
    )


def _option(value: str, problem: Problem, steps: int) -> Block:
    return static_power(parse_watts(value, option="--block static-power="))


option = BlockOption("WATTS", _option, "0.5W")
