"""Comparison of every method on every budget, evaluated by one simulator.

Budgets are taken in ascending order, because a plan that fits one budget fits all larger ones. Each method with a proof
starts from the best plans of all methods so far that lie in its space. POET runs last at each budget; it may use the
time that the other methods with a proof left of their limits there. A plan that is better than POET's own answer
replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from poetopt.comparison.baselines import Baseline, Features, method, names
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.baselines.checkmate import proportional
from poetopt.comparison.baselines.poet import options
from poetopt.comparison.rows import (
    FAILED,
    ComparisonRow,
    about,
    bounded,
    row_of_plan,
    row_of_solution,
)
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import schedule_of, store_all_bytes
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule
from poetopt.search.limits import hardest_step, impossible
from poetopt.search.solution import Solution
from poetopt.util import __version__
from poetopt.util.errors import InfeasibleError, NoScheduleError
from poetopt.util.figures import figures

Told = Callable[[str, int], None]
"""Called with the current method and budget."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows of a comparison, ordered by budget, then by method.

    Attributes
    ----------
    store_all_peak_bytes
        Reference of RAM percentages.
    plans
        Plans by method and budget.
    """

    problem: Problem = field(repr=False)
    budgets: tuple[int, ...]
    methods: tuple[str, ...]
    store_all_peak_bytes: int
    deadline_s: float | None
    rows: tuple[ComparisonRow, ...]
    plans: dict[tuple[str, int], Plan] = field(repr=False)
    total_s: float = 0.0

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.methods)} methods at {len(self.budgets)} budgets: {self.problem!r}>"

    def to_dict(self) -> dict[str, object]:
        """Return the object of `poetopt compare --json`."""
        return {
            **about(self.problem, self.store_all_peak_bytes),
            "resident_bytes": self.problem.resident_bytes,
            **figures(self, ("deadline_s", "rows", "total_s")),
            "version": __version__,
        }


def compare(
    problem: Problem,
    budgets: Sequence[int],
    methods: Sequence[str | Baseline] | None = None,
    settings: Settings | None = None,
    told: Told | None = None,
) -> Comparison:
    """Run methods at budgets.

    Parameters
    ----------
    budgets
        Budgets in bytes.
    methods
        Names or Baselines; by default all methods.
    settings
        Deadline, time limit of one solve, gap.

    Raises
    ------
    OptionError
        For an unknown method.
    """
    begin = time.monotonic()
    by_name = {baseline.name: baseline for baseline in map(method, names() if methods is None else methods)}
    method_names = tuple(by_name)
    ordered = sorted(by_name.values(), key=lambda baseline: (baseline.name == "poet", baseline.features.proof))
    run = _ComparisonRun(problem, settings or Settings(), told or (lambda _name, _ram: None))
    for ram_bytes in sorted(set(budgets)):
        for baseline in ordered:
            run.one(baseline, ram_bytes)
    order = {name: place for place, name in enumerate(method_names)}
    return Comparison(
        problem=problem,
        budgets=tuple(sorted(set(budgets))),
        methods=method_names,
        store_all_peak_bytes=store_all_bytes(problem),
        deadline_s=run.settings.deadline_s,
        rows=tuple(sorted(run.rows, key=lambda row: (row.ram_budget_bytes, order[row.method]))),
        plans=run.plans,
        total_s=time.monotonic() - begin,
    )


@dataclass
class _ComparisonRun:
    """Plans and rows so far."""

    problem: Problem = field(repr=False)
    settings: Settings
    told: Told
    rows: list[ComparisonRow] = field(default_factory=list)
    plans: dict[tuple[str, int], Plan] = field(default_factory=dict)
    known: list[tuple[float, str, Plan]] = field(default_factory=list)
    """Overhead, method and plan of all plans so far: they fit all later budgets."""
    solved: dict[tuple[str, int], Solution] = field(default_factory=dict)
    spare_s: dict[int, float] = field(default_factory=dict)
    """Unused seconds of the methods with a proof, by budget."""

    def one(self, baseline: Baseline, ram_bytes: int) -> None:
        self.told(baseline.name, ram_bytes)
        refusal, unable = self._infeasible_reason(baseline, ram_bytes), baseline.unable(self.problem)
        if unable is not None:
            row = ComparisonRow(method=baseline.name, ram_budget_bytes=ram_bytes, status=FAILED, reason=unable)
        elif refusal is not None:
            row = ComparisonRow(method=baseline.name, ram_budget_bytes=ram_bytes, status="infeasible", reason=refusal)
        elif baseline.solve is None:
            row = self._run_heuristic(baseline, ram_bytes)
        else:
            row = self._run_exact(baseline, ram_bytes)
        self.rows.append(row)

    def _infeasible_reason(self, baseline: Baseline, ram_bytes: int) -> str | None:
        """Return the reason that no plan of a method fits the budget, if sums prove it."""
        features = baseline.features
        search_options = options(ram_bytes, self.settings, paging=features.paging, remat=features.remat)
        refusal = impossible(self.problem, search_options)
        if refusal is not None:
            return refusal["reason"]
        if features.proof:  # its own proof names the scope
            return None
        step = hardest_step(self.problem, search_options)
        if step.nbytes <= ram_bytes:
            return None
        name = self.problem.operators[step.operator].name
        without = "" if features.paging else " without paging"
        return f"operator {step.operator} '{name}' needs {step.nbytes:,} bytes{without}"

    def _run_heuristic(self, baseline: Baseline, ram_bytes: int) -> ComparisonRow:
        begin = time.monotonic()
        try:
            plan = baseline.schedule(self.problem, ram_bytes, self.settings)
        except (NoScheduleError, InfeasibleError) as error:
            # If a method has only one plan, that plan proves infeasibility.
            is_proven = isinstance(error, InfeasibleError) or baseline.name == "checkpoint-all"
            return ComparisonRow(
                method=baseline.name,
                ram_budget_bytes=ram_bytes,
                status="infeasible" if is_proven else FAILED,
                reason=str(error),
                solve_s=time.monotonic() - begin,
            )
        row = row_of_plan(baseline.name, ram_bytes, plan, time.monotonic() - begin)
        self._record(baseline.name, ram_bytes, plan, row.overhead_j)
        return row

    def _run_exact(self, baseline: Baseline, ram_bytes: int) -> ComparisonRow:
        solution = self._solution(baseline, ram_bytes)
        row = row_of_solution(baseline.name, ram_bytes, solution)
        if baseline.name == "poet":
            row = self._with_best_plan(row, ram_bytes, solution)
        elif solution.plan is not None:
            self._record(baseline.name, ram_bytes, solution.plan, row.overhead_j)
        return row

    def _solution(self, baseline: Baseline, ram_bytes: int) -> Solution:
        """Return the solution of a method, or of another method that solves the same program."""
        is_equivalent = baseline.name == "checkmate" and proportional(self.problem)
        twin = method("poet-remat-only") if is_equivalent else baseline
        limit_s, spare_s = self.settings.time_limit_s, self.spare_s.get(ram_bytes, 0.0)
        used_s = 0.0
        if (twin.name, ram_bytes) not in self.solved:
            solve = twin.solve
            assert solve is not None
            settings = (
                replace(self.settings, time_limit_s=limit_s + spare_s) if baseline.name == "poet" else self.settings
            )
            solution = solve(self.problem, ram_bytes, settings, self._starts(baseline.features))
            self.solved[twin.name, ram_bytes] = solution
            used_s = solution.total_s
        self.spare_s[ram_bytes] = spare_s + max(0.0, limit_s - used_s)
        return self.solved[twin.name, ram_bytes]

    def _starts(self, features: Features) -> tuple[Schedule, ...]:
        schedules: list[Schedule] = []
        for _, _, plan in sorted(self.known, key=lambda entry: entry[0]):
            schedule = schedule_of(plan)
            if (schedule.page_ins and not features.paging) or (schedule.recomputes and not features.remat):
                continue
            if schedule not in schedules:
                schedules.append(schedule)
            # a solve gets at most six plans
            if len(schedules) == 6:
                break
        # The best comes last: a start is used only if it improves on those before.
        return tuple(reversed(schedules))

    def _record(self, name: str, ram_bytes: int, plan: Plan, overhead_j: float | None) -> None:
        assert overhead_j is not None
        self.plans[name, ram_bytes] = plan
        self.known.append((overhead_j, name, plan))

    def _with_best_plan(self, row: ComparisonRow, ram_bytes: int, solution: Solution) -> ComparisonRow:
        """Return POET's row with the best plan of any method at this budget or a smaller one."""
        plan = solution.plan
        best = min(self.known, key=lambda entry: entry[0], default=None)
        # relative: overheads are sums of floats
        if best is not None and (row.overhead_j is None or best[0] < row.overhead_j * (1 - 1e-9)):
            plan = best[2]
            simulated_row = row_of_plan(row.method, ram_bytes, plan, row.solve_s)
            bound, scope_bound = solution.overhead_bound_j or 0.0, solution.scope_bound_j or 0.0
            row = replace(
                simulated_row,
                scope=solution.scope,
                reason=f"the plan is that of {best[1]}",
                **bounded(best[0], bound, scope_bound, self.settings.gap),
            )
        if plan is not None:
            self._record("poet", ram_bytes, plan, row.overhead_j)
        return row
