r"""Block `endurance`: the most steps that a battery and a flash bear together; what is minimised is a maximum.

A step takes a share of what the battery holds, and one of what the flash may be written over its life. Whichever is
larger ends first, so the larger one is minimised. With $\Phi + E$ the joules and $W$ the bytes that a step takes:

$$ \min\; \frac{\Phi}{J} + z \quad \text{subject to} \quad z \ge \frac{E}{J}, \qquad z \ge \frac{W}{C} - \frac{\Phi}{J},
   \qquad z \ge 0 $$

| symbol | attribute | unit  | meaning                                                |
|--------|-----------|-------|--------------------------------------------------------|
| $z$    | `z`       | ppm   | the larger share above the battery's for one pass      |
| $J$    | -         | J     | what the battery holds                                 |
| $C$    | -         | bytes | what may be written in the flash's life                |
| $E$    | -         | J     | joules above one pass, over all blocks                 |
| $\Phi$ | -         | J     | joules of one compute of each operator                 |
| $W$    | -         | bytes | what the step writes to storage                        |

Shares are in parts per million: a device whose life is a step's share of 100 ppm trains for 10,000 steps.
A weighted Chebyshev norm of two goals (Steuer and Choo 1983): unlike a sum it reaches all of their front.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pyomo.environ as pyo

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, contributions
from poetopt.formulations.figures import is_figure
from poetopt.formulations.goal import WRITTEN, Goal, Trial
from poetopt.formulations.options import BlockOption
from poetopt.formulations.rows import Terms, linear
from poetopt.util.errors import FormulationError, OptionError
from poetopt.util.units import Factor, parse_energy, parse_size, show_bytes, show_joules

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem

PPM = 1e6


def _build(block: PyomoBlock, *, energy_j: float, written_bytes: int) -> None:
    model = block.model()
    spent = model.baseline_j / energy_j * PPM
    shares = [
        (contributions(model, "energy_j"), PPM / energy_j, 0.0),
        (contributions(model, "written_bytes"), PPM / written_bytes, spent),
    ]
    scale = spent or 1.0
    block.z = pyo.Var(pyo.RangeSet(0, 0), domain=pyo.NonNegativeReals)

    def at_least(_: PyomoBlock, index: int) -> PyomoRow:
        parts, share, free = shares[index]
        scaled = [Terms(part.variables, [share * c / scale for c in part.coefficients]) for part in parts]
        return None, linear([*scaled, Terms([block.z[0]], [-1.0 / scale])]), free / scale

    block.at_least = pyo.Constraint(pyo.RangeSet(0, 1), rule=at_least, doc="the battery's share; the flash's")
    block.life_ppm = Terms([block.z[0]], [1.0])


def _baseline(problem: Problem, baseline_j: float, *, energy_j: float) -> float:
    return baseline_j / energy_j * PPM


def _value(trial: Trial, *, energy_j: float, written_bytes: int) -> float:
    larger = max(trial.energy_j / energy_j, WRITTEN.value(trial) / written_bytes)
    return max(0.0, (larger - trial.baseline_j / energy_j) * PPM)


def endurance(energy_j: float, written_bytes: int) -> Block:
    """The block for a battery of `energy_j` joules and a flash that may be written `written_bytes` in its life.

    Raises FormulationError unless both are positive.
    """
    if not (is_figure(energy_j, positive=True) and is_figure(written_bytes, positive=True)):
        raise FormulationError(
            f"endurance: {energy_j!r} J and {written_bytes!r} bytes bear no step; give positive numbers of both"
        )
    return Block(
        "endurance",
        functools.partial(_build, energy_j=energy_j, written_bytes=written_bytes),
        collects=True,
        restricts=False,
        transfer_times=False,  # sums of joules and bytes
        goal=Goal(
            "share of battery and flash",
            "ppm",
            "life_ppm",
            functools.partial(_baseline, energy_j=energy_j),
            functools.partial(_value, energy_j=energy_j, written_bytes=written_bytes),
            timed=False,
        ),
        says=f"the most steps of {show_joules(energy_j)} and {show_bytes(written_bytes)} written",
    )


def _option(value: str, problem: Problem, steps: int) -> Block:
    battery, slash, flash = value.partition("/")
    energy = parse_energy(battery, option="--block endurance") if slash else Factor(1.0)
    if isinstance(energy, Factor):
        raise OptionError(f"--block endurance={value}: give the battery's joules and the flash's bytes: 20kJ/10GB")
    return endurance(energy, parse_size(flash, option="--block endurance"))


option = BlockOption("JOULES/SIZE", _option, "20kJ/10GB")
