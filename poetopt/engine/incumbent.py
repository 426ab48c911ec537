"""The best plan so far: nothing counts before the simulator and the memory layout have accepted it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from poetopt.engine.solution import DeadlineModel, Options
from poetopt.errors import PlanError
from poetopt.formulations import formulation
from poetopt.plan.assemble import plan_of
from poetopt.plan.gather import gather
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation, simulate
from poetopt.plan.transfers import plan_transfers
from poetopt.problem import Problem
from poetopt.schedule import Schedule


@dataclass(frozen=True)
class Candidate:
    """A plan that was accepted: laid out, within the budget, the deadline and what blocks ask.

    value
        What is minimised, above one pass, in the goal's unit: joules of overhead unless a block says otherwise.
    """

    schedule: Schedule
    plan: Plan
    simulation: Simulation
    arena_bytes: int
    value: float


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

    def __post_init__(self) -> None:
        self._judge = formulation(self.options.formulation)
        self._ram_bytes = self.options.ram_bytes - self._judge.reserve_bytes(self.problem)

    @property
    def value(self) -> float | None:
        """Of the best plan: what is minimised, above one pass (joules, or the goal's unit)."""
        return None if self.best is None else self.best.value

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
        if simulation.peak_bytes > self._ram_bytes:
            return False
        if self.problem.wake_j and simulation.wakes > 1:
            plan = gather(plan, self._ram_bytes)
            simulation = simulate(plan)
        if self._judge.timed and self.problem.dma and simulation.page_ins:
            plan = plan_transfers(plan, self._ram_bytes)
            simulation = simulate(plan)
        trial = self._judge.trial(plan, simulation)
        value = self._judge.goal.value(trial)
        if self.best is not None and value >= self.best.value:
            return False
        if self._judge.refusal(trial) is not None:
            return False
        if self.options.deadline_s is not None:
            time_s = self._time_s(simulation)
            if time_s > self.options.deadline_s and self.problem.dma and simulation.page_ins:
                plan = plan_transfers(plan, self._ram_bytes, goal_s=self.options.deadline_s)
                simulation = simulate(plan)
                time_s = self._time_s(simulation)
            if time_s > self.options.deadline_s * (1 + RELATIVE_TOLERANCE):
                excess_s = time_s - self.options.deadline_s
                self.makespan_excess_s = min(excess_s, self.makespan_excess_s or excess_s)
                return False
        laid_out = lay_out(plan, ram_bytes=self._room)
        arena = arena_bytes(laid_out)
        if arena > self._room:
            self._seen[schedule] = arena - self._room
            self._too_wide(self._seen[schedule])
            return False
        self.best = Candidate(schedule, laid_out, simulation, arena, value)
        self.arena_excess = self.makespan_excess_s = None
        return True

    def hide_transfers(self) -> None:
        """Queue the best plan's transfers so that the CPU waits least, where its layout still fits then."""
        if self.best is None or not self.problem.dma or not self.best.simulation.page_ins:
            return
        plan = plan_transfers(replace(self.best.plan, offsets=()), self._ram_bytes)
        simulation = simulate(plan)
        laid_out = lay_out(plan, ram_bytes=self._room)
        arena = arena_bytes(laid_out)
        if simulation.makespan_s < self.best.simulation.makespan_s and arena <= self._room:
            value = self._judge.goal.value(self._judge.trial(plan, simulation))
            self.best = Candidate(self.best.schedule, laid_out, simulation, arena, min(value, self.best.value))

    @property
    def _room(self) -> int:
        """Bytes for the arena: the budget less what kernels allocate beside it."""
        return self._ram_bytes - self.problem.reserve_bytes

    def _time_s(self, simulation: Simulation) -> float:
        """What the deadline bounds."""
        if self.options.deadline_model is DeadlineModel.PAPER:
            return simulation.compute_s
        return simulation.makespan_s

    def _too_wide(self, excess: int) -> None:
        if excess:
            self.arena_excess = min(excess, self.arena_excess or excess)
