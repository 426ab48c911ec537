"""The front of least energy against RAM, with the bound below each point.

The left end is the smallest budget with a schedule. That it is smallest is proven where it equals the largest
working set of an operator, which no schedule can do without; else both are stated. The right end is store-all.

The front of least energy against the deadline, at one RAM budget, with the bound below each point.

The right end is the deadline from which on more time saves nothing: the makespan of the best plan without one. The
left end is the shortest deadline for which a schedule was found. That it is shortest is proven where it is one pass, or
where every shorter one is proven to have no schedule; else what is proven is stated, with the space that it holds in.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.baselines.poet import options
from poetopt.comparison.refine import CLOSE, FrontPoint, Refiner, Told
from poetopt.comparison.rows import about
from poetopt.graph.problem import Problem
from poetopt.plan.storeall import store_all_bytes
from poetopt.search.diagnosis.minimum_budget import least_deadline, least_ram
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import Options, Solution, Status
from poetopt.util.errors import InfeasibleError, NoScheduleError
from poetopt.util.figures import figures
from poetopt.util.units import show_limit
from poetopt.util.version import __version__

ROUNDED_UP = 1 + 1e-9
"""A makespan is a sum of floats: the deadline that it is made into may not be a hair shorter."""


@dataclass(frozen=True, kw_only=True)
class DeadlineFront:
    """Points by ascending deadline, all at one budget; after the last, more time saves nothing.

    least_deadline_s
        The shortest deadline for which a schedule is known.
    deadline_bound_s, bound_scope
        No schedule of that scope keeps a shorter one; `all` of a bound that holds for every schedule (one pass).
    """

    problem: Problem
    points: tuple[FrontPoint, ...]
    ram_budget_bytes: int
    store_all_peak_bytes: int
    least_deadline_s: float
    deadline_bound_s: float
    bound_scope: str
    total_s: float

    def __repr__(self) -> str:
        return f"<DeadlineFront of {len(self.points)} points: {self.problem!r}>"

    @property
    def least_is_proven(self) -> bool:
        """Tell whether no schedule of `bound_scope` is quicker, but for the resolution of the search."""
        return self.least_deadline_s - self.deadline_bound_s <= CLOSE * self.least_deadline_s

    def to_dict(self) -> dict[str, object]:
        """The object of `poetopt pareto --against deadline --json`."""
        return {
            **about(self.problem, self.store_all_peak_bytes),
            **figures(self, ("ram_budget_bytes", "least_deadline_s", "deadline_bound_s", "points", "total_s")),
            "deadline_bound_scope": self.bound_scope,
            "least_deadline_proven": self.least_is_proven,
            "version": __version__,
        }


def deadline_front(
    problem: Problem,
    ram_bytes: int,
    *,
    points: int = 14,
    settings: Settings | None = None,
    time_limit_s: float = 240.0,
    told: Told | None = None,
) -> DeadlineFront:
    """The front of a problem at a budget.

    points
        At most this many deadlines.
    settings
        Time limit and gap of one solve; its deadline is not looked at.
    time_limit_s
        After that no new deadline is taken up.

    Raises InfeasibleError or NoScheduleError where there is no schedule at the budget, at any deadline.
    """
    asked = settings or Settings(time_limit_s=20.0, gap=0.02)
    run = _Deadlines(problem, asked, told or (lambda _deadline, _why: None), time_limit_s, ram_bytes=ram_bytes)
    run.unhurried()
    run.least()
    run.refine(points)
    return DeadlineFront(
        problem=problem,
        points=run.ordered,
        ram_budget_bytes=ram_bytes,
        store_all_peak_bytes=store_all_bytes(problem),
        least_deadline_s=min(run.points),
        deadline_bound_s=run.low_s,
        bound_scope=run.low_scope,
        total_s=time.monotonic() - run.begin,
    )


@dataclass
class _Deadlines(Refiner):
    """Limits are deadlines in seconds."""

    ram_bytes: int = 0

    def __post_init__(self) -> None:
        self.low_s, self.low_scope = self.problem.baseline_time_s, "all"
        self.most_s = 0.0

    def options(self, limit: float, settings: Settings) -> Options:
        return options(self.ram_bytes, replace(settings, deadline_s=limit))

    def placed(self, point: FrontPoint, limit: float) -> FrontPoint:
        return replace(point, deadline_s=limit)

    def middle(self, left: float, right: float) -> float | None:
        return None if right - left < 0.01 * (self.most_s - self.low_s) else (left + right) / 2

    def solve(self, limit: float, why: str, time_limit_s: float = math.inf) -> Solution:
        """As at any limit; a plan that is quicker than asked is also the point at its own makespan."""
        solution = super().solve(limit, why, time_limit_s)
        if solution.simulation is not None:
            own_s = solution.simulation.makespan_s * ROUNDED_UP
            if own_s < limit and self.middle(own_s, limit) is not None:
                point = self._point(own_s, solution)
                before = self.points.get(own_s)
                if before is None or point.overhead_gap < before.overhead_gap:
                    self.points[own_s] = point
        return solution

    def unhurried(self) -> None:
        """The right end: the best plan without a deadline, at its own makespan."""
        self.told(math.inf, "the end")
        solution = solve_whole(self.problem, options(self.ram_bytes, replace(self.settings, deadline_s=None)))
        if solution.simulation is None:
            failure = InfeasibleError if solution.status is Status.INFEASIBLE else NoScheduleError
            raise failure(
                f"{self.problem.name} on {self.problem.device}: {solution.reason}",
                report={
                    "model": self.problem.name,
                    "device": self.problem.device,
                    "status": str(solution.status),
                    "points": [],
                },
            )
        self.most_s = solution.simulation.makespan_s * ROUNDED_UP
        self.points[self.most_s] = self._point(self.most_s, solution)

    def least(self) -> None:
        """The left end: one pass, or what bisection with short solves comes down to."""
        high = self.most_s
        if high <= self.low_s * (1 + CLOSE):
            return
        if self._try(self.low_s * ROUNDED_UP):
            return
        # The quickest that the heuristics know is a better start than the unhurried plan.
        quick_s = least_deadline(self.problem, options(self.ram_bytes, self.settings))
        if quick_s is not None and quick_s * ROUNDED_UP < high and self._try(quick_s * ROUNDED_UP):
            high = min(self.points)
        self.bisect(self.low_s, high, self._try)

    def _try(self, deadline_s: float) -> bool:
        """Tell whether a schedule is found; where none is proven to exist, note so."""
        solution = self.solve(deadline_s, "the shortest deadline", self.first_s)
        if solution.status is Status.INFEASIBLE and deadline_s > self.low_s:
            self.low_s, self.low_scope = deadline_s, solution.scope
        return solution.plan is not None


@dataclass(frozen=True, kw_only=True)
class Front:
    """Points by ascending budget; the last is store-all.

    ram_bound_bytes
        No schedule has less: the largest working set.
    least_ram_bytes
        The smallest budget for which a schedule is known; proven smallest where it equals `ram_bound_bytes`.
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
        """Tell whether no schedule has less RAM than the first point."""
        return self.least_ram_bytes == self.ram_bound_bytes

    def to_dict(self) -> dict[str, object]:
        """The object of `poetopt pareto --json`."""
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
    """The front of a problem.

    points
        At most this many budgets.
    settings
        Deadline; time limit and gap of one solve.
    time_limit_s
        After that no new budget is taken up.

    Raises InfeasibleError where not even store-all keeps the deadline and nothing else does.
    """
    asked = settings or Settings(time_limit_s=20.0, gap=0.02)
    run = _Budgets(problem, asked, told or (lambda _ram, _why: None), time_limit_s)
    run.least()
    run.store_all()
    if not run.points:
        raise InfeasibleError(
            f"{problem.name} on {problem.device}: no schedule keeps the deadline of {run.settings.deadline_s or 0:.6g} "
            f"s at any budget (one pass takes {show_limit(problem.baseline_time_s, 's')}); give a longer --deadline",
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
class _Budgets(Refiner):
    """Limits are RAM budgets in bytes."""

    unit = 1.0

    def __post_init__(self) -> None:
        self.most_bytes = store_all_bytes(self.problem)

    def options(self, limit: float, settings: Settings) -> Options:
        return options(int(limit), settings)

    def placed(self, point: FrontPoint, limit: float) -> FrontPoint:
        return replace(point, ram_budget_bytes=int(limit))

    def middle(self, left: float, right: float) -> float | None:
        return None if right - left < max(2, self.most_bytes // 200) else (int(left) + int(right)) // 2

    def least(self) -> None:
        """The smallest budget: the lower bound itself, or what bisection with short solves comes down to."""
        low = self.problem.least_ram_bytes
        high = least_ram(self.problem, options(self.most_bytes, self.settings))
        if self.solve(low, "the smallest budget", self.first_s).plan is not None:
            return
        high = self.most_bytes if high is None else high

        def fits(limit: float) -> bool:
            return self.solve(int(limit), "the smallest budget", self.first_s).plan is not None

        high = int(self.bisect(low, high, fits))
        if not self.points:
            self.solve(high, "the smallest budget")

    def store_all(self) -> None:
        """The right end of the front."""
        self.solve(self.most_bytes, "store-all")
