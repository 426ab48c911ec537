"""Best plan so far. A plan counts only after the simulator and the memory layout have accepted it."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field, replace

from poetopt.formulations import formulation
from poetopt.formulations.goal import Trial
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.gather import gather
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation, simulate
from poetopt.plan.transfers import NODES, TRIALS, out_of_reach, plan_transfers
from poetopt.search.solution import DeadlineModel, Options
from poetopt.search.tuning import LAYOUT_S
from poetopt.util.errors import PlanError


@dataclass(frozen=True)
class Candidate:
    """Accepted plan: laid out, within the budget and the deadline, and allowed by all blocks.

    Attributes
    ----------
    value
        Objective above one pass, in the goal's unit: joules of overhead unless a block says otherwise.
    """

    schedule: Schedule
    plan: Plan
    simulation: Simulation
    arena_bytes: int
    value: float


@dataclass(frozen=True)
class Refusal:
    """Reason why a schedule within the budget was rejected.

    Attributes
    ----------
    arena_excess
        Bytes of its layout beyond the budget.
    late_s
        Seconds of its plan beyond the deadline.
    hidden_share
        For a late one: the share of its transfers' time that its plan hides.
    rule
        Words of the block that rejects the plan.
    """

    arena_excess: int = 0
    late_s: float = 0.0
    hidden_share: float = 1.0
    rule: str = ""


@dataclass
class Incumbent:
    """Best candidate offered so far.

    Attributes
    ----------
    arena_excess
        Least number of bytes by which a plan failed only for its layout; the search tightens its models by these.
    makespan_excess_s, hidden_share
        Least number of seconds by which a plan failed only for the deadline, and the share of its transfers that it
        hides.
    until
        Moment (of `time.monotonic`) at which long searches for a layout end.
    """

    problem: Problem
    options: Options
    best: Candidate | None = None
    arena_excess: int | None = None
    makespan_excess_s: float | None = None
    hidden_share: float = 1.0
    until: float = math.inf
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Lock for changes of the state. It is not held while a schedule is judged, which may take seconds of layout."""
    _seen: dict[Schedule, Refusal | None] = field(default_factory=dict)
    """Schedules that were offered, and why layout, clock or a block rejected them."""
    _without_layout: set[Schedule] = field(default_factory=set)
    """Schedules without an immediate layout."""

    def __post_init__(self) -> None:
        self._formulation = formulation(self.options.formulation)
        self._ram_bytes = self.options.ram_bytes - self._formulation.reserve_bytes(self.problem)
        self.problem = self.problem.within(self._ram_bytes)

    @property
    def value(self) -> float | None:
        """Objective of the best plan above one pass (joules, or the goal's unit)."""
        return None if self.best is None else self.best.value

    def offer(self, schedule: Schedule, *, quick: bool = False) -> bool:
        """Simulate the plan of `schedule`, and keep it if it is valid and better; return whether it was kept.

        Parameters
        ----------
        quick
            Whether it is one of many: seconds aren't spent on a layout, and a missing layout isn't noted.
        """
        with self.lock:
            if schedule in self._seen:
                self._note(self._seen[schedule])
                return False
            if quick and schedule in self._without_layout:
                return False
            self._seen[schedule] = None
            worst = math.inf if self.best is None else self.best.value
        result = self._evaluate(schedule, worst, quick)
        with self.lock:
            if isinstance(result, Refusal) and quick and result.arena_excess:
                del self._seen[schedule]
                self._without_layout.add(schedule)
            elif isinstance(result, Refusal):
                self.refuse(schedule, result)
            elif result is not None and (self.best is None or result.value < self.best.value):
                self.best = result
                self.forget()
                return True
        return False

    def _evaluate(self, schedule: Schedule, worst: float, quick: bool) -> Candidate | Refusal | None:
        """Return the plan of a schedule if its value is less than `worst`, or why it is rejected."""
        trial = self._trial(schedule)
        if trial is None:
            return None
        value = self._formulation.goal.value(trial)
        if value >= worst:
            return None
        rule = self._formulation.refusal(trial)
        if rule is not None:
            return Refusal(rule=rule)
        trial = self._reorder_if_late(trial)
        plan, simulation = trial.plan, trial.simulation
        lateness = self._lateness(simulation)
        if lateness is not None:
            return lateness
        if self._formulation.transfer_times:
            value = self._formulation.goal.value(trial)
        laid_out = self._lay_out(plan, quick)
        arena = arena_bytes(laid_out)
        if arena > self.room_bytes:
            return Refusal(arena_excess=arena - self.room_bytes)
        return Candidate(schedule, laid_out, simulation, arena, value)

    def take(self, plan: Plan) -> bool:
        """Keep a plan that may belong to no schedule, if it satisfies the options, has a layout, and is better."""
        simulation = simulate(plan, ram_bytes=self._ram_bytes)
        value = self._formulation.goal.value(self._formulation.trial(plan, simulation))
        laid_out = plan if plan.offsets else self._lay_out(plan, quick=False)
        arena = arena_bytes(laid_out)
        fits = arena <= self.room_bytes and not self._is_late(simulation)
        if not fits or (self.best is not None and self.best.value <= value):
            return False
        self.best = Candidate(schedule_of(plan, page_outs=True), laid_out, simulation, arena, value)
        return True

    def broken(self, schedule: Schedule) -> str | None:
        """Return the rule, in its block's words, that the plan of a schedule within the budget breaks; or None."""
        trial = self._trial(schedule)
        return None if trial is None else self._formulation.refusal(trial)

    def refuse(self, schedule: Schedule, refusal: Refusal) -> None:
        """Note why a schedule was rejected."""
        self._seen[schedule] = refusal
        self._note(refusal)

    def weigh(self, schedule: Schedule) -> float:
        """Return the value of a schedule's plan.

        It is inf if the plan exceeds the budget, or misses the deadline in any order of transfers. The layout is not
        considered.
        """
        trial = self._trial(schedule)
        if trial is None or (self._is_late(trial.simulation) and not self._can_reorder(trial.simulation)):
            return math.inf
        return self._formulation.goal.value(trial)

    def excess_bytes(self, schedule: Schedule) -> int:
        """Return the bytes of a schedule's plan beyond the budget; 0 if it is no valid plan."""
        try:
            return max(0, simulate(plan_of(self.problem, schedule)).peak_bytes - self._ram_bytes)
        except PlanError:
            return 0

    def _trial(self, schedule: Schedule) -> Trial | None:
        """Return the simulated plan of a schedule, or None if it exceeds the budget."""
        plan = plan_of(self.problem, schedule)
        try:
            simulation = simulate(plan)
        except PlanError:
            return None
        if simulation.peak_bytes > self._ram_bytes:
            return None
        trial = self._formulation.trial(plan, simulation)
        if self.problem.wake_j and simulation.wakes > 1:
            trial = self._with_order_of(trial, gather(plan, self._ram_bytes))
        queued = self.problem.dma and simulation.page_ins > 0
        if queued and (self._formulation.timed or self._formulation.refusal(trial) is not None):
            trial = self._with_order_of(trial, plan_transfers(trial.plan, self._ram_bytes))
        return trial

    def _with_order_of(self, trial: Trial, plan: Plan) -> Trial:
        """Return `trial` with its transfers in the order of `plan`, unless a block evaluates that as worse."""
        reordered = self._formulation.trial(plan, simulate(plan))
        if not self._formulation.transfer_times or self._formulation.refusal(trial) is not None:
            return reordered
        if self._formulation.refusal(reordered) is not None:
            return trial
        return min(reordered, trial, key=self._formulation.goal.value)

    def forget(self) -> None:
        """Reset the least excesses."""
        self.arena_excess = self.makespan_excess_s = None
        self.hidden_share = 1.0

    def rejection_of(self, schedule: Schedule) -> Refusal | None:
        """Return why an offered schedule was rejected, or None if it wasn't."""
        return self._seen.get(schedule)

    @property
    def orders(self) -> bool:
        """Return whether a schedule has several plans: with a DMA channel, or if waking costs energy."""
        return self.problem.dma or self.problem.wake_j > 0

    def is_proven_late(self, schedule: Schedule) -> bool:
        """Return whether all plans of a schedule that was rejected as late are proven to be late."""
        limit = self.options.deadline_s
        if limit is None or self.options.deadline_model is DeadlineModel.PAPER or schedule.writes_again(self.problem):
            return False
        plan = plan_of(self.problem, schedule)
        return out_of_reach(plan, self._ram_bytes, limit * (1 + RELATIVE_TOLERANCE))

    def hide_transfers(self, *, quick: bool = False) -> None:
        """Reorder the best plan's transfers so that the CPU waits least, if its layout still fits.

        Parameters
        ----------
        quick
            Whether to search that layout for tenths of a second only.
        """
        if self.best is None or not self.problem.dma or not self.best.simulation.page_ins:
            return
        # without a deadline, a shorter makespan is worth little time
        trials, nodes = (TRIALS, NODES) if self.options.deadline_s is not None else (0, 0)
        plan = plan_transfers(replace(self.best.plan, offsets=()), self._ram_bytes, trials=trials, nodes=nodes)
        simulation = simulate(plan)
        trial = self._formulation.trial(plan, simulation)
        value = self._formulation.goal.value(trial)
        if self._formulation.transfer_times and (
            value > self.best.value or self._formulation.refusal(trial) is not None
        ):
            return
        laid_out = self._lay_out(plan, quick)
        arena = arena_bytes(laid_out)
        if simulation.makespan_s < self.best.simulation.makespan_s and arena <= self.room_bytes:
            self.best = Candidate(self.best.schedule, laid_out, simulation, arena, min(value, self.best.value))

    def _lay_out(self, plan: Plan, quick: bool) -> Plan:
        """Return the plan with the first layout that fits, searched until the end, for `LAYOUT_S` at least."""
        until = max(self.until, time.monotonic() + LAYOUT_S)
        return lay_out(plan, ram_bytes=self.room_bytes, quick=quick, until=until)

    def settle(self) -> None:
        """Replace the best plan's layout by the one of `lay_out_within`, if that fits."""
        if self.best is None:
            return
        laid_out = lay_out(self.best.plan, quick=True)
        arena = arena_bytes(laid_out)
        if arena <= self.room_bytes:
            self.best = replace(self.best, plan=laid_out, arena_bytes=arena)

    @property
    def room_bytes(self) -> int:
        """Bytes for the arena: the budget without the bytes that kernels allocate beside it."""
        return self._ram_bytes - self.problem.reserve_bytes

    def _time_s(self, simulation: Simulation) -> float:
        """Return the seconds that the deadline limits."""
        return self.options.deadline_model.seconds(simulation)

    def _reorder_if_late(self, trial: Trial) -> Trial:
        """Return the plan in another order of transfers, if it is late and that may help."""
        limit = self.options.deadline_s
        if limit is None or self._time_s(trial.simulation) <= limit or not self._can_reorder(trial.simulation):
            return trial
        plan = plan_transfers(trial.plan, self._ram_bytes, goal_s=limit)
        reordered = self._formulation.trial(plan, simulate(plan))
        return (
            trial
            if self._formulation.transfer_times and self._formulation.refusal(reordered) is not None
            else reordered
        )

    def _lateness(self, simulation: Simulation) -> Refusal | None:
        """Return the excess of the deadline, if any, with the hidden share of the transfers."""
        limit = self.options.deadline_s
        if limit is None or not self._is_late(simulation):
            return None
        time_s = self._time_s(simulation)
        visible_s = max(0.0, time_s - simulation.compute_s)
        share = 1 - visible_s / simulation.transfer_s if simulation.transfer_s else 1.0
        return Refusal(late_s=time_s - limit, hidden_share=max(0.0, share))

    def _is_late(self, simulation: Simulation) -> bool:
        """Return whether the plan exceeds the deadline."""
        limit = self.options.deadline_s
        return limit is not None and self._time_s(simulation) > limit * (1 + RELATIVE_TOLERANCE)

    def _can_reorder(self, simulation: Simulation) -> bool:
        """Return whether another order of transfers may take less time."""
        paper = self.options.deadline_model is DeadlineModel.PAPER
        return self.problem.dma and not paper and simulation.page_ins > 0

    def _note(self, refusal: Refusal | None) -> None:
        if refusal is None or refusal.rule:
            return
        if refusal.arena_excess:
            self.arena_excess = min(refusal.arena_excess, self.arena_excess or refusal.arena_excess)
        elif self.makespan_excess_s is None or refusal.late_s < self.makespan_excess_s:
            self.makespan_excess_s, self.hidden_share = refusal.late_s, refusal.hidden_share
