"""The front of least energy against RAM, refined where it bends, with the bound below each point.

Between two budgets the least overhead lies between the bound of the right point and the energy of the left one: it
never rises with the RAM. The front is refined where that rectangle is largest, in the middle of it, until enough
points are there or the time is up. What is known of one point is used for the others: a plan fits every larger
budget, and a bound holds for every smaller one (in the same space, or a smaller one).

The left end is the smallest budget with a schedule. That it is smallest is proven where it equals the largest
working set of an operator, which no schedule can do without; else both are stated.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from poetopt.baselines.acceptance import Settings
from poetopt.baselines.poet import options
from poetopt.comparison.rows import status_of
from poetopt.engine.least import least_ram
from poetopt.engine.loop import solve
from poetopt.errors import InfeasibleError
from poetopt.plan.assemble import schedule_of
from poetopt.plan.instructions import Plan
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem
from poetopt.schedule import Schedule

OPEN_GAP = 0.1
"""Points with a larger overhead gap are solved again, for longer, where time is left."""
SHARPEN_SHARE = 0.25
"""Share of the time that is kept for that."""
FIRST_S = 6.0
"""Seconds for one budget in the search of the smallest."""
LEAST_STEPS = 6
"""Budgets tried in that search, beyond the lower bound itself."""

Told = Callable[[int, str], None]
"""Told the budget at hand, and what for."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A budget and the best plan at it.

    overhead_bound_j, scope
        No schedule in the scope has less overhead.
    """

    ram_budget_bytes: int
    plan: Plan = field(repr=False)
    status: str
    scope: str
    energy_j: float
    overhead_j: float
    overhead_bound_j: float
    overhead_gap: float
    peak_bytes: int
    makespan_s: float
    recomputes: int
    page_ins: int
    page_outs: int
    solve_s: float

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        keys = (
            "ram_budget_bytes", "status", "scope", "energy_j", "overhead_j", "overhead_bound_j", "overhead_gap",
            "peak_bytes", "makespan_s", "recomputes", "page_ins", "page_outs", "solve_s",
        )  # fmt: skip
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True, kw_only=True)
class Front:
    """Points by ascending budget; the last is store-all.

    ram_bound_bytes
        No schedule has less: the largest working set.
    least_ram_bytes
        The smallest budget for which a schedule is known; proven smallest where it equals `ram_bound_bytes`.
    """

    problem: Problem
    points: tuple[Point, ...]
    ram_bound_bytes: int
    least_ram_bytes: int
    store_all_peak_bytes: int
    deadline_s: float | None
    total_s: float

    @property
    def least_is_proven(self) -> bool:
        """Whether no schedule has less RAM than the first point."""
        return self.least_ram_bytes == self.ram_bound_bytes

    def to_dict(self) -> dict[str, object]:
        """The object of `poetopt pareto --json`."""
        from poetopt import __version__

        problem = self.problem
        return {
            "model": problem.name,
            "device": problem.device,
            "operators": len(problem.operators),
            "tensors": len(problem.tensors),
            "store_all_peak_bytes": self.store_all_peak_bytes,
            "baseline_energy_j": problem.baseline_energy_j,
            "baseline_time_s": problem.baseline_time_s,
            "deadline_s": self.deadline_s,
            "least_ram_bytes": self.least_ram_bytes,
            "ram_bound_bytes": self.ram_bound_bytes,
            "least_ram_proven": self.least_is_proven,
            "points": [point.to_dict() for point in self.points],
            "total_s": self.total_s,
            "version": __version__,
        }


def pareto(
    problem: Problem,
    *,
    points: int = 14,
    settings: Settings | None = None,
    time_limit_s: float = 240.0,
    told: Told | None = None,
) -> Front:
    """The front of a problem.

    points
        At most so many budgets.
    settings
        Deadline; time limit and gap of one solve.
    time_limit_s
        After that no new budget is taken up.

    Raises InfeasibleError where not even store-all keeps the deadline and nothing else does.
    """
    run = _Run(problem, settings or Settings(time_limit_s=20.0, gap=0.02), told or (lambda _ram, _why: None))
    run.least()
    run.store_all()
    if not run.points:
        raise InfeasibleError(
            f"{problem.name} on {problem.device}: no schedule keeps the deadline of {run.settings.deadline_s or 0:.6g} "
            f"s at any budget (one pass takes {problem.baseline_time_s:.6g} s); give a longer --deadline",
            report={"model": problem.name, "device": problem.device, "status": "infeasible", "points": []},
        )
    while len(run.points) < points and time.monotonic() - run.begin < (1 - SHARPEN_SHARE) * time_limit_s:
        ram_bytes = run.widest()
        if ram_bytes is None:
            break
        run.solve(ram_bytes, "refine")
    run.settle()
    run.sharpen(time_limit_s)
    ordered = tuple(run.points[ram] for ram in sorted(run.points))
    return Front(
        problem=problem,
        points=ordered,
        ram_bound_bytes=problem.least_ram_bytes,
        least_ram_bytes=ordered[0].ram_budget_bytes,
        store_all_peak_bytes=run.store_all_bytes,
        deadline_s=run.settings.deadline_s,
        total_s=time.monotonic() - run.begin,
    )


@dataclass
class _Run:
    problem: Problem
    settings: Settings
    told: Told
    points: dict[int, Point] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.store_all_bytes = store_all_bytes(self.problem)

    def least(self) -> None:
        """The smallest budget: the lower bound itself, or what bisection with short solves comes down to."""
        low = self.problem.least_ram_bytes
        high = least_ram(self.problem, options(self.store_all_bytes, self.settings))
        if self.solve(low, "the smallest budget", FIRST_S):
            return
        high = self.store_all_bytes if high is None else high
        for _ in range(LEAST_STEPS):
            middle = (low + high) // 2
            if high - low <= max(1, high // 500):
                break
            if self.solve(middle, "the smallest budget", FIRST_S):
                high = middle
            else:
                low = middle
        if not self.points:
            self.solve(high, "the smallest budget")

    def store_all(self) -> None:
        """The right end of the front."""
        self.solve(self.store_all_bytes, "store-all")

    def widest(self) -> int | None:
        """The middle of the largest rectangle that the front may lie in; None where none is left."""
        ordered = [self.points[ram] for ram in sorted(self.points)]
        best, found = 0.0, None
        scale = max(point.overhead_j for point in ordered) or 1.0
        for left, right in itertools.pairwise(ordered):
            width = right.ram_budget_bytes - left.ram_budget_bytes
            if width < max(2, self.store_all_bytes // 200):
                continue
            # In logarithms as well, so that the small overheads near store-all are seen.
            fall = (left.overhead_j - right.overhead_bound_j) / scale
            floor = max(right.overhead_bound_j, 1e-3 * scale)
            fall += 0.1 * math.log(max(left.overhead_j, floor) / floor)
            if width * fall > best:
                best, found = width * fall, (left.ram_budget_bytes + right.ram_budget_bytes) // 2
        return found

    def solve(self, ram_bytes: int, why: str, time_limit_s: float | None = None) -> bool:
        """Solve one budget; whether there is a plan."""
        self.told(ram_bytes, why)
        settings = self.settings
        if time_limit_s is not None:
            settings = replace(settings, time_limit_s=time_limit_s)
        solution = solve(self.problem, options(ram_bytes, settings), starts=self._starts(ram_bytes))
        if solution.plan is None or solution.simulation is None:
            return False
        bound = solution.overhead_bound_j or 0.0
        status, gap = status_of(solution.simulation.overhead_j, bound, self.settings.gap)
        before = self.points.get(ram_bytes)
        if before is not None and gap > before.overhead_gap:
            return True
        self.points[ram_bytes] = Point(
            ram_budget_bytes=ram_bytes,
            plan=solution.plan,
            status=status,
            scope=solution.scope,
            energy_j=solution.simulation.energy_j,
            overhead_j=solution.simulation.overhead_j,
            overhead_bound_j=bound,
            overhead_gap=gap,
            peak_bytes=solution.simulation.peak_bytes,
            makespan_s=solution.simulation.makespan_s,
            recomputes=solution.simulation.recomputes,
            page_ins=solution.simulation.page_ins,
            page_outs=solution.simulation.page_outs,
            solve_s=solution.total_s,
        )
        return True

    def sharpen(self, time_limit_s: float) -> None:
        """Solve the points that are open by more than OPEN_GAP again, each once, the widest first."""
        tried: set[int] = set()
        while True:
            left = time_limit_s - (time.monotonic() - self.begin)
            able = [point for ram, point in self.points.items() if point.overhead_gap > OPEN_GAP and ram not in tried]
            if not able or left < FIRST_S:
                return
            widest = max(able, key=lambda point: (point.overhead_gap, -point.ram_budget_bytes))
            tried.add(widest.ram_budget_bytes)
            self.solve(widest.ram_budget_bytes, "sharpen", left / len(able))
            self.settle()

    def _starts(self, ram_bytes: int) -> tuple[Schedule, ...]:
        """The plans of smaller budgets, the nearest last."""
        return tuple(schedule_of(self.points[ram].plan) for ram in sorted(self.points) if ram <= ram_bytes)[-2:]

    def settle(self) -> None:
        """Carry plans to larger budgets and bounds to smaller ones."""
        ordered = sorted(self.points)
        for smaller, larger in itertools.pairwise(ordered):
            left, right = self.points[smaller], self.points[larger]
            if left.overhead_j < right.overhead_j:
                self.points[larger] = self._with(
                    replace(
                        left, ram_budget_bytes=larger, scope=right.scope, overhead_bound_j=right.overhead_bound_j,
                        solve_s=right.solve_s,
                    )
                )  # fmt: skip
        for smaller, larger in reversed(list(itertools.pairwise(ordered))):
            left, right = self.points[smaller], self.points[larger]
            if right.overhead_bound_j > left.overhead_bound_j and _wider(right.scope, left.scope):
                self.points[smaller] = self._with(replace(left, overhead_bound_j=right.overhead_bound_j))

    def _with(self, point: Point) -> Point:
        """The point with its bound no higher than its plan, and status and gap to match."""
        bound = min(point.overhead_bound_j, point.overhead_j)
        status, gap = status_of(point.overhead_j, bound, self.settings.gap)
        return replace(point, overhead_bound_j=bound, status=status, overhead_gap=gap)


def _wider(scope: str, other: str) -> bool:
    """Whether what holds for all schedules of `scope` holds for those of `other`."""
    rank = {"full": math.inf, "forward": 1e9, "store-all": math.inf}

    def depth(name: str) -> float:
        return rank.get(name, float(name.removeprefix("depth<=")) if name.startswith("depth<=") else -1.0)

    return depth(scope) >= depth(other)
