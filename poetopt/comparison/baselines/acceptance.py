"""Selection of a heuristic's result: its candidates are simulated, and the cheapest that fits is laid out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out_within
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation, simulate
from poetopt.util.errors import NoScheduleError, PlanError
from poetopt.util.units import show_limit


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a method besides the RAM budget.

    Attributes
    ----------
    deadline_s
        Limit of the makespan, or None.
    time_limit_s, gap, threads, backend, scope
        For methods that solve an integer program; see `poetopt.search.solution.Options`.
    """

    deadline_s: float | None = None
    time_limit_s: float = 60.0
    gap: float = 1e-3
    threads: int = 0
    scope: str = "auto"
    backend: str = "highs"


DEFAULTS = Settings()


def cheapest(
    problem: Problem, ram_bytes: int, candidates: Iterable[Schedule | Plan], settings: Settings = DEFAULTS
) -> Plan:
    """Return the candidate of least energy (then time) within budget and deadline, laid out in the budget.

    Candidates are normalized first. Invalid ones are skipped.

    Raises
    ------
    NoScheduleError
        If no candidate is left; the message describes the closest one.
    """
    accepted: list[tuple[float, float, int, int, Plan]] = []
    leanest: Simulation | None = None
    fastest: Simulation | None = None
    error_text = ""
    problem = problem.within(ram_bytes)
    for index, candidate in enumerate(candidates):
        plan = plan_of(problem, candidate) if isinstance(candidate, Schedule) else candidate
        try:
            simulate(plan)
        except PlanError as error:
            error_text = error_text or str(error)
            continue
        plan = normalize(plan)
        simulation = simulate(plan)
        if leanest is None or simulation.peak_bytes < leanest.peak_bytes:
            leanest = simulation
        if simulation.peak_bytes > ram_bytes:
            continue
        if fastest is None or simulation.makespan_s < fastest.makespan_s:
            fastest = simulation
        deadline_s = settings.deadline_s
        if deadline_s is not None and simulation.makespan_s > deadline_s * (1 + RELATIVE_TOLERANCE):
            continue
        accepted.append((simulation.overhead_j, simulation.makespan_s, simulation.peak_bytes, index, plan))
    # At most twelve candidates are laid out, the cheapest first.
    for _, _, _, _, plan in sorted(accepted, key=lambda entry: entry[:4])[:12]:
        laid_out = lay_out_within(plan, ram_bytes - problem.reserve_bytes)
        if arena_bytes(laid_out) + problem.reserve_bytes <= ram_bytes:
            return laid_out
    if leanest is None:
        raise NoScheduleError(f"it found no valid plan: {error_text}" if error_text else "it found no plan")
    if leanest.peak_bytes > ram_bytes:
        raise NoScheduleError(
            f"its leanest plan needs {leanest.peak_bytes:,} bytes, {leanest.peak_bytes - ram_bytes:,} over the budget"
            + (f"; others are not valid: {error_text}" if error_text else "")
        )
    if accepted:
        raise NoScheduleError("its plans keep the budget, but their buffers can't be laid out within it")
    assert fastest is not None
    raise NoScheduleError(
        f"its plans that keep the budget take {show_limit(fastest.makespan_s, 's')}, more than the deadline of "
        f"{settings.deadline_s:.6g} s"
    )
