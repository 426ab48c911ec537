"""The state of one solve: the clock, the work, the incumbent, and what is proven of the scope at hand."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from poetopt.backends.solvers.solver import Capability, backend
from poetopt.formulations import formulation
from poetopt.formulations.rows import PointLike, Row
from poetopt.formulations.scope import scope_name
from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.search.incumbent import Incumbent
from poetopt.search.solution import Listener, Options, Progress
from poetopt.search.tuning import EFFORT_S, ENDING_S, ENDING_SHARE, NEARLY, OBJECTIVE_TARGET
from poetopt.util import interrupts
from poetopt.util.work import Elapsed, Work


@dataclass(frozen=True)
class Budget:
    """The work and the gap of one part of a search. Seconds are those of `Work.seconds`: the clock decides nothing.

    work
        Where the search counts what it does.
    effort_s
        What shares are of. Once it is spent, as much again is meant, and so on.
    gap
        A plan that is proven to within this share of its value is enough.
    until
        The count at which the part ends; inf: it ends with the search.
    nearly_until
        The count at which the part ends already where a plan is proven to within `NEARLY`.
    pace_s
        Seconds of a search after which the part ends as soon as, at the pace so far, the proof won't be there in time.
    """

    work: Work
    effort_s: float
    gap: float
    until: float = math.inf
    nearly_until: float = math.inf
    pace_s: float = math.inf

    @property
    def remaining_s(self) -> float:
        """Seconds left; negative once they are over, or the clock ended the search."""
        clock_s = self.work.clock_s
        return clock_s if clock_s < 0 else self.until - self.work.seconds

    @property
    def limit_s(self) -> float:
        """The time limit of one call of a solver: the clock's alone, unless the solver doesn't count its work."""
        return min(self.work.clock_s, self.remaining_s) if isinstance(self.work, Elapsed) else self.work.clock_s

    @classmethod
    def by_clock(cls, until: float) -> Budget:
        """All that fits until that moment (of `time.monotonic`)."""
        work = Elapsed(until=until)
        return cls(work, max(work.clock_s, 0.0), 0.0)

    @property
    def meant_s(self) -> float:
        """Seconds that the part is meant to take from now on, if it needs them."""
        done = self.work.seconds
        effort_s = max(self.effort_s, 1e-3)
        while effort_s <= done:
            effort_s *= 2
        return min(effort_s - done, max(self.remaining_s, 0.0))

    def part(self, share: float) -> Budget:
        """The same gap in a share of what is meant."""
        return self.for_s(share * self.meant_s)

    def for_s(self, seconds: float) -> Budget:
        """The same gap in so many seconds."""
        return replace(self, until=min(self.until, self.work.seconds + seconds))

    def nearly_after(self, share: float) -> Budget:
        """The same, which ends after a share of its seconds where a plan is nearly proven."""
        return replace(self, nearly_until=self.work.seconds + share * self.meant_s)


BETTER = 1e-6
"""A plan is better than anything in a scope where it is below the scope's bound by this share of it."""


def outdone(value: float, bound: float) -> bool:
    """Say whether no schedule of a scope with this bound is as good as a plan of this value."""
    return value < bound * (1 - BETTER)


class Ending(Enum):
    """The end of one model's search."""

    FINISHED = "solved within the gap"
    STOPPED = "out of time"
    REFUSED = "solved, and its best schedule was refused by the layout or the clock"
    EXHAUSTED = "every schedule was refused by the layout, the clock or a block"
    INFEASIBLE = "proven to have no schedule"


