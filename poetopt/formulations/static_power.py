r"""Block `static_power`: idle power of the device for the whole step.

$$ E = P\, l, \qquad l \ge \text{makespan} - \Psi $$

The objective is then the energy of computes and transfers plus idle power times makespan, above one pass.
The paper's energy has no such term, so waiting costs nothing there. With this block a schedule that pages on a
slow card pays for its waits, and a recomputation also pays for its seconds.

| symbol | attribute | unit | meaning                                          |
|--------|-----------|------|--------------------------------------------------|
| $P$    | -         | W    | power that the device draws in any state         |
| $l$    | `late`    | s    | makespan above one pass (see `lateness`)         |
| $\Psi$ | -         | s    | one compute of each operator                     |

A simulated plan pays for its exact makespan. On a device with DMA the makespan of the model is a lower bound, so a
gap may stay open if transfers don't hide. Without DMA both agree.
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
    """Return a block for a device that draws `power_w` watts in idle.

    Raises
    ------
    FormulationError
        `power_w` is not a positive finite number.
    """
    if not is_figure(power_w, positive=True):
        raise FormulationError(f"static_power: power_w is {power_w!r}; give a positive number of watts")
    return Block(
        "static_power",
        functools.partial(_build, power_w=power_w),
        collects=True,
        restricts=False,
        adds_j=functools.partial(_adds_j, power_w=power_w),
        base_j=functools.partial(_base_j, power_w=power_w),
        transfer_times=False,  # the makespan is a sum, or with DMA depends on the planner's own order
        says=f"idle power of {show_watts(power_w)} for the whole step",
    )


def _option(value: str, problem: Problem, steps: int) -> Block:
    return static_power(parse_watts(value, option="--block static-power="))


option = BlockOption("WATTS", _option, "0.5W")
