"""Options of a solve, and its solution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poetopt.backends.solvers.solver import Backend
    from poetopt.formulations.language import Formulation
    from poetopt.plan.instructions import Plan
    from poetopt.plan.simulate import Simulation

OPTIMAL_GAP = 1e-6
"""Largest `overhead_gap` of a plan that is called optimal."""


class Status(StrEnum):
    """Status of a solution, the best first."""

    OPTIMAL = "optimal"
    WITHIN_GAP = "within-gap"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


def graded(gap: float | None, asked: float) -> Status:
    """Return the status of a plan with this gap (None: nothing is proven), where `asked` is tolerated."""
    if gap is None or gap > max(asked, OPTIMAL_GAP):
        return Status.FEASIBLE
    return Status.OPTIMAL if gap <= OPTIMAL_GAP else Status.WITHIN_GAP


def share_open(value: float, bound: float) -> float:
    """Return (value - bound) / value; 0 if there is nothing to save."""
    return 0.0 if value <= 0 else max(0.0, (value - bound) / value)


class DeadlineModel(StrEnum):
    """Quantity that a deadline limits: the simulated makespan, or the sum of compute times (eq. 3 of the paper)."""

    MAKESPAN = "makespan"
    PAPER = "paper"

    def seconds(self, simulation: Simulation) -> float:
        """Return the seconds of a simulated plan that a deadline limits."""
        return simulation.compute_s if self is DeadlineModel.PAPER else simulation.makespan_s


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of one solve.

    Attributes
    ----------
    ram_bytes
        Budget for everything that is not resident.
    deadline_s
        Limit of the step's time, or None.
    formulation, backend
        Name, or object.
    scope
        `auto`, `depth:D`, `forward` or `full` (only `full` for the formulation `poet`).
    paging, remat
        False leaves the block out.
    gap
        Tolerance on the overhead gap.
    solver_options
        The solver's own options, by its own names.
    log
        File to which the solver's output is appended, or None.
    """

    ram_bytes: int
    deadline_s: float | None = None
    deadline_model: DeadlineModel = DeadlineModel.MAKESPAN
    formulation: str | Formulation = "retention"
    backend: str | Backend = "highs"
    scope: str = "auto"
    paging: bool = True
    remat: bool = True
    time_limit_s: float = 60.0
    gap: float = 1e-3
    threads: int = 0
    solver_options: Mapping[str, str] = field(default_factory=dict)
    log: str | None = None

    @property
    def backend_name(self) -> str:
        """Name of the backend in results."""
        return self.backend if isinstance(self.backend, str) else self.backend.name

    @property
    def formulation_name(self) -> str:
        """Name of the formulation in results."""
        return self.formulation if isinstance(self.formulation, str) else self.formulation.name

    @property
    def asks(self) -> tuple[str, ...]:
        """Requirements of blocks beside the budget and the deadline, in words."""
        if isinstance(self.formulation, str):
            return ()
        return tuple(block.says for block in self.formulation.blocks if block.says)


RAM = "RAM"
"""Name of the objective that is the budget in bytes (`--minimize ram`)."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Quantity that was minimised instead of the simulator's energy; figures in `unit`.

    Attributes
    ----------
    baseline
        Value of one run of each operator.
    value
        Value of the plan above the baseline; None: not known.
    bound
        Proven bound on the value of all schedules above the baseline; None: not known.
    """

    name: str
    unit: str
    baseline: float
    value: float | None
    bound: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Line of the live display: the incumbent and the bound so far.

    Attributes
    ----------
    overhead_j, overhead_bound_j
        Figures in `unit`; None: not known yet.
    unit
        Unit of both figures: joules, unless something else than energy is minimised.
    """

    elapsed_s: float
    phase: str
    scope: str
    overhead_j: float | None
    overhead_bound_j: float | None
    unit: str = "J"


Listener = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Result of one solve. If `plan` is set, it has been laid out and accepted by the simulator.

    Attributes
    ----------
    scope
        Set of schedules that was searched, in which `scope_bound` is a bound: `depth<=D`, `forward`, `full`;
        `store-all` if keeping everything fits (then nothing can be cheaper).
    overhead_bound_j
        Overhead that no schedule at all is below; 0 if nothing better is known. None if infeasible, or if something
        else was minimised. `status` and gaps refer to it.
    scope_bound
        Value that no schedule in the scope is below; None if infeasible.
    outdone
        Whether the plan is better than anything in the scope, so that it lies outside. The scope's bound is then
        the plan's value.
    objective
        Quantity that was minimised instead of the simulator's energy, to which gaps then refer. None: that energy.
    least_ram_bytes, least_deadline_s
        For an infeasible problem: the smallest known feasible value, if any.
    ram_bound_bytes, deadline_bound_s
        Proven lower bounds on the RAM and the time of any schedule.
    timing
        Seconds by phase: layout, heuristics, build, relaxation, neighbourhoods, search.
    exhausted
        Without a plan: whether its scope is proven to have no usable schedule, so that more time finds none there.
        The status infeasible is about all plans.
    reason
        For status infeasible or unknown: the reason in words. Otherwise: the gap in a deeper scope, if any.
    why
        Without a plan: the requirements that bind, and what is possible without them, in sentences.
    interrupted
        Whether Ctrl-C ended the solve, or its search for remedies. The solution is what was known by then.
    """

    status: Status
    scope: str
    options: Options
    plan: Plan | None = None
    simulation: Simulation | None = None
    overhead_bound_j: float | None = None
    scope_bound: float | None = None
    outdone: bool = False
    objective: Objective | None = None
    arena_bytes: int | None = None
    store_all_peak_bytes: int = 0
    least_ram_bytes: int | None = None
    ram_bound_bytes: int | None = None
    least_deadline_s: float | None = None
    deadline_bound_s: float | None = None
    exhausted: bool = False
    reason: str = ""
    why: tuple[str, ...] = ()
    build_s: float = 0.0
    solve_s: float = 0.0
    total_s: float = 0.0
    timing: Mapping[str, float] = field(default_factory=dict)
    interrupted: bool = False
    trace: tuple[Progress, ...] = ()

    def __repr__(self) -> str:
        scope = f" in {self.scope}" if self.scope else ""
        return f"<Solution {self.status}{scope}: {self.plan!r}>"

    @property
    def _figures(self) -> tuple[float, float, float] | None:
        """Baseline, value and bound of the objective; None if one of them isn't known."""
        if self.simulation is None:
            return None
        baseline = self.simulation.energy_j - self.simulation.overhead_j
        value: float | None = self.simulation.overhead_j
        bound = self.overhead_bound_j
        if self.objective is not None:
            baseline, value, bound = self.objective.baseline, self.objective.value, self.objective.bound
        return None if value is None or bound is None else (baseline, value, bound)

    @property
    def overhead_gap(self) -> float | None:
        """(overhead - overhead bound) / overhead; 0 if the overhead is 0; None without a plan."""
        return None if self._figures is None else share_open(*self._figures[1:])

    @property
    def scope_bound_j(self) -> float | None:
        """`scope_bound` if the simulator's energy was minimised; else None."""
        return self.scope_bound if self.objective is None else None

    @property
    def scope_gap(self) -> float | None:
        """`overhead_gap` against the bound of the scope."""
        if self._figures is None or self.scope_bound is None:
            return None
        return share_open(self._figures[1], self.scope_bound)

    @property
    def gap(self) -> float | None:
        """(energy - bound) / energy, as the paper's solver measures it; None without a plan."""
        if self._figures is None:
            return None
        baseline, value, bound = self._figures
        total = baseline + value
        return max(0.0, (value - bound) / total) if total > 0 else 0.0
