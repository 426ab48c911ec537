"""State of one solve: the clock, the work, the incumbent, and the proof of the current scope."""

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
    """Work and gap of one part of a search.

    Seconds are those of `Work.seconds`: the clock decides nothing.

    Attributes
    ----------
    work
        Counter of the search's work.
    effort_s
        Seconds that shares refer to. Once they are spent, the intended effort doubles, and so on.
    gap
        A plan that is proven to within this share of its value is enough.
    until
        Count at which the part ends; inf: it ends with the search.
    nearly_until
        Earlier count at which the part ends if a plan is proven to within `NEARLY`.
    pace_s
        Seconds of a search after which the part ends as soon as its pace so far is too slow for the proof.
    """

    work: Work
    effort_s: float
    gap: float
    until: float = math.inf
    nearly_until: float = math.inf
    pace_s: float = math.inf

    @property
    def remaining_s(self) -> float:
        """Seconds left; negative once they are over, or once the clock ended the search."""
        clock_s = self.work.clock_s
        return clock_s if clock_s < 0 else self.until - self.work.seconds

    @property
    def limit_s(self) -> float:
        """Time limit of one solver call: the clock's alone, unless the solver doesn't count its work."""
        return min(self.work.clock_s, self.remaining_s) if isinstance(self.work, Elapsed) else self.work.clock_s

    @classmethod
    def by_clock(cls, until: float) -> Budget:
        """Return a budget that ends at the moment `until` (of `time.monotonic`)."""
        work = Elapsed(until=until)
        return cls(work, max(work.clock_s, 0.0), 0.0)

    @property
    def meant_s(self) -> float:
        """Seconds that the part may take from now on if it needs them."""
        done_s = self.work.seconds
        effort_s = max(self.effort_s, 1e-3)
        while effort_s <= done_s:
            effort_s *= 2
        return min(effort_s - done_s, max(self.remaining_s, 0.0))

    def part(self, share: float) -> Budget:
        """Return a budget of the same gap with a share of the intended seconds."""
        return self.for_s(share * self.meant_s)

    def for_s(self, seconds: float) -> Budget:
        """Return a budget of the same gap with at most `seconds`."""
        return replace(self, until=min(self.until, self.work.seconds + seconds))

    def nearly_after(self, share: float) -> Budget:
        """Return a budget that ends after a share of its seconds if a plan is nearly proven."""
        return replace(self, nearly_until=self.work.seconds + share * self.meant_s)


BOUND_TOLERANCE = 1e-6
"""Share of a scope's bound by which a plan below it is better than the whole scope."""


def outdone(value: float, bound: float) -> bool:
    """Return whether no schedule of a scope with this bound is as good as a plan of this value."""
    return value < bound * (1 - BOUND_TOLERANCE)


class Ending(Enum):
    """Outcome of the search of one model."""

    FINISHED = "solved within the gap"
    STOPPED = "out of time"
    REFUSED = "solved, and its best schedule was refused by the layout or the clock"
    EXHAUSTED = "every schedule was refused by the layout, the clock or a block"
    INFEASIBLE = "proven to have no schedule"


