"""Pareto front of least energy against RAM, with a lower bound for each point.

The left end is the smallest budget with a schedule. It is proven smallest if it equals the largest working set of an
operator, which every schedule needs; else both are reported. The right end is store-all.

More RAM never costs energy. So between two points the least overhead lies between the bound of the right one and the
overhead of the left one; the front is refined in the middle of the largest such rectangle. Points share their
knowledge: a plan keeps every larger budget, and a bound holds for every smaller one in the same space, or in a smaller
one.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.baselines.poet import options
from poetopt.comparison.rows import about, bounded, simulated
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import schedule_of, store_all_bytes
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule
from poetopt.search.diagnosis.minimum_budget import least_ram
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import Solution
from poetopt.util import __version__
from poetopt.util.errors import InfeasibleError
from poetopt.util.figures import Figures, figures
from poetopt.util.units import show_limit

OPEN_GAP = 0.1
"""Points with a larger overhead gap are solved again, for longer, if time is left."""
FIRST_S, FIRST_SHARE = 6.0, 0.3
"""Limit of one solve in the search for the smallest budget: seconds, and share of the limit of a point."""


@dataclass(frozen=True, kw_only=True)
class FrontPoint(Figures):
    """Best plan within a RAM budget and a deadline (None: no deadline).

    Attributes
    ----------
    overhead_bound_j, scope_bound_j
        Lower bound of the overhead of any schedule, and of any schedule in the scope.
    beyond_scope
        Whether the plan lies outside of the scope, because it is better than any plan in it.
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
    bytes_paged: int
    solve_s: float
    beyond_scope: bool = False
    omitted = ("plan",)


Told = Callable[[int, str], None]
"""Called with the current budget and the purpose."""


