"""What was minimised, as a Solution tells it."""

from __future__ import annotations

from poetopt.formulations.goal import ENERGY
from poetopt.formulations.language import Formulation
from poetopt.graph.problem import Problem
from poetopt.search.solution import Objective


def objective_of(
    chosen: Formulation, problem: Problem, value: float | None, bound: float | None
) -> tuple[float | None, Objective | None]:
    """The overhead bound in joules where energy was minimised as the simulator counts it, else the objective."""
    if chosen.plain:
        return bound, None
    adding = " and ".join(block.name for block in chosen.blocks if block.adds_j is not None)
    name = chosen.goal.name if chosen.goal is not ENERGY else f"energy with {adding}"
    baseline = chosen.goal.baseline(problem, chosen.baseline_j(problem))
    return None, Objective(name, chosen.goal.unit, baseline, value, bound)
