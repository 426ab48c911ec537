"""The state of one solve: the clock, the incumbent, and what has been proven in the scope at hand."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from poetopt import interrupts
from poetopt.engine.incumbent import Incumbent
from poetopt.engine.proof import NEARLY
from poetopt.engine.solution import Listener, Options, Progress
from poetopt.formulations import formulation
from poetopt.formulations.rows import PointLike, Row
from poetopt.heuristics.problem_space import ProblemSpace
from poetopt.problem import Problem
from poetopt.schedule import Schedule

ENDING_SHARE = 0.1
"""At most this share of the time limit is set aside for what comes after the search."""
ENDING_S = 1e-5
"""Seconds of it for each pair of operators: 2 where there are 457 of them, and 10 where there are 1,000."""
LEAST_S = 0.5
"""Seconds left for which it is worth beginning once more."""


@dataclass
class Run:
    """One call of `solve`: the clock, the incumbent and what has been proven."""

    problem: Problem
    options: Options
    listener: Listener | None
    begin: float = field(default_factory=time.monotonic)
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in the order in which the phases first began."""
    scope: str = ""
    bound: float = 0.0
    trace: list[Progress] = field(default_factory=list)
    starts: list[Schedule] = field(default_factory=list)
    pool: list[tuple[str, Hashable]] = field(default_factory=list)
    """Cuts that were tight in the last scope, by block and key: the next one starts with them."""
    ceiling: float = math.inf
    """The bound of an inner scope, where only what lies beyond that is searched: no bound is above it."""
    sources: frozenset[str] = frozenset()
    """The blocks whose late rows the bound may rest on."""
    above: Run | None = None
    """The run of a problem of which this one's is a relaxation, where what is proven here is to be proven there."""
    gap: float = field(init=False)
    """What the scope at hand is searched to."""
    soon: float = math.inf
    """The moment at which a scope that is proven but for `NEARLY` is left for a deeper one."""
    interrupted: bool = False
    guard: threading.RLock = field(default_factory=threading.RLock)
    """Held by whoever changes any of this, or the blocks' separators: two searches may be at work."""
    offering: threading.Lock = field(default_factory=threading.Lock)
    """Held while a schedule is judged, which may take seconds of layout; never wanted by one who holds the guard."""

    def __post_init__(self) -> None:
        self.incumbent = Incumbent(self.problem, self.options, until=self.latest)
        self.chosen = formulation(self.options.formulation)
        self.gap = self.options.gap
        self.until = self.latest
        self.problem_space = ProblemSpace(
            self.problem,
            aims_at=self.incumbent.room_bytes,
            paging=self.options.paging,
            remat=self.options.remat,
            weigh=lambda schedule: self.incumbent.weigh(schedule),
        )

    @property
    def latest(self) -> float:
        """The moment at which searching ends: what is left of the time limit is for the plan's transfers and layout."""
        limit_s = self.options.time_limit_s
        return self.begin + limit_s - min(ENDING_SHARE * limit_s, ENDING_S * len(self.problem.operators) ** 2)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begin

    @property
    def remaining_s(self) -> float:
        """Seconds left for the scope at hand."""
        until = min(self.until, self.soon) if self.closed(NEARLY) else self.until
        return until - time.monotonic()

    def interrupt(self) -> None:
        """Note an interrupt. What solvers left behind still find in their threads changes nothing from here on."""
        if not self.interrupted:
            self.interrupted = True
            self.incumbent = copy.copy(self.incumbent)  # not under the guard, which one of them may hold for long

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
        with self.offering:
            kept = not self.interrupted and self.incumbent.offer(schedule, quick=quick) and not self.interrupted
            if kept:
                with self.guard:
                    self.say(phase)
            return kept

    def separate(self, model: Any, point: PointLike) -> list[Row]:
        """The rows of all blocks that `point` breaks."""
        with self.guard:
            return self.chosen.separate(model, point)

    def raise_bound(self, bound: float, phase: str) -> None:
        with self.guard:
            bound = min(bound, self.ceiling)
            if bound <= self.bound or self.interrupted:
                return
            self.bound = bound
            if self.above is None:
                self.say(phase)
        if self.above is not None:
            self.above.raise_bound(bound, phase)

    def closed(self, gap: float) -> bool:
        """Whether the incumbent is proven to within `gap` in the present scope."""
        overhead = self.incumbent.value
        return overhead is not None and overhead - self.bound <= gap * overhead
