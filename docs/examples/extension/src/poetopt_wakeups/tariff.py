r"""Block `tariff`: joules whose price depends on how many there are, piecewise linear.

From $B_k$ joules of a step on, each joule counts $f_k$ times ($0 = B_0 < B_1 < \ldots$). With $\Phi$ the joules of one
pass, $E$ those above it and $x_k$ the part of E between $B_k$ and $B_{k+1}$:

$$ \begin{aligned}
   E &= \sum_k x_k, \qquad 0 \le x_k \le L_k = B_{k+1} - \max(B_k, \Phi) \\
   x_k &\ge L_k\, y_k, \quad x_{k+1} \le M_{k+1}\, y_k, \quad y_k \in \{0, 1\}
        && \text{where some later } f < f_k \\
   E' &= \sum_k (f_k - 1)\, x_k && \text{joules that the block adds}
   \end{aligned} $$

Where no later joule is cheaper than those between $B_k$ and $B_{k+1}$, an optimum fills these first by itself: rising
prices, a convex function, take no binaries. $M_k$ is $L_k$, and for the last part the most that E can be.

| symbol  | attribute | unit | meaning                                                         |
|---------|-----------|------|-----------------------------------------------------------------|
| $E$     | -         | J    | joules above one pass, over all blocks that stand before this   |
| $x_k$   | `x`       | J    | joules above one pass at the price $f_k$                        |
| $y_k$   | -         | -    | the joules at $f_k$ are used up (`y`, where prices fall)        |
| $f_k$   | -         | -    | how often a joule counts                                        |

A tariff after `static_power` is one on idle power too (see `Formulation.with_block`).

Source: the incremental model of piecewise linear functions (Markowitz and Manne 1957; Vielma 2015, section 3).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyomo.environ as pyo

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, baseline_before_j, contributions
from poetopt.formulations.figures import is_figure
from poetopt.formulations.goal import Trial
from poetopt.formulations.options import BlockOption
from poetopt.formulations.rows import Terms, linear, most
from poetopt.util.errors import FormulationError, OptionError
from poetopt.util.units import Factor, parse_energy, show_joules

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem

Steps = tuple[tuple[float, float], ...]
"""(joules from which on, how often a joule counts): the first from 0 on, ascending."""


def price_j(steps: Steps, energy_j: float) -> float:
    """What `energy_j` joules count."""
    ends = [*(begin for begin, _ in steps[1:]), math.inf]
    return sum(
        factor * (min(end, energy_j) - begin)
        for (begin, factor), end in zip(steps, ends, strict=True)
        if energy_j > begin
    )


def _build(block: PyomoBlock, *, steps: Steps) -> None:
    parts = contributions(block.model(), "energy_j")
    base = baseline_before_j(block)
    ends = [*(begin for begin, _ in steps[1:]), math.inf]
    pieces = [(end - max(begin, base), factor) for (begin, factor), end in zip(steps, ends, strict=True) if end > base]
    lengths, factors = [min(length, most(parts)) for length, _ in pieces], [factor for _, factor in pieces]
    block.x = pyo.Var(pyo.RangeSet(0, len(pieces) - 1), domain=pyo.NonNegativeReals)
    x = list(block.x.values())
    for part, length in zip(x, lengths, strict=True):
        if math.isfinite(length):
            part.setub(length)
    scale = base or 1.0
    falls = [k for k in range(len(pieces) - 1) if min(factors[k + 1 :]) < factors[k]]
    if falls and not math.isfinite(lengths[-1]):
        raise FormulationError(
            "tariff: a price that falls needs a bound on the energy, and a block before it contributes a variable "
            "without bounds; give it bounds"
        )
    block.y = pyo.Var(pyo.RangeSet(0, len(falls) - 1), domain=pyo.Binary, doc="the joules at a price are used up")

    def used_up(_: PyomoBlock, index: int) -> PyomoRow:
        k = falls[index]
        return 0, linear([Terms([x[k], block.y[index]], [1 / scale, -lengths[k] / scale])]), None

    def not_sooner(_: PyomoBlock, index: int) -> PyomoRow:
        k = falls[index] + 1
        return None, linear([Terms([x[k], block.y[index]], [1 / scale, -lengths[k] / scale])]), 0

    def sums(_: PyomoBlock) -> PyomoRow:
        scaled = [Terms(part.variables, [c / scale for c in part.coefficients]) for part in parts]
        return 0, linear([*scaled, Terms(x, [-1 / scale] * len(x))]), 0

    block.used_up = pyo.Constraint(
        pyo.RangeSet(0, len(falls) - 1), rule=used_up, doc="what is cheaper comes after the dearer is used up"
    )
    block.not_sooner = pyo.Constraint(pyo.RangeSet(0, len(falls) - 1), rule=not_sooner, doc="the cheaper part waits")
    block.sums = pyo.Constraint(rule=sums, doc="the parts make up the joules above one pass")
    block.energy_j = Terms(x, [factor - 1 for factor in factors])


def _adds_j(trial: Trial, *, steps: Steps) -> float:
    return price_j(steps, trial.energy_j) - price_j(steps, trial.baseline_j) - trial.overhead_j


def _base_j(problem: Problem, baseline_j: float, *, steps: Steps) -> float:
    return price_j(steps, baseline_j) - baseline_j


def tariff(*steps: tuple[float, float]) -> Block:
    """The block for joules that count `factor` times from `begin` joules of a step on: `tariff((3.0, 2.0))`.

    steps
        (begin, factor), ascending. Below the first, a joule counts once.

    Raises FormulationError for what are no such pairs, figures below 0, and what isn't ascending.
    """
    if not all(isinstance(step, (tuple, list)) and len(step) == 2 for step in steps):
        raise FormulationError(f"tariff: each price is a pair, (joules from which on, factor); got {list(steps)}")
    if not all(is_figure(figure) for step in steps for figure in step):
        raise FormulationError(f"tariff: joules and factors must be numbers from 0 on; got {list(steps)}")
    given = steps if steps and steps[0][0] == 0 else ((0.0, 1.0), *steps)
    if any(first[0] >= second[0] for first, second in itertools.pairwise(given)):
        raise FormulationError(f"tariff: the joules from which on prices hold must ascend; got {list(steps)}")
    bound = tuple((float(begin), float(factor)) for begin, factor in given)
    return Block(
        "tariff",
        functools.partial(_build, steps=bound),
        collects=True,
        restricts=False,
        adds_j=functools.partial(_adds_j, steps=bound),
        base_j=functools.partial(_base_j, steps=bound),
        transfer_times=False,  # sums of joules
        says="joules at "
        + ", ".join(f"{factor:g}x{f' from {show_joules(begin)} on' if begin else ''}" for begin, factor in bound),
    )


def _option(value: str, problem: Problem, steps: int) -> Block:
    """`3J:2,5J:4`; joules are divided by the steps that they are for, and a multiple is one of a step."""
    return tariff(*_steps(value, problem, steps))


def _steps(value: str, problem: Problem, steps: int) -> Sequence[tuple[float, float]]:
    found = []
    for entry in value.split(","):
        begin, colon, factor = entry.partition(":")
        limit = parse_energy(begin, option="--block tariff") if begin.strip() not in ("0", "0J") else 0.0
        try:
            found.append(
                (
                    limit.times * problem.baseline_energy_j if isinstance(limit, Factor) else limit / steps,
                    float(factor) if colon else math.nan,
                )
            )
        except ValueError:
            found.append((0.0, math.nan))
        if math.isnan(found[-1][1]):
            raise OptionError(f"--block tariff={value}: give joules and how often each counts from there on: 3J:2")
    return found


option = BlockOption("JOULES:FACTOR[,...]", _option, "3J:2")
