"""Common parts of fronts: points along one limit (RAM or time), refined where the front bends.

More of the limit never costs energy. So between two points the least overhead lies between the bound of the right one
and the overhead of the left one; the front is refined where that rectangle is largest, in the middle of it. What is
known of one point is used for the others: a plan keeps every larger limit, and a bound holds for every smaller one (in
the same space, or a smaller one).
"""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.rows import status_of
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import schedule_of
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.run import outdone
from poetopt.search.solution import Options, Solution, share_open
from poetopt.util.figures import Figures

OPEN_GAP = 0.1
"""Points with a larger overhead gap are solved again, for longer, where time is left."""
SHARPEN_SHARE = 0.25
"""Share of the time that is kept for that."""
FIRST_S, FIRST_SHARE = 6.0, 0.3
"""Seconds for one solve in the search of the smallest limit, and the most of what a point may take."""
LEAST_SHARE = 0.5
"""Share of the time that this search may take."""
CLOSE = 2e-3
"""It ends where the smallest limit is known to this part of itself."""
LEAST_S = 0.1
"""No solve is given less."""
LEAST_STEPS = 12
"""Limits tried in that search, beyond the lower bound itself."""


@dataclass(frozen=True, kw_only=True)
class FrontPoint(Figures):
    """A RAM budget, a deadline (None: there is none) and the best plan within both.

    overhead_bound_j, scope_bound_j
        No schedule has less overhead, and none in the scope.
    beyond_scope
        Whether the plan is better than anything in the scope, so that it lies outside.
    """

    ram_budget_bytes: int
    deadline_s: float | None
    plan: Plan = field(repr=False)
    status: str
    scope: str
    energy_j: float
    overhead_j: float
    overhead_bound_j: float
    overhead_gap: float
    scope_bound_j: float
    scope_gap: float
    peak_bytes: int
    makespan_s: float
    recomputes: int
    page_ins: int
    page_outs: int
    solve_s: float
    beyond_scope: bool = False
    omitted = ("plan",)


Told = Callable[[float, str], None]
"""Told the limit at hand (bytes or seconds; infinity: none), and what for."""