@dataclass(frozen=True, kw_only=True)
class Front:
    """Points by ascending budget; the last is store-all.

    Attributes
    ----------
    ram_bound_bytes
        Lower bound of any schedule's RAM: the largest working set.
    least_ram_bytes
        Smallest budget with a known schedule; proven smallest if it equals `ram_bound_bytes`.
    """

    problem: Problem
    points: tuple[FrontPoint, ...]
    ram_bound_bytes: int
    least_ram_bytes: int
    store_all_peak_bytes: int
    deadline_s: float | None
    total_s: float

    def __repr__(self) -> str:
        return f"<Front of {len(self.points)} points against RAM: {self.problem!r}>"

    @property
    def least_is_proven(self) -> bool:
        """Return whether no schedule has less RAM than the first point."""
        return self.least_ram_bytes == self.ram_bound_bytes

    def to_dict(self) -> dict[str, object]:
        """Return the object of `poetopt pareto --json`."""
        return {
            **about(self.problem, self.store_all_peak_bytes),
            **figures(self, ("deadline_s", "least_ram_bytes", "ram_bound_bytes", "points", "total_s")),
            "least_ram_proven": self.least_is_proven,
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
    """Compute the front of a problem.

    Parameters
    ----------
    points
        Maximum number of budgets.
    settings
        Deadline; time limit and gap of one solve.
    time_limit_s
        Limit after which no further budget is solved.

    Raises
    ------
    InfeasibleError
        If no schedule keeps the deadline, not even store-all.
    """
    point_settings = settings or Settings(time_limit_s=20.0, gap=0.02)
    run = _Refiner(problem, point_settings, told or (lambda _ram, _why: None), time_limit_s)
    run.least()
    run.store_all()
    if not run.points:
        raise InfeasibleError(
            f"{problem.name} on {problem.device}: no schedule keeps the deadline of {run.settings.deadline_s or 0:.6g} "
            f"s at any budget (one pass takes {show_limit(problem.baseline_time_s, 's')}). Give a longer --deadline.",
            report={"model": problem.name, "device": problem.device, "status": "infeasible", "points": []},
        )
    run.refine(points)
    return Front(
        problem=problem,
        points=run.ordered,
        ram_bound_bytes=problem.least_ram_bytes,
        least_ram_bytes=run.ordered[0].ram_budget_bytes,
        store_all_peak_bytes=run.most_bytes,
        deadline_s=run.settings.deadline_s,
        total_s=time.monotonic() - run.begin,
    )


@dataclass
class _Refiner:
    """Points so far, by their budget."""

    problem: Problem
    settings: Settings
    told: Told
    time_limit_s: float
    points: dict[int, FrontPoint] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.most_bytes = store_all_bytes(self.problem)

    @property
    def ordered(self) -> tuple[FrontPoint, ...]:
        """Points by ascending budget."""
        return tuple(self.points[ram] for ram in sorted(self.points))

    @property
    def first_s(self) -> float:
        """Seconds for one solve in the search for the smallest budget."""
        return min(FIRST_S, FIRST_SHARE * self.settings.time_limit_s)

    @property
    def left_s(self) -> float:
        """Seconds until the time limit, for all solves together."""
        return self.time_limit_s - (time.monotonic() - self.begin)

    def least(self) -> None:
        """Find the smallest budget: the lower bound itself, or the result of a bisection with short solves."""
        low, known_least = (
            self.problem.least_ram_bytes,
            least_ram(self.problem, options(self.most_bytes, self.settings)),
        )
        high = self.most_bytes if known_least is None else known_least
        if self.solve(low, "the smallest budget", self.first_s).plan is not None:
            return
        # Bisection ends after 12 budgets, half of the time, or at an accuracy of 0.2 %.
        for _ in range(12):
            if high - low <= max(1, 2e-3 * high) or self.left_s < 0.5 * self.time_limit_s:
                break
            middle = (low + high) // 2
            if self.solve(middle, "the smallest budget", self.first_s).plan is None:
                low = middle
            else:
                high = min(self.points)
        if not self.points:
            self.solve(high, "the smallest budget")

    def store_all(self) -> None:
        """Solve the right end of the front."""
        self.solve(self.most_bytes, "store-all")

    def refine(self, points: int) -> None:
        """Solve until there are `points` points, none is worth it, or the time is up; then sharpen.

        The search for the ends, and plans that keep smaller budgets, may have left more points than that.
        """
        # A quarter of the time is reserved for sharpening.
        while len(self.points) < points and self.left_s > 0.25 * self.time_limit_s:
            limit = self._widest()
            if limit is None:
                break
            self.solve(limit, "refine")
        self.settle()
        self._thin(points)
        self._sharpen()
        self._thin(points)

    def solve(self, ram_bytes: int, why: str, time_limit_s: float = math.inf) -> Solution:
        """Solve at one budget within the remaining time; keep its point if there is a plan."""
        self.told(ram_bytes, why)
        # Every solve gets at least 0.1 s.
        limit_s = min(time_limit_s, self.settings.time_limit_s, max(0.1, self.left_s))
        settings = replace(self.settings, time_limit_s=limit_s)
        solution = solve_whole(self.problem, options(ram_bytes, settings), starts=self._starts(ram_bytes), helped=False)
        if solution.plan is not None and solution.simulation is not None:
            point = self._front_point(ram_bytes, solution)
            before = self.points.get(ram_bytes)
            if before is None or point.overhead_gap <= before.overhead_gap:
                self.points[ram_bytes] = point
        return solution

    def settle(self) -> None:
        """Copy plans to larger budgets and bounds to smaller ones."""
        ordered = sorted(self.points)
        for smaller, larger in itertools.pairwise(ordered):
            left, right = self.points[smaller], self.points[larger]
            if left.overhead_j < right.overhead_j:
                self.points[larger] = self._with_consistent_bounds(
                    replace(
                        left, ram_budget_bytes=larger, scope=right.scope, overhead_bound_j=right.overhead_bound_j,
                        scope_bound_j=right.scope_bound_j, solve_s=right.solve_s, beyond_scope=False,
                    )
                )  # fmt: skip
        for smaller, larger in reversed(list(itertools.pairwise(ordered))):
            left, right = self.points[smaller], self.points[larger]
            scope_bound = right.scope_bound_j if _is_wider(right.scope, left.scope) else 0.0
            bounds = max(left.overhead_bound_j, right.overhead_bound_j), max(left.scope_bound_j, scope_bound)
            self.points[smaller] = self._with_consistent_bounds(
                replace(left, overhead_bound_j=bounds[0], scope_bound_j=bounds[1])
            )

    def _widest(self) -> int | None:
        """Return the middle of the largest rectangle that the front may lie in, or None."""
        min_distance = max(2, self.most_bytes // 200)
        pairs = [pair for pair in itertools.pairwise(sorted(self.points)) if pair[1] - pair[0] >= min_distance]
        left, right = max(pairs, key=lambda pair: self._area(*pair), default=(0, 0))
        return (left + right) // 2 if right and self._area(left, right) > 0 else None

    def _area(self, left: int, right: int) -> float:
        """Return the area of the rectangle between two points that the front may lie in."""
        scale = max(point.overhead_j for point in self.points.values()) or 1.0
        upper, lower = self.points[left].overhead_j, self.points[right].overhead_bound_j
        # The logarithm gives weight to small overheads at the right end.
        floor = max(lower, 1e-3 * scale)
        fall = (upper - lower) / scale + 0.1 * math.log(max(upper, floor) / floor)
        return (right - left) * fall

    def _thin(self, points: int) -> None:
        """Remove inner points, the least informative first, until `points` are left."""
        while len(self.points) > max(points, 2):
            ordered = sorted(self.points)
            triples = zip(ordered, ordered[1:], ordered[2:], strict=False)
            _, least_informative = min((self._area(before, after), limit) for before, limit, after in triples)
            del self.points[least_informative]

    def _sharpen(self) -> None:
        """Solve the points with a gap above OPEN_GAP again, each once, the largest gap first."""
        solved: set[int] = set()
        while True:
            left_s = self.left_s
            open_points = {
                limit: point
                for limit, point in self.points.items()
                if point.overhead_gap > OPEN_GAP and limit not in solved
            }
            if not open_points or left_s < FIRST_S:
                return
            widest = max(open_points, key=lambda limit: (open_points[limit].overhead_gap, -limit))
            solved.add(widest)
            self.solve(widest, "sharpen", left_s / len(open_points))
            self.settle()

    def _starts(self, ram_bytes: int) -> tuple[Schedule, ...]:
        """Return the plans of the two nearest smaller budgets, the nearest last."""
        return tuple(schedule_of(self.points[other].plan) for other in sorted(self.points) if other <= ram_bytes)[-2:]

    def _front_point(self, ram_bytes: int, solution: Solution) -> FrontPoint:
        simulation, plan = solution.simulation, solution.plan
        assert simulation is not None
        assert plan is not None
        bounds = solution.overhead_bound_j or 0.0, solution.scope_bound_j or 0.0
        bound_figures = bounded(simulation.overhead_j, *bounds, self.settings.gap)
        return FrontPoint(
            ram_budget_bytes=ram_bytes,
            deadline_s=solution.options.deadline_s,
            plan=plan,
            scope=solution.scope,
            solve_s=solution.total_s,
            **{**bound_figures, "beyond_scope": solution.outdone},
            **simulated(simulation),
        )

    def _with_consistent_bounds(self, point: FrontPoint) -> FrontPoint:
        """Return the point with bounds no higher than its plan, and status and gaps to match."""
        bound_figures = bounded(point.overhead_j, point.overhead_bound_j, point.scope_bound_j, self.settings.gap)
        return replace(point, **{**bound_figures, "beyond_scope": point.beyond_scope or bound_figures["beyond_scope"]})


def _is_wider(scope: str, other: str) -> bool:
    """Return whether a bound for all schedules of `scope` holds for those of `other`."""
    rank = {"full": math.inf, "forward": 1e9, "store-all": math.inf}

    def depth(name: str) -> float:
        return rank.get(name, float(name.removeprefix("depth<=")) if name.startswith("depth<=") else -1.0)

    return depth(scope) >= depth(other)
