"""The best plan so far: nothing counts before the simulator and the memory layout have accepted it."""

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
    """A plan that was accepted: laid out, within the budget, the deadline and what blocks ask.

    value
        What is minimised, above one pass, in the goal's unit: joules of overhead unless a block says otherwise.
    """

    schedule: Schedule
    plan: Plan
    simulation: Simulation
    arena_bytes: int
    value: float


@dataclass(frozen=True)
class Refusal:
    """The reason why a schedule within the budget was refused: its layout took too many bytes, or its plan too long.

    hidden_share
        Of a late one: the part of its transfers' time that its plan hides.
    rule
        The block's words, where a block refuses the plan.
    """

    arena_excess: int = 0
    late_s: float = 0.0
    hidden_share: float = 1.0
    rule: str = ""


@dataclass
class Incumbent:
    """Keeps the best candidate offered.

    `until` is the moment (of `time.monotonic`) at which layouts end that take seconds.

    `arena_excess` is the least number of bytes by which a plan failed only for its layout, and
    `makespan_excess_s` the same for the deadline, with the `hidden_share` of that plan: the solve loop tightens by
    these.
    """

    problem: Problem
    options: Options
    best: Candidate | None = None
    arena_excess: int | None = None
    makespan_excess_s: float | None = None
    hidden_share: float = 1.0
    until: float = math.inf
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while what is found is noted, never while a schedule is judged, which may take seconds of layout."""
    _seen: dict[Schedule, Refusal | None] = field(default_factory=dict)
    """Schedules that were offered, and whether layout, clock or a block refused them."""
    _unplaced: set[Schedule] = field(default_factory=set)
    """Those that had no layout at once."""

    def __post_init__(self) -> None:
        self._judge = formulation(self.options.formulation)
        self._ram_bytes = self.options.ram_bytes - self._judge.reserve_bytes(self.problem)
        self.problem = self.problem.within(self._ram_bytes)

    @property
    def value(self) -> float | None:
        """Of the best plan: what is minimised, above one pass (joules, or the goal's unit)."""
        return None if self.best is None else self.best.value

    def offer(self, schedule: Schedule, *, quick: bool = False) -> bool:
        """Simulate the plan of `schedule`; keep it if it is valid and better. Says whether it was kept.

        quick
            Whether one of many: seconds aren't spent on a layout, and where it has none at once, nothing is said of it.
        """
        with self.lock:
            if schedule in self._seen:
                self._note(self._seen[schedule])
                return False
            if quick and schedule in self._unplaced:
                return False
            self._seen[schedule] = None
            worst = math.inf if self.best is None else self.best.value
        found = self._judged(schedule, worst, quick)
        with self.lock:
            if isinstance(found, Refusal) and quick and found.arena_excess:
                del self._seen[schedule]
                self._unplaced.add(schedule)
            elif isinstance(found, Refusal):
                self.refuse(schedule, found)
            elif found is not None and (self.best is None or found.value < self.best.value):
                self.best = found
                self.forget()
                return True
        return False

    def _judged(self, schedule: Schedule, worst: float, quick: bool) -> Candidate | Refusal | None:
        """The plan of a schedule that is worth less than `worst`, or why layout or clock refuse it."""
        trial = self._trial(schedule)
        if trial is None:
            return None
        value = self._judge.goal.value(trial)
        if value >= worst:
            return None
        rule = self._judge.refusal(trial)
        if rule is not None:
            return Refusal(rule=rule)
        trial = self._hurried(trial)
        plan, simulation = trial.plan, trial.simulation
        late = self._lateness(simulation)
        if late is not None:
            return late
        if self._judge.transfer_times:
            value = self._judge.goal.value(trial)
        laid_out = self._laid_out(plan, quick)
        arena = arena_bytes(laid_out)
        if arena > self.room_bytes:
            return Refusal(arena_excess=arena - self.room_bytes)
        return Candidate(schedule, laid_out, simulation, arena, value)

    def take(self, plan: Plan) -> bool:
        """Keep a plan that may be no schedule's, if it keeps all that is asked, has a layout, and is better."""
        simulation = simulate(plan, ram_bytes=self._ram_bytes)
        value = self._judge.goal.value(self._judge.trial(plan, simulation))
        laid_out = plan if plan.offsets else self._laid_out(plan, quick=False)
        arena = arena_bytes(laid_out)
        fits = arena <= self.room_bytes and not self._late(simulation)
        if not fits or (self.best is not None and self.best.value <= value):
            return False
        self.best = Candidate(schedule_of(plan, page_outs=True), laid_out, simulation, arena, value)
        return True

    def broken(self, schedule: Schedule) -> str | None:
        """The rule that the plan of a schedule within the budget breaks, in its block's words; or None."""
        trial = self._trial(schedule)
        return None if trial is None else self._judge.refusal(trial)

    def refuse(self, schedule: Schedule, refusal: Refusal) -> None:
        """Remember why a schedule was refused."""
        self._seen[schedule] = refusal
        self._note(refusal)

    def weigh(self, schedule: Schedule) -> float:
        """The value of its plan, inf where it breaks the budget, or the deadline in whatever order transfers are.

        Whether it has a layout is open.
        """
        trial = self._trial(schedule)
        if trial is None or (self._late(trial.simulation) and not self._queues(trial.simulation)):
            return math.inf
        return self._judge.goal.value(trial)

    def excess_bytes(self, schedule: Schedule) -> int:
        """The bytes that a schedule's plan takes beyond the budget; 0 for what is no plan at all."""
        try:
            return max(0, simulate(plan_of(self.problem, schedule)).peak_bytes - self._ram_bytes)
        except PlanError:
            return 0

    def _trial(self, schedule: Schedule) -> Trial | None:
        """The plan of a schedule that keeps the budget, simulated."""
        plan = plan_of(self.problem, schedule)
        try:
            simulation = simulate(plan)
        except PlanError:
            return None
        if simulation.peak_bytes > self._ram_bytes:
            return None
        trial = self._judge.trial(plan, simulation)
        if self.problem.wake_j and simulation.wakes > 1:
            trial = self._moved(trial, gather(plan, self._ram_bytes))
        queued = self.problem.dma and simulation.page_ins > 0
        if queued and (self._judge.timed or self._judge.refusal(trial) is not None):
            trial = self._moved(trial, plan_transfers(trial.plan, self._ram_bytes))
        return trial

    def _moved(self, trial: Trial, plan: Plan) -> Trial:
        """`trial` with its transfers in the order of `plan`, unless a block that cares likes it less."""
        moved = self._judge.trial(plan, simulate(plan))
        if not self._judge.transfer_times or self._judge.refusal(trial) is not None:
            return moved
        if self._judge.refusal(moved) is not None:
            return trial
        return min(moved, trial, key=self._judge.goal.value)

    def forget(self) -> None:
        """Begin to look for the least excess anew."""
        self.arena_excess = self.makespan_excess_s = None
        self.hidden_share = 1.0

    def refused(self, schedule: Schedule) -> Refusal | None:
        """The reason why layout, clock or a block refused a schedule that was offered, or None where they didn't."""
        return self._seen.get(schedule)

    @property
    def orders(self) -> bool:
        """Say whether a schedule has several plans, as the transfers' order counts: with a channel, or a waking."""
        return self.problem.dma or self.problem.wake_j > 0

    def hopeless(self, schedule: Schedule) -> bool:
        """Say whether no plan of a schedule that was refused as late is in time, by proof."""
        limit = self.options.deadline_s
        if limit is None or self.options.deadline_model is DeadlineModel.PAPER or schedule.writes_again(self.problem):
            return False
        plan = plan_of(self.problem, schedule)
        return out_of_reach(plan, self._ram_bytes, limit * (1 + RELATIVE_TOLERANCE))

    def hide_transfers(self, *, quick: bool = False) -> None:
        """Queue the best plan's transfers so that the CPU waits least, where its layout still fits then.

        quick
            Whether to look for that layout for tenths of a second only.
        """
        if self.best is None or not self.problem.dma or not self.best.simulation.page_ins:
            return
        # seconds that nobody asked for are worth few
        trials, nodes = (TRIALS, NODES) if self.options.deadline_s is not None else (0, 0)
        plan = plan_transfers(replace(self.best.plan, offsets=()), self._ram_bytes, trials=trials, nodes=nodes)
        simulation = simulate(plan)
        trial = self._judge.trial(plan, simulation)
        value = self._judge.goal.value(trial)
        if self._judge.transfer_times and (value > self.best.value or self._judge.refusal(trial) is not None):
            return
        laid_out = self._laid_out(plan, quick)
        arena = arena_bytes(laid_out)
        if simulation.makespan_s < self.best.simulation.makespan_s and arena <= self.room_bytes:
            self.best = Candidate(self.best.schedule, laid_out, simulation, arena, min(value, self.best.value))

    def _laid_out(self, plan: Plan, quick: bool) -> Plan:
        """The plan with the first layout that fits, looked for until the time ends, and for `LAYOUT_S` at least."""
        until = max(self.until, time.monotonic() + LAYOUT_S)
        return lay_out(plan, ram_bytes=self.room_bytes, quick=quick, until=until)

    def settle(self) -> None:
        """Replace the best plan's layout by the one of `lay_out_within`, where that fits."""
        if self.best is None:
            return
        laid_out = lay_out(self.best.plan, quick=True)
        arena = arena_bytes(laid_out)
        if arena <= self.room_bytes:
            self.best = replace(self.best, plan=laid_out, arena_bytes=arena)

    @property
    def room_bytes(self) -> int:
        """Bytes for the arena: the budget less what kernels allocate beside it."""
        return self._ram_bytes - self.problem.reserve_bytes

    def _time_s(self, simulation: Simulation) -> float:
        """The seconds that the deadline bounds."""
        return self.options.deadline_model.seconds(simulation)

    def _hurried(self, trial: Trial) -> Trial:
        """The plan in another order of transfers, where it is beyond the deadline and that may help."""
        limit = self.options.deadline_s
        if limit is None or self._time_s(trial.simulation) <= limit or not self._queues(trial.simulation):
            return trial
        plan = plan_transfers(trial.plan, self._ram_bytes, goal_s=limit)
        moved = self._judge.trial(plan, simulate(plan))
        return trial if self._judge.transfer_times and self._judge.refusal(moved) is not None else moved

    def _lateness(self, simulation: Simulation) -> Refusal | None:
        """By how much it is late, if it is, and how much of its transfers hid."""
        limit = self.options.deadline_s
        if limit is None or not self._late(simulation):
            return None
        time_s = self._time_s(simulation)
        seen_s = max(0.0, time_s - simulation.compute_s)
        share = 1 - seen_s / simulation.transfer_s if simulation.transfer_s else 1.0
        return Refusal(late_s=time_s - limit, hidden_share=max(0.0, share))

    def _late(self, simulation: Simulation) -> bool:
        """Say whether what the deadline bounds exceeds it."""
        limit = self.options.deadline_s
        return limit is not None and self._time_s(simulation) > limit * (1 + RELATIVE_TOLERANCE)

    def _queues(self, simulation: Simulation) -> bool:
        """Say whether another order of transfers may take less time."""
        paper = self.options.deadline_model is DeadlineModel.PAPER
        return self.problem.dma and not paper and simulation.page_ins > 0

    def _note(self, refusal: Refusal | None) -> None:
        if refusal is None or refusal.rule:
            return
        if refusal.arena_excess:
            self.arena_excess = min(refusal.arena_excess, self.arena_excess or refusal.arena_excess)
        elif self.makespan_excess_s is None or refusal.late_s < self.makespan_excess_s:
            self.makespan_excess_s, self.hidden_share = refusal.late_s, refusal.hidden_share
