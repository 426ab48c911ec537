"""The goal of a formulation, and the judgement of a simulated plan by it.

A solver's point becomes a plan, and the plan is simulated; only then it counts. So whatever a block adds to
the objective, or forbids, has two sides that must agree: terms and rows in the model, and a judgement of the
simulated plan. The model's side may be a relaxation of the plan's, never stricter.
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
    """A simulated plan, as blocks judge it.

    baseline_j
        Joules of one compute of each operator, and what blocks add to them.
    overhead_j
        Joules above that: the simulation's, and what blocks add.
    """

    plan: Plan
    simulation: Simulation
    baseline_j: float
    overhead_j: float

    @property
    def energy_j(self) -> float:
        """All joules of the step."""
        return self.baseline_j + self.overhead_j

    @property
    def recomputes(self) -> tuple[tuple[int, int], ...]:
        """(stage, operator) of each compute beside the first of each operator, in order."""
        return tuple((t, step.target) for t, step in self._staged if step.action == "compute" and step.target != t)

    @property
    def page_ins(self) -> tuple[tuple[int, int], ...]:
        """(stage, tensor) of what is read from storage, in order."""
        return tuple((t, step.target) for t, step in self._staged if step.action == "page_in")

    @property
    def page_outs(self) -> tuple[tuple[int, int], ...]:
        """(stage, tensor) of what is written to storage, in order."""
        return tuple((t, step.target) for t, step in self._staged if step.action == "page_out")

    @property
    def _staged(self) -> Iterator[tuple[int, Instruction]]:
        """Each instruction and the stage that it belongs to; behind the last operator that is one more."""
        stage = 0
        for step in self.plan.instructions:
            yield stage, step
            stage += step.action == "compute" and step.target == stage

    @property
    def written(self) -> tuple[int, ...]:
        """The tensors that are written to storage, in order; one that is written twice is here twice."""
        return tuple(step.target for step in self.plan.instructions if step.action == "page_out")


@dataclass(frozen=True)
class Goal:
    """A quantity that is minimised, counted above one compute of each operator; never below 0.

    name, unit
        For people and for `--json`: `energy` in `J`.
    attribute
        What blocks contribute to it is under this attribute (see the table of `language`).
    baseline
        (problem, baseline joules with what blocks add) -> the value of one pass, from which the rest counts.
    value
        A trial's value above that.
    timed
        Whether a plan's value depends on when it does what: if so, transfers are put in order before it is judged.
    """

    name: str
    unit: str
    attribute: str
    baseline: Callable[[Problem, float], float]
    value: Callable[[Trial], float]
    timed: bool = True

    def __deepcopy__(self, memo: object) -> Goal:
        """Itself, as nothing in it changes: Pyomo copies what stands on a model."""
        return self


def _baseline_j(problem: Problem, baseline_j: float) -> float:
    return baseline_j


def _overhead_j(trial: Trial) -> float:
    return trial.overhead_j


def _one_pass_s(problem: Problem, baseline_j: float) -> float:
    return problem.baseline_time_s


def _late_s(trial: Trial) -> float:
    return max(0.0, trial.simulation.makespan_s - trial.plan.problem.baseline_time_s)


def _nothing(problem: Problem, baseline_j: float) -> float:
    return 0.0


def _written_bytes(trial: Trial) -> float:
    return float(trial.simulation.bytes_written)


ENERGY = Goal("energy", "J", "energy_j", _baseline_j, _overhead_j, timed=False)
"""The default: the joules of computes and transfers."""

TIME = Goal("time", "s", "late_s", _one_pass_s, _late_s)
"""The makespan. A block that sets it contributes `late_s`."""

WRITTEN = Goal("bytes written", "B", "written_bytes", _nothing, _written_bytes, timed=False)
"""The bytes that go to storage; ordinary training writes nothing."""

SUMS = (ENERGY, TIME, WRITTEN)
"""The goals to which it is all one in which stage a tensor is moved; with DMA the planner orders transfers later."""


def describe(model: Any) -> str:
    """The goal of a built model, as in `energy (J)`."""
    goal: Goal = model.goal
    return f"{goal.name} ({goal.unit})"
