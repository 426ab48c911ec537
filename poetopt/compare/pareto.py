"""The front of least energy against RAM, with the bound below each point.

The left end is the smallest budget with a schedule. That it is smallest is proven where it equals the largest
working set of an operator, which no schedule can do without; else both are stated. The right end is store-all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from poetopt.compare.baselines.acceptance import Settings
from poetopt.compare.baselines.poet import options
from poetopt.compare.refine import Point, Refiner, Told
from poetopt.graph.problem import Problem
from poetopt.plan.storeall import store_all_bytes
from poetopt.search.diagnosis.minimum_budget import least_ram
from poetopt.search.solution import Options
from poetopt.util.errors import InfeasibleError
from poetopt.util.units import show_limit
from poetopt.util.version import __version__


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

    def __repr__(self) -> str:
        return f"<Front of {len(self.points)} points against RAM: {self.problem!r}>"

    @property
    def least_is_proven(self) -> bool:
        """Whether no schedule has less RAM than the first point."""
        return self.least_ram_bytes == self.ram_bound_bytes

    def to_dict(self) -> dict[str, object]:
        """The object of `poetopt pareto --json`."""
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

    def placed(self, point: Point, limit: float) -> Point:
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
