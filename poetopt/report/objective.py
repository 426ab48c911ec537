"""What was minimised, for people and programs, where it isn't the energy that the simulator counts."""

from __future__ import annotations

from poetopt.engine.solution import Objective, Solution
from poetopt.units import show_joules, show_seconds


def objective_words(objective: Objective) -> str:
    """`time: 10.0 s of one pass + 42 ms, and 41 ms are proven to be needed`."""
    show = show_seconds if objective.unit == "s" else show_joules
    text = f"{objective.name}: {show(objective.baseline)} of one pass"
    if objective.value is None:
        return text
    text += f" + {show(objective.value)}"
    if objective.bound:
        text += f", of which {show(objective.bound)} are proven to be needed"
    return text


def objective_document(solution: Solution) -> dict[str, object]:
    """Name, unit, and the figures: the whole value, one pass, what is above it, and the bound on that."""
    found = solution.objective
    if found is None:
        simulation, bound = solution.simulation, solution.overhead_bound_j
        baseline = None if simulation is None else simulation.energy_j - simulation.overhead_j
        value = None if simulation is None else simulation.overhead_j
        return _document("energy", "J", baseline, value, bound)
    return _document(found.name, found.unit, found.baseline, found.value, found.bound)


def _document(
    name: str, unit: str, baseline: float | None, value: float | None, bound: float | None
) -> dict[str, object]:
    whole = None if baseline is None or value is None else baseline + value
    return {"name": name, "unit": unit, "value": whole, "baseline": baseline, "overhead": value, "bound": bound}
