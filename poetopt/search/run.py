"""The state of one solve: the clock, the work, the incumbent, and what is proven of the scope at hand."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from poetopt.backends.solvers.solver import Capability, backend
from poetopt.formulations import formulation
from poetopt.formulations.rows import PointLike, Row
from poetopt.formulations.scope import scope_name
from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.search.budget import Budget
from poetopt.search.incumbent import Incumbent
from poetopt.search.proof import Proof
from poetopt.search.solution import Listener, Options, Progress
from poetopt.search.tuning import EFFORT_S, ENDING_S, ENDING_SHARE, NEARLY, OBJECTIVE_TARGET, PACE_S
from poetopt.util import interrupts
from poetopt.util.work import Elapsed, Work


@dataclass
class Proving:
    """What is proven of one scope so far.

    scope
        As options spell it.
    bound
        No schedule of the scope costs less.
    ceiling
        With a scope-difference cut the model lacks the inner scope: the bound claimed is capped at the inner scope's.
    """

    scope: str
    bound: float = 0.0
    ceiling: float = math.inf
    root: tuple[float, float] | None = None
    """What was done when the search began that followed the root's cuts, in seconds, and the bound then."""

    def in_reach(self, value: float, budget: Budget) -> bool:
        """Whether `value` is proven within the budget's gap in time, if the bound rises as it did since the root."""
        if self.root is None:
            return True
        begin, bound = self.root
        done_s = budget.work.seconds
        taken_s = done_s - begin
        open_ = value * (1 - budget.gap) - self.bound
        return taken_s < PACE_S or open_ * taken_s <= (self.bound - bound) * max(budget.meant_s, done_s)


@dataclass
class Run:
    """One call of `search`."""

    problem: Problem
    options: Options
    listener: Listener | None
    begin: float = field(default_factory=time.monotonic)
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in the order in which the phases first began."""
    work: Work = field(default_factory=Work)
    """Counts what the search does."""
    proving: Proving = field(default_factory=lambda: Proving("store-all"))
    trace: list[Progress] = field(default_factory=list)
    starts: list[Schedule] = field(default_factory=list)
    plain: Proof | None = None
    """What is proven of the plain problem (`run_plain`), where that is settled: then only what streams is searched."""
    given: Budget | None = None
    """What it may use, where it is a part of another search."""
    least: float = 0.0
    """What is proven of all plans: none costs less."""
    interrupted: bool = False
    share: float = 1.0
    """Of the time: the rest is for another search than the one at hand."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by whoever changes any of this, or asks the blocks' separators: two searches may be at work. Nobody holds it
    while a schedule is laid out or a solver computes."""

    def __post_init__(self) -> None:
        self.chosen = formulation(self.options.formulation)
        if Capability.WORK not in backend(self.options.backend).capabilities and not isinstance(self.work, Elapsed):
            self.work = Elapsed()
        self.work.until = self.latest
        self.incumbent = Incumbent(self.problem, self.options, until=self.latest, lock=self.lock)

    @property
    def latest(self) -> float:
        """The moment at which searching ends: the rest of the time limit is for the plan's transfers and layout."""
        limit_s = self.options.time_limit_s
        spared = min(ENDING_SHARE * limit_s, ENDING_S * len(self.problem.operators) ** 2)
        return self.begin + self.share * (limit_s - spared)

    def allot(self, share: float) -> None:
        """Let the search at hand have so much of the time."""
        self.share = share
        self.work.until = self.latest

    @property
    def budget(self) -> Budget:
        """All that the search may use."""
        return self.given or Budget(self.work, min(EFFORT_S, self.options.time_limit_s), self.options.gap)

    @property
    def scale(self) -> float:
        """What solvers' objectives are multiplied by."""
        baseline = self.chosen.goal.baseline(self.problem, self.chosen.baseline_j(self.problem))
        return OBJECTIVE_TARGET / (self.incumbent.value or baseline or 1.0)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begin

    @property
    def scope(self) -> str:
        """The scope at hand, as results call it."""
        return scope_name(self.proving.scope)

    @property
    def bound(self) -> float:
        """What is proven of the scope at hand."""
        return self.proving.bound

    def enter(self, scope: str, bound: float = 0.0) -> None:
        """Begin to prove something of another scope, of which a bound may be known."""
        with self.lock:
            self.proving = Proving(scope, bound)

    def remaining_s(self, budget: Budget) -> float:
        """Seconds left of `budget`, which may end sooner where the scope at hand is nearly proven, or by the clock."""
        value = self.incumbent.value
        if budget.in_reach and value is not None and not self.proving.in_reach(value, budget):
            return 0.0
        if self.closed(NEARLY):
            return min(budget.remaining_s, budget.nearly_until - budget.work.seconds)
        return budget.remaining_s

    def interrupt(self) -> None:
        """Note an interrupt. What solvers left behind still find in their threads changes nothing from here on."""
        if not self.interrupted:
            self.interrupted = True
            self.incumbent = copy.copy(self.incumbent)  # without the lock, which a separator may hold for long

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the time inside the block as the phase's, also when it is interrupted."""
        interrupts.check()  # one whose exception was lost
        begin = time.monotonic()
        try:
            yield
        except Exception:
            interrupts.check()  # which it may have left behind in somebody's library
            raise
        finally:
            self.timing[phase] = self.timing.get(phase, 0.0) + time.monotonic() - begin

    def say(self, phase: str) -> None:
        unit = self.chosen.goal.unit
        value = self.incumbent.value
        bound = self.bound if value is None else min(self.bound, value)  # a plan may lie outside of the scope
        progress = Progress(self.elapsed_s, phase, self.scope, value, bound, unit)
        self.trace.append(progress)
        if self.listener is not None:
            self.listener(progress)

    def offer(self, schedule: Schedule, phase: str, *, quick: bool = False) -> bool:
        """Whether it is the best now. `quick`: see `Incumbent.offer`."""
        incumbent = self.incumbent
        if self.interrupted or not incumbent.offer(schedule, quick=quick):
            return False
        with self.lock:
            if self.interrupted or incumbent is not self.incumbent:
                return False
            self.say(phase)
            return True

    def separate(self, model: Any, point: PointLike) -> list[Row]:
        """The rows of all blocks that `point` breaks."""
        with self.lock:
            return self.chosen.separate(model, point)

    def left_out(self, model: Any, schedule: Schedule) -> Row | None:
        """The row that leaves out a schedule whose only plan a block refuses; None where that isn't so."""
        refusal = self.incumbent.refused(schedule)
        if refusal is None or not refusal.rule or self.incumbent.orders or self.chosen.no_good is None:
            return None
        values = self.chosen.points.values(model, schedule)
        return None if values is None else self.chosen.no_good(model, schedule, values, late=False)

    def raise_bound(self, bound: float, phase: str) -> None:
        with self.lock:
            bound = min(bound, self.proving.ceiling)
            if bound <= self.proving.bound or self.interrupted:
                return
            self.proving.bound = bound
            self.say(phase)

    def closed(self, gap: float) -> bool:
        """Whether the incumbent is proven to within `gap` in the scope at hand."""
        value = self.incumbent.value
        return value is not None and value - self.bound <= gap * value
