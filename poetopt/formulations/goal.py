"""Goal of a formulation, and the evaluation of a simulated plan.

A solver's point becomes a plan, and only the simulated plan counts. So whatever a block adds to the objective, or
forbids, has two sides that must agree: terms and rows in the model, and an evaluation of the simulated plan. The
model may be a relaxation of the evaluation, never stricter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem
    from poetopt.plan.instructions import Instruction, Plan
    from poetopt.plan.simulate import Simulation


class Trial(NamedTuple):
    """A simulated plan, as blocks evaluate it.

    Attributes
    ----------
    baseline_j
        Joules of one compute of each operator, with what blocks add to them.
    overhead_j
        Joules above that: those of the simulation, with what blocks add.
    """

    plan: Plan
    simulation: Simulation
    baseline_j: float
    overhead_j: float

    @property
    def energy_j(self) -> float:
        """Total joules of the step."""
        return self.baseline_j + self.overhead_j

    @property
    def recomputes(self) -> tuple[tuple[int, int], ...]:
        """Pairs (stage, operator) of each compute after the operator's first one, in order."""
        return tuple((t, step.target) for t, step in self._staged if step.action == "compute" and step.target != t)

    @property
    def page_ins(self) -> tuple[tuple[int, int], ...]:
        """Pairs (stage, tensor) of the page-ins, in order."""
        return tuple((t, step.target) for t, step in self._staged if step.action == "page_in")

    @property
    def page_outs(self) -> tuple[tuple[int, int], ...]:
        """Pairs (stage, tensor) of the page-outs, in order."""
        return tuple((t, step.target) for t, step in self._staged if step.action == "page_out")

    @property
    def _staged(self) -> Iterator[tuple[int, Instruction]]:
        """Pairs (stage, instruction). Instructions after the last operator belong to one more stage."""
        stage = 0
        for step in self.plan.instructions:
            yield stage, step
            stage += step.action == "compute" and step.target == stage

    @property
    def written(self) -> tuple[int, ...]:
        """Tensors that are written to storage, in order, once for each write."""
        return tuple(step.target for step in self.plan.instructions if step.action == "page_out")


@dataclass(frozen=True)
class Goal:
    """Quantity to minimise, counted above one compute of each operator; never below 0.

    Attributes
    ----------
    name, unit
        For people and for `--json`: `energy` in `J`.
    attribute
        Attribute under which blocks contribute to it (see the table of `language`).
    baseline
        (problem, baseline joules with what blocks add) -> the value of one pass, above which the goal counts.
    value
        trial -> its value above the baseline.
    timed
        Whether a plan's value depends on the times of its instructions. If so, poetopt orders transfers before it
        evaluates the plan.
    """

    name: str
    unit: str
    attribute: str
    baseline: Callable[[Problem, float], float]
    value: Callable[[Trial], float]
    timed: bool = True

    def __deepcopy__(self, memo: object) -> Goal:
        """Return the object itself: Pyomo copies what is on a model, and this never changes."""
        return self


def _baseline_j(problem: Problem, baseline_j: float) -> float:
    return baseline_j


def _overhead_j(trial: Trial) -> float:
    return trial.overhead_j


def _one_pass_s(problem: Problem, baseline_j: float) -> float:
    return problem.baseline_time_s


def _late_s(trial: Trial) -> float:
    return max(0.0, trial.simulation.makespan_s - trial.plan.problem.baseline_time_s)


def _zero(problem: Problem, baseline_j: float) -> float:
    return 0.0


def _written_bytes(trial: Trial) -> float:
    return float(trial.simulation.bytes_written)


ENERGY = Goal("energy", "J", "energy_j", _baseline_j, _overhead_j, timed=False)
"""The default goal: joules of computes and transfers."""

TIME = Goal("time", "s", "late_s", _one_pass_s, _late_s)
"""The makespan. A block with this goal contributes `late_s`."""

WRITTEN = Goal("bytes written", "B", "written_bytes", _zero, _written_bytes, timed=False)
"""Bytes written to storage. Ordinary training writes none."""

SUMS = (ENERGY, TIME, WRITTEN)
"""Goals that don't depend on the stage of a transfer. With DMA the planner orders transfers later."""


def describe(model: Any) -> str:
    """Return the goal of a built model in words, such as `energy (J)`."""
    goal: Goal = model.goal
    return f"{goal.name} ({goal.unit})"
