"""The best plan so far: nothing counts before the simulator and the memory layout have accepted it."""

from __future__ import annotations

from dataclasses import dataclass, field

from poetopt.engine.solution import DeadlineModel, Options
from poetopt.errors import PlanError
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.simulate import Simulation, simulate
from poetopt.problem import Problem
from poetopt.schedule import Schedule

DEADLINE_TOLERANCE = 1e-9
"""Relative: sums of floats depend on their order."""


@dataclass(frozen=True)
class Candidate:
    """A plan that was accepted: laid out, within the budget and the deadline."""

    schedule: Schedule
    plan: Plan
    simulation: Simulation
    arena_bytes: int


@dataclass
class Incumbent:
    """Keeps the best candidate offered.

    `arena_excess` is the least number of bytes by which a plan failed only for its layout, and
    `makespan_excess_s` the same for the deadline: the solve loop tightens by these.
    """

    problem: Problem
    options: Options
    best: Candidate | None = None
    arena_excess: int | None = None
    makespan_excess_s: float | None = None
    _seen: dict[Schedule, int] = field(default_factory=dict)
    """Schedules that were offered, with the bytes by which their layout alone failed (0: it didn't)."""

    @property
    def overhead_j(self) -> float | None:
        """Joules of the best plan's overhead."""
        return None if self.best is None else self.best.simulation.overhead_j

    def offer(self, schedule: Schedule) -> bool:
        """Simulate the plan of `schedule`; keep it if it is valid and better. Says whether it was kept."""
        if schedule in self._seen:
            self._too_wide(self._seen[schedule])
            return False
        self._seen[schedule] = 0
        plan = plan_of(self.problem, schedule)
        try:
            simulation = simulate(plan)
        except PlanError:
            return False
        if simulation.peak_bytes > self.options.ram_bytes:
            return False
        if self.best is not None and simulation.overhead_j >= self.best.simulation.overhead_j:
            return False
        if self.options.deadline_s is not None:
            paper = self.options.deadline_model is DeadlineModel.PAPER
            time_s = simulation.compute_s if paper else simulation.makespan_s
            if time_s > self.options.deadline_s * (1 + DEADLINE_TOLERANCE):
                excess_s = time_s - self.options.deadline_s
                self.makespan_excess_s = min(excess_s, self.makespan_excess_s or excess_s)
                return False
        laid_out = lay_out(plan, ram_bytes=self.options.ram_bytes - self.problem.reserve_bytes)
        arena = arena_bytes(laid_out) + self.problem.reserve_bytes
        if arena > self.options.ram_bytes:
            self._seen[schedule] = arena - self.options.ram_bytes
            self._too_wide(self._seen[schedule])
            return False
        self.best = Candidate(schedule, laid_out, simulation, arena)
        self.arena_excess = self.makespan_excess_s = None
        return True

    def _too_wide(self, excess: int) -> None:
        if excess:
            self.arena_excess = min(excess, self.arena_excess or excess)
