"""What was minimised, for people and programs, where it isn't the energy that the simulator counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.formulations.goal import TIME
from poetopt.graph.problem import Problem
from poetopt.plan.simulate import Simulation
from poetopt.search.solution import Objective, Solution
from poetopt.util.printable import shown
from poetopt.util.units import finite, show_amount, show_seconds


def objective_words(objective: Objective) -> str:
    """`time: 10.0 s of one pass + 42 ms, and 41 ms are proven to be needed`."""
    unit = objective.unit
    parts = [f"{show_amount(objective.baseline, unit)} of one pass"] if objective.baseline else []
    parts += [] if objective.value is None else [show_amount(objective.value, unit)]
    text = f"{objective.name}: {' + '.join(parts) or 'none'}"
    if objective.value is None:
        return text
    if objective.bound:
        text += f", of which {show_amount(objective.bound, unit)} are proven to be needed"
    return text


def objective_document(solution: Solution) -> dict[str, object]:
    """Name, unit, the whole value, one pass, what is above it, and the bounds on that: of all, and of the scope."""
    found = solution.objective
    if found is None:
        simulation, bound = solution.simulation, solution.overhead_bound_j
        baseline = None if simulation is None else simulation.energy_j - simulation.overhead_j
        value = None if simulation is None else simulation.overhead_j
        return _document("energy", "J", baseline, value, bound, solution.scope_bound)
    return _document(found.name, found.unit, found.baseline, found.value, found.bound, solution.scope_bound)


def _document(
    name: str,
    unit: str,
    baseline: float | None,
    value: float | None,
    bound: float | None,
    scope_bound: float | None,
) -> dict[str, object]:
    whole = None if baseline is None or value is None else baseline + value
    return {
        "name": name,
        "unit": unit,
        "value": whole,
        "baseline": baseline,
        "overhead": value,
        "bound": bound,
        "scope_bound": scope_bound,
    }


@dataclass(frozen=True)
class Minimised:
    """What a plan file's report says of an objective that isn't the simulator's energy: above one pass, in `unit`."""

    name: str
    unit: str
    value: float
    bound: float | None
    scope_bound: float | None

    def contradiction(self, simulation: Simulation, problem: Problem) -> str | None:
        """Where the plan isn't the report's. A time is held against the simulation; idle joules are the file's."""
        late = max(0.0, simulation.makespan_s - problem.baseline_time_s)
        within = 1e-9 * simulation.makespan_s
        if self.name != TIME.name or math.isclose(self.value, late, rel_tol=1e-6, abs_tol=within):
            return None
        return (
            f"Nothing is proven: the file's report is of a schedule of {show_seconds(self.value)} above one pass, "
            f"and this one has {show_seconds(late)}."
        )


def minimised(report: Mapping[str, object]) -> Minimised | None:
    """The objective of a plan file's report where it isn't plain energy, or None."""
    found = report.get("objective")
    if not isinstance(found, Mapping) or found.get("name") == "energy":
        return None
    value = finite(found.get("overhead"))
    if value is None:
        return None
    bound, of_scope = finite(found.get("bound")), finite(found.get("scope_bound"))
    if "scope_bound" not in found and bound is not None:  # of an older version, which knew that of the scope
        bound, of_scope = 0.0, bound
    return Minimised(shown(str(found.get("name"))), str(found.get("unit")), value, bound, of_scope)