@dataclass
class Refiner(ABC):
    """Points found so far, by their limit."""

    problem: Problem
    settings: Settings
    told: Told
    time_limit_s: float
    points: dict[float, FrontPoint] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)
    unit: ClassVar[float] = 0.0
    """Limits are told apart by this, at least."""

    @abstractmethod
    def options(self, limit: float, settings: Settings) -> Options:
        """The engine's options at a limit."""

    @abstractmethod
    def placed(self, point: FrontPoint, limit: float) -> FrontPoint:
        """The point's plan at another limit."""

    @abstractmethod
    def middle(self, left: float, right: float) -> float | None:
        """Between two limits, or None where they are too close to tell apart."""

    @property
    def ordered(self) -> tuple[FrontPoint, ...]:
        """By ascending limit."""
        return tuple(self.points[limit] for limit in sorted(self.points))

    @property
    def first_s(self) -> float:
        """Seconds for one solve in the search of the smallest limit."""
        return min(FIRST_S, FIRST_SHARE * self.settings.time_limit_s)

    @property
    def left_s(self) -> float:
        """Seconds until the time is up, for all solves together."""
        return self.time_limit_s - (time.monotonic() - self.begin)

    def bisect(self, low: float, high: float, fits: Callable[[float], bool]) -> float:
        """The smallest limit between with a schedule, as one is known at `high`: but for CLOSE, and within the time."""
        for _ in range(LEAST_STEPS):
            if high - low <= max(self.unit, CLOSE * high) or self.left_s < (1 - LEAST_SHARE) * self.time_limit_s:
                break
            middle = (low + high) / 2
            if fits(middle):
                high = min(self.points)
            else:
                low = middle
        return high

    def refine(self, points: int) -> None:
        """Solve until there are so many points, or none is worth it, or the time is up; then sharpen.

        The search of the ends, and plans that keep more than was asked, may have left more points than that.
        """
        while len(self.points) < points and self.left_s > SHARPEN_SHARE * self.time_limit_s:
            limit = self._widest()
            if limit is None:
                break
            self.solve(limit, "refine")
        self.settle()
        self._thin(points)
        self._sharpen()
        self._thin(points)

    def solve(self, limit: float, why: str, time_limit_s: float = math.inf) -> Solution:
        """Solve at one limit, within what is left of the time, and keep its point where there is a plan."""
        self.told(limit, why)
        limit_s = min(time_limit_s, self.settings.time_limit_s, max(LEAST_S, self.left_s))
        settings = replace(self.settings, time_limit_s=limit_s)
        solution = solve_whole(self.problem, self.options(limit, settings), starts=self._starts(limit), helped=False)
        if solution.plan is not None and solution.simulation is not None:
            point = self._point(limit, solution)
            before = self.points.get(limit)
            if before is None or point.overhead_gap <= before.overhead_gap:
                self.points[limit] = point
        return solution

    def settle(self) -> None:
        """Carry plans to larger limits and bounds to smaller ones."""
        ordered = sorted(self.points)
        for smaller, larger in itertools.pairwise(ordered):
            left, right = self.points[smaller], self.points[larger]
            if left.overhead_j < right.overhead_j:
                self.points[larger] = self._with(
                    replace(
                        self.placed(left, larger), scope=right.scope, overhead_bound_j=right.overhead_bound_j,
                        scope_bound_j=right.scope_bound_j, solve_s=right.solve_s, beyond_scope=False,
                    )
                )  # fmt: skip
        for smaller, larger in reversed(list(itertools.pairwise(ordered))):
            left, right = self.points[smaller], self.points[larger]
            of_scope = right.scope_bound_j if _wider(right.scope, left.scope) else 0.0
            bounds = max(left.overhead_bound_j, right.overhead_bound_j), max(left.scope_bound_j, of_scope)
            self.points[smaller] = self._with(replace(left, overhead_bound_j=bounds[0], scope_bound_j=bounds[1]))

    def _widest(self) -> float | None:
        """The middle of the largest rectangle that the front may lie in; None where none is left."""
        best, found = 0.0, None
        for left, right in itertools.pairwise(sorted(self.points)):
            middle = self.middle(left, right)
            area = 0.0 if middle is None else self._area(left, right)
            if area > best:
                best, found = area, middle
        return found

    def _area(self, left: float, right: float) -> float:
        """Of the rectangle between two points that the front may lie in."""
        scale = max(point.overhead_j for point in self.points.values()) or 1.0
        upper, lower = self.points[left].overhead_j, self.points[right].overhead_bound_j
        # In logarithms as well, so that the small overheads at the right end are seen.
        floor = max(lower, 1e-3 * scale)
        fall = (upper - lower) / scale + 0.1 * math.log(max(upper, floor) / floor)
        return (right - left) * fall

    def _thin(self, points: int) -> None:
        """Leave out points until there are so many: none of the ends, and those that tell least come first."""
        while len(self.points) > max(points, 2):
            ordered = sorted(self.points)
            inner = zip(ordered, ordered[1:], ordered[2:], strict=False)
            _, least = min((self._area(before, after), limit) for before, limit, after in inner)
            del self.points[least]

    def _sharpen(self) -> None:
        """Solve the points that are open by more than OPEN_GAP again, each once, the widest first."""
        tried: set[float] = set()
        while True:
            left = self.left_s
            able = {
                limit: point
                for limit, point in self.points.items()
                if point.overhead_gap > OPEN_GAP and limit not in tried
            }
            if not able or left < FIRST_S:
                return
            widest = max(able, key=lambda limit: (able[limit].overhead_gap, -limit))
            tried.add(widest)
            self.solve(widest, "sharpen", left / len(able))
            self.settle()

    def _starts(self, limit: float) -> tuple[Schedule, ...]:
        """The plans of smaller limits, the nearest last."""
        return tuple(schedule_of(self.points[other].plan) for other in sorted(self.points) if other <= limit)[-2:]

    def _point(self, limit: float, solution: Solution) -> FrontPoint:
        simulation, plan = solution.simulation, solution.plan
        assert simulation is not None
        assert plan is not None
        bound, of_scope = solution.overhead_bound_j or 0.0, solution.scope_bound_j or 0.0
        status, gap = status_of(simulation.overhead_j, bound, self.settings.gap)
        found = FrontPoint(
            ram_budget_bytes=solution.options.ram_bytes,
            deadline_s=solution.options.deadline_s,
            plan=plan,
            status=status,
            scope=solution.scope,
            energy_j=simulation.energy_j,
            overhead_j=simulation.overhead_j,
            overhead_bound_j=bound,
            overhead_gap=gap,
            scope_bound_j=of_scope,
            scope_gap=share_open(simulation.overhead_j, of_scope),
            peak_bytes=simulation.peak_bytes,
            makespan_s=simulation.makespan_s,
            recomputes=simulation.recomputes,
            page_ins=simulation.page_ins,
            page_outs=simulation.page_outs,
            solve_s=solution.total_s,
            beyond_scope=solution.outdone,
        )
        return self.placed(found, limit)

    def _with(self, point: FrontPoint) -> FrontPoint:
        """The point with its bound no higher than its plan, and status and gap to match."""
        bound = min(point.overhead_bound_j, point.overhead_j)
        status, gap = status_of(point.overhead_j, bound, self.settings.gap)
        of_scope = min(max(point.scope_bound_j, bound), point.overhead_j)
        return replace(
            point,
            overhead_bound_j=bound,
            status=status,
            overhead_gap=gap,
            scope_bound_j=of_scope,
            scope_gap=share_open(point.overhead_j, of_scope),
            beyond_scope=point.beyond_scope or outdone(point.overhead_j, point.scope_bound_j),
        )


def _wider(scope: str, other: str) -> bool:
    """Tell whether what holds for all schedules of `scope` holds for those of `other`."""
    rank = {"full": math.inf, "forward": 1e9, "store-all": math.inf}

    def depth(name: str) -> float:
        return rank.get(name, float(name.removeprefix("depth<=")) if name.startswith("depth<=") else -1.0)

    return depth(scope) >= depth(other)