@dataclass(frozen=True)
class Proof:
    """Result of the search of one scope.

    Attributes
    ----------
    asked, scope
        Scope as the options spell it, and as results call it.
    bound
        Value that no schedule in the scope is below.
    infeasible
        Whether the scope is proven to have no schedule.
    value
        Value of the best plan, or None.
    closed
        Whether the value is within the gap of the bound.
    finished
        Whether the model was solved to the end. An open gap is then due to the layout or the clock.
    exhausted
        Whether each of its schedules was rejected, one after the other.
    covers_all_plans
        For an infeasible scope: whether it is proven that no plan exists at all, even outside of all scopes.
    note
        Gap that a wider scope left open, in words, if any.
    sources
        Blocks whose lazy constraints the bound may rest on.
    binding
        Cuts that were tight at the end, by block and key. A wider scope starts with them.
    """

    asked: str
    scope: str
    bound: float
    infeasible: bool
    value: float | None
    closed: bool
    finished: bool = False
    exhausted: bool = False
    covers_all_plans: bool = False
    note: str = ""
    sources: frozenset[str] = frozenset()
    binding: tuple[tuple[str, Hashable], ...] = ()

    @property
    def outdone(self) -> bool:
        """Return whether the plan is better than anything in the scope, and so lies outside of it."""
        return self.value is not None and outdone(self.value, self.bound)

    @property
    def gap(self) -> float:
        """Gap between the best plan and this scope's bound."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value else 0.0

    def within(self, share: float) -> bool:
        """Return whether there is a plan of which at most `share` is open."""
        return self.value is not None and self.gap <= share

    @property
    def settled(self) -> bool:
        """Return whether a wider scope need not search this one again."""
        return self.closed or self.infeasible

    def pays(self, before: float | None, gap: float) -> bool:
        """Return whether the scope improved a plan of `before` by so much that a wider one is worth it."""
        if before is None or self.value is None:
            return False
        return self.outdone or before - self.value > gap * max(self.value, 1e-300)


@dataclass
class Proving:
    """Unfinished proof of one scope.

    Attributes
    ----------
    scope
        Scope as the options spell it.
    bound
        Value that no schedule of the scope is below.
    ceiling
        Largest bound that may be claimed. With a scope-difference cut the model lacks the inner scope, and its
        bound counts.
    """

    scope: str
    bound: float = 0.0
    ceiling: float = math.inf
    root: tuple[float, float] | None = None
    """Work in seconds and the bound when the integer search began, after the cuts at the root."""

    def in_reach(self, value: float, budget: Budget) -> bool:
        """Return whether `value` is proven within the gap in time, at the pace of the bound since the root."""
        if self.root is None:
            return True
        begin_s, root_bound = self.root
        done_s = budget.work.seconds
        elapsed_s = done_s - begin_s
        open_gap = value * (1 - budget.gap) - self.bound
        return elapsed_s < budget.pace_s or open_gap * elapsed_s <= (self.bound - root_bound) * max(
            budget.meant_s, done_s
        )


@dataclass
class Run:
    """State of one call of `search`."""

    problem: Problem
    options: Options
    listener: Listener | None
    begin: float = field(default_factory=time.monotonic)
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in the order in which the phases first began."""
    work: Work = field(default_factory=Work)
    """Counter of the search's work."""
    proving: Proving = field(default_factory=lambda: Proving("store-all"))
    trace: list[Progress] = field(default_factory=list)
    starts: list[Schedule] = field(default_factory=list)
    plain_proof: Proof | None = None
    """Proof of the plain problem (`run_plain`), if it is settled. Then only streaming schedules are searched."""
    part_budget: Budget | None = None
    """Budget of a search that is part of another one."""
    all_plans_bound: float = 0.0
    """Bound on all plans: none costs less."""
    interrupted: bool = False
    share: float = 1.0
    """Share of the time for the current search; another one has the rest."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Lock for any change of the state and for the blocks' separators, since a solver may be left behind in its thread.
    It is not held while a schedule is laid out or a solver computes."""

    def __post_init__(self) -> None:
        self.chosen = formulation(self.options.formulation)
        if Capability.WORK not in backend(self.options.backend).capabilities and not isinstance(self.work, Elapsed):
            self.work = Elapsed()
        self.work.until = self.latest
        self.incumbent = Incumbent(self.problem, self.options, until=self.latest, lock=self.lock)

    @property
    def latest(self) -> float:
        """Moment at which searching ends; the rest of the time limit is for transfers and layout."""
        limit_s = self.options.time_limit_s
        reserved_s = min(ENDING_SHARE * limit_s, ENDING_S * len(self.problem.operators) ** 2)
        return self.begin + self.share * (limit_s - reserved_s)

    def allot(self, share: float) -> None:
        """Assign a share of the time to the current search."""
        self.share = share
        self.work.until = self.latest

    @property
    def budget(self) -> Budget:
        """Budget of the whole search."""
        return self.part_budget or Budget(self.work, min(EFFORT_S, self.options.time_limit_s), self.options.gap)

    @property
    def scale(self) -> float:
        """Factor of the solver's objective."""
        baseline = self.chosen.goal.baseline(self.problem, self.chosen.baseline_j(self.problem))
        return OBJECTIVE_TARGET / (self.incumbent.value or baseline or 1.0)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begin

    @property
    def scope(self) -> str:
        """Current scope, as results call it."""
        return scope_name(self.proving.scope)

    @property
    def bound(self) -> float:
        """Bound of the current scope."""
        return self.proving.bound

    def enter_scope(self, scope: str, bound: float = 0.0) -> None:
        """Begin the proof of another scope, with the bound that is known of it."""
        with self.lock:
            self.proving = Proving(scope, bound)

    def remaining_s(self, budget: Budget) -> float:
        """Return the seconds left of `budget`, which ends early if the proof is near or out of reach."""
        value = self.incumbent.value
        if value is not None and not self.proving.in_reach(value, budget):
            return 0.0
        if self.closed(NEARLY):
            return min(budget.remaining_s, budget.nearly_until - budget.work.seconds)
        return budget.remaining_s

    def interrupt(self) -> None:
        """Note an interrupt. Solvers left behind in their threads change nothing afterwards."""
        if not self.interrupted:
            self.interrupted = True
            self.incumbent = copy.copy(self.incumbent)  # without the lock, which a separator may hold for long

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the time inside the block for `phase`, also if it is interrupted."""
        interrupts.check()  # an interrupt whose exception was lost
        begin = time.monotonic()
        try:
            yield
        except Exception:
            interrupts.check()  # the exception may hide an interrupt inside a library
            raise
        finally:
            self.timing[phase] = self.timing.get(phase, 0.0) + time.monotonic() - begin

    def report_progress(self, phase: str) -> None:
        """Record the progress, and report it to the listener."""
        unit = self.chosen.goal.unit
        value = self.incumbent.value
        bound = self.bound if value is None else min(self.bound, value)  # the plan may lie outside of the scope
        progress = Progress(self.elapsed_s, phase, self.scope, value, bound, unit)
        self.trace.append(progress)
        if self.listener is not None:
            self.listener(progress)

    def offer(self, schedule: Schedule, phase: str, *, quick: bool = False) -> bool:
        """Offer a schedule to the incumbent (see `Incumbent.offer`); return whether it is the best now."""
        incumbent = self.incumbent
        if self.interrupted or not incumbent.offer(schedule, quick=quick):
            return False
        with self.lock:
            if self.interrupted or incumbent is not self.incumbent:
                return False
            self.report_progress(phase)
            return True

    def separate(self, model: Any, point: PointLike) -> list[Row]:
        """Return the rows of all blocks that `point` breaks."""
        with self.lock:
            return self.chosen.separate(model, point)

    def row_excluding(self, model: Any, schedule: Schedule) -> Row | None:
        """Return the row that excludes a schedule whose only plan a block rejects; None otherwise."""
        refusal = self.incumbent.rejection_of(schedule)
        if refusal is None or not refusal.rule or self.incumbent.orders or self.chosen.search.no_good is None:
            return None
        values = self.chosen.search.values(model, schedule)
        return None if values is None else self.chosen.search.no_good(model, schedule, values, late=False)

    def raise_bound(self, bound: float, phase: str) -> None:
        """Raise the bound of the current scope, if `bound` is higher, and report it."""
        with self.lock:
            bound = min(bound, self.proving.ceiling)
            if bound <= self.proving.bound or self.interrupted:
                return
            self.proving.bound = bound
            self.report_progress(phase)

    def closed(self, gap: float) -> bool:
        """Return whether the incumbent is proven to within `gap` in the current scope."""
        value = self.incumbent.value
        return value is not None and value - self.bound <= gap * value
