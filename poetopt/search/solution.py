"""The questions to the solve loop, and its answers."""

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
"""An `overhead_gap` up to this is called optimal."""


class Status(StrEnum):
    """The standing of an answer, the best first."""

    OPTIMAL = "optimal"
    WITHIN_GAP = "within-gap"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


def graded(gap: float | None, asked: float) -> Status:
    """The status of a plan with this gap, where `asked` is tolerated; None: nothing is proven."""
    if gap is None or gap > max(asked, OPTIMAL_GAP):
        return Status.FEASIBLE
    return Status.OPTIMAL if gap <= OPTIMAL_GAP else Status.WITHIN_GAP


def share_open(value: float, bound: float) -> float:
    """(value - bound) / value, 0 where there is nothing to save."""
    return 0.0 if value <= 0 else max(0.0, (value - bound) / value)


class DeadlineModel(StrEnum):
    """The quantity that a deadline bounds: the simulated makespan, or the sum of compute times (eq. 3 of the paper)."""

    MAKESPAN = "makespan"
    PAPER = "paper"

    def seconds(self, simulation: Simulation) -> float:
        """The seconds of a simulated plan that a deadline bounds."""
        return simulation.compute_s if self is DeadlineModel.PAPER else simulation.makespan_s


@dataclass(frozen=True, kw_only=True)
class Options:
    """One solve.

    ram_bytes
        The budget for everything that is not resident.
    deadline_s
        Bound on the step's time, or None.
    formulation
        Its name, or the object.
    backend
        Its name, or the object.
    scope
        `auto`, `depth:D`, `forward` or `full` (only `full` for the formulation `poet`).
    paging, remat
        False leaves the block out.
    gap
        Tolerance on the overhead gap.
    solver_options
        The solver's own options, by its own names.
    log
        A file to append what the solver prints to, or None.
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
        """The backend's name in results."""
        return self.backend if isinstance(self.backend, str) else self.backend.name

    @property
    def formulation_name(self) -> str:
        """The formulation's name in results."""
        return self.formulation if isinstance(self.formulation, str) else self.formulation.name

    @property
    def asks(self) -> tuple[str, ...]:
        """The demands of blocks beside the budget and the deadline, in words."""
        if isinstance(self.formulation, str):
            return ()
        return tuple(block.says for block in self.formulation.blocks if block.says)


RAM = "RAM"
"""The objective of `--with minimize=ram`: the budget in bytes."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The quantity that was minimised, where it isn't the energy that the simulator counts; figures in `unit`.

    baseline
        Of one compute of each operator.
    value, bound
        The plan's above the baseline, and what is proven that no schedule at all is below; None: not known.
    """

    name: str
    unit: str
    baseline: float
    value: float | None
    bound: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """A line of the live display: the incumbent and the bound so far (joules of overhead; None: not yet).

    unit
        Of both figures, where something else than energy is minimised.
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
    """The answer to one solve. Where `plan` is set it has been laid out and accepted by the simulator.

    scope
        The space that was searched, and in which `scope_bound` is a bound: `depth<=D`, `forward`, `full`;
        `store-all` where keeping everything fits (then nothing can be cheaper).
    overhead_bound_j
        No schedule at all has less overhead; 0 where nothing better is known. None if infeasible, and where something
        else was minimised. `status` and gaps are of this one.
    scope_bound
        No schedule in the scope has less, of what was minimised; None if infeasible.
    outdone
        Whether the plan is better than anything in the scope, so that it lies outside; the scope's bound is then its
        own value.
    objective
        What was minimised instead of the energy that the simulator counts; gaps are then of it. None: that energy.
    least_ram_bytes, least_deadline_s
        For an infeasible problem: the smallest that is feasible, where it was found.
    ram_bound_bytes, deadline_bound_s
        Proven lower bounds on the RAM and the time of any schedule.
    timing
        Seconds by phase: layout, heuristics, build, relaxation, neighbourhoods, search.
    exhausted
        Without a plan: whether its scope is proven to have none that can be used, so that more time finds none there.
        Infeasible is said of all plans.
    reason
        For status infeasible or unknown: why, in a sentence for people; else what a deeper scope left open, if any.
    why
        Without a plan: what binds, and what would be possible without it, in sentences.
    interrupted
        Ctrl-C cut the solve short, or the search for what would help: this is what was known by then.
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
        """Baseline, value and bound of what was minimised; None where one of them isn't known."""
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
        """(overhead - overhead bound) / overhead; 0 where the overhead is 0; None without a plan."""
        return None if self._figures is None else share_open(*self._figures[1:])

    @property
    def scope_bound_j(self) -> float | None:
        """`scope_bound` where energy was minimised as the simulator counts it."""
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