@dataclass(frozen=True)
class Proof:
    """The end of one scope's search.

    asked, scope
        The scope as options spell it, and as results call it.
    bound
        No schedule in the scope is better.
    value
        The best plan's, or None.
    closed
        Whether the value is within the gap of the bound.
    finished
        Whether the model was solved to the end: what is open then is open because of the layout or the clock.
    exhausted
        Whether each of its schedules was refused, one after the other.
    of_all
        Of an infeasible one: whether no plan exists at all, also none of those that no scope holds.
    note
        What a wider scope left open, if any.
    sources
        The blocks whose lazy constraints the bound may rest on.
    binding
        The cuts that were tight at the end, by block and key: a wider scope starts with them.
    """

    asked: str
    scope: str
    bound: float
    infeasible: bool
    value: float | None
    closed: bool
    finished: bool = False
    exhausted: bool = False
    of_all: bool = False
    note: str = ""
    sources: frozenset[str] = frozenset()
    binding: tuple[tuple[str, Hashable], ...] = ()

    @property
    def outdone(self) -> bool:
        """Say whether the plan is better than anything in the scope, so that it lies outside."""
        return self.value is not None and outdone(self.value, self.bound)

    @property
    def gap(self) -> float:
        """Of the best plan against this scope's bound."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value else 0.0

    def within(self, share: float) -> bool:
        """Say whether there is a plan, and no more than that `share` of it is open."""
        return self.value is not None and self.gap <= share

    @property
    def settled(self) -> bool:
        """Say whether a wider scope need not search this one again."""
        return self.closed or self.infeasible

    def pays(self, before: float | None, gap: float) -> bool:
        """Say whether a scope that began with a plan of `before` has found enough for a wider one to be worth it."""
        if before is None or self.value is None:
            return False
        return self.outdone or before - self.value > gap * max(self.value, 1e-300)


@dataclass
class Proving:
    """The proof of one scope so far.

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
    """The work done when the search began that followed the root's cuts, in seconds, and the bound then."""

    def in_reach(self, value: float, budget: Budget) -> bool:
        """Say whether `value` is proven within the gap in time, if the bound rises as it did since the root."""
        if self.root is None:
            return True
        begin, bound = self.root
        done_s = budget.work.seconds
        taken_s = done_s - begin
        open_ = value * (1 - budget.gap) - self.bound
        return taken_s < budget.pace_s or open_ * taken_s <= (self.bound - bound) * max(budget.meant_s, done_s)


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
    """The proof of the plain problem (`run_plain`), where that is settled: then only what streams is searched."""
    given: Budget | None = None
    """The budget that it may use, where it is a part of another search."""
    least: float = 0.0
    """The bound on all plans: none costs less."""
    interrupted: bool = False
    share: float = 1.0
    """Of the time: the rest is for another search than the one at hand."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by whoever changes any of this, or asks the blocks' separators: a solver may be left behind in its thread.
    Nobody holds it while a schedule is laid out or a solver computes."""

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
        """The factor of solvers' objectives."""
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
        """The bound of the scope at hand."""
        return self.proving.bound

    def enter(self, scope: str, bound: float = 0.0) -> None:
        """Begin to prove something of another scope, of which a bound may be known."""
        with self.lock:
            self.proving = Proving(scope, bound)

    def remaining_s(self, budget: Budget) -> float:
        """Seconds left of `budget`, which may end sooner where the scope at hand is nearly proven, or by the clock."""
        value = self.incumbent.value
        if value is not None and not self.proving.in_reach(value, budget):
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
        """Say whether it is the best now. `quick`: see `Incumbent.offer`."""
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
        if refusal is None or not refusal.rule or self.incumbent.orders or self.chosen.search.no_good is None:
            return None
        values = self.chosen.search.values(model, schedule)
        return None if values is None else self.chosen.search.no_good(model, schedule, values, late=False)

    def raise_bound(self, bound: float, phase: str) -> None:
        with self.lock:
            bound = min(bound, self.proving.ceiling)
            if bound <= self.proving.bound or self.interrupted:
                return
            self.proving.bound = bound
            self.say(phase)

    def closed(self, gap: float) -> bool:
        """Say whether the incumbent is proven to within `gap` in the scope at hand."""
        value = self.incumbent.value
        return value is not None and value - self.bound <= gap * value
