"""Every method on every budget, judged by one simulator.

Budgets are taken in ascending order, since a plan that fits one fits all larger ones: each method with a
proof starts from the best plans found so far, of all methods, that lie in its kind of space. POET comes last at each
budget, and may take the seconds that the other methods with a proof left of their limits there. A plan that is better
than POET's own answer becomes it.
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
"""Told the method and the budget that are at hand."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows in the order of budgets, then of methods.

    store_all_peak_bytes
        What percentages of RAM are of.
    plans
        By method and budget.
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
        """The object of `poetopt compare --json`."""
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

    budgets
        In bytes.
    methods
        Their names, or Baselines; all that there are by default.
    settings
        Deadline, time limit of one solve, gap.

    Raises OptionError for an unknown method.
    """
    begin = time.monotonic()
    found_of = {found.name: found for found in map(method, names() if methods is None else methods)}
    asked = tuple(found_of)
    chosen = sorted(found_of.values(), key=lambda found: (found.name == "poet", found.features.proof))
    run = _Comparing(problem, settings or Settings(), told or (lambda _name, _ram: None))
    for ram_bytes in sorted(set(budgets)):
        for found in chosen:
            run.one(found, ram_bytes)
    order = {name: place for place, name in enumerate(asked)}
    return Comparison(
        problem=problem,
        budgets=tuple(sorted(set(budgets))),
        methods=asked,
        store_all_peak_bytes=store_all_bytes(problem),
        deadline_s=run.settings.deadline_s,
        rows=tuple(sorted(run.rows, key=lambda row: (row.ram_budget_bytes, order[row.method]))),
        plans=run.plans,
        total_s=time.monotonic() - begin,
    )


@dataclass
class _Comparing:
    """Plans and rows found so far."""

    problem: Problem = field(repr=False)
    settings: Settings
    told: Told
    rows: list[ComparisonRow] = field(default_factory=list)
    plans: dict[tuple[str, int], Plan] = field(default_factory=dict)
    known: list[tuple[float, str, Plan]] = field(default_factory=list)
    """Overhead, method and plan, of all plans so far: they fit all budgets to come."""
    solved: dict[tuple[str, int], Solution] = field(default_factory=dict)
    spare_s: dict[int, float] = field(default_factory=dict)
    """By budget: what methods with a proof have left of their time limits."""

    def one(self, found: Baseline, ram_bytes: int) -> None:
        self.told(found.name, ram_bytes)
        refusal, unable = self._refusal(found, ram_bytes), found.unable(self.problem)
        if unable is not None:
            row = ComparisonRow(method=found.name, ram_budget_bytes=ram_bytes, status=FAILED, reason=unable)
        elif refusal is not None:
            row = ComparisonRow(method=found.name, ram_budget_bytes=ram_bytes, status="infeasible", reason=refusal)
        elif found.solve is None:
            row = self._heuristic(found, ram_bytes)
        else:
            row = self._exact(found, ram_bytes)
        self.rows.append(row)

    def _refusal(self, found: Baseline, ram_bytes: int) -> str | None:
        """The reason that none of a method's plans can keep the budget, where that is plain from sums."""
        features = found.features
        asked = options(ram_bytes, self.settings, paging=features.paging, remat=features.remat)
        refusal = impossible(self.problem, asked)
        if refusal is not None:
            return refusal["reason"]
        if features.proof:  # says it itself, and of which scope
            return None
        step = hardest_step(self.problem, asked)
        if step.nbytes <= ram_bytes:
            return None
        name = self.problem.operators[step.operator].name
        without = "" if features.paging else " without paging"
        return f"operator {step.operator} '{name}' needs {step.nbytes:,} bytes{without}"

    def _heuristic(self, found: Baseline, ram_bytes: int) -> ComparisonRow:
        begin = time.monotonic()
        try:
            plan = found.schedule(self.problem, ram_bytes, self.settings)
        except (NoScheduleError, InfeasibleError) as error:
            # A method with one plan is proven not to fit by that plan.
            proven = isinstance(error, InfeasibleError) or found.name == "checkpoint-all"
            return ComparisonRow(
                method=found.name,
                ram_budget_bytes=ram_bytes,
                status="infeasible" if proven else FAILED,
                reason=str(error),
                solve_s=time.monotonic() - begin,
            )
        row = row_of_plan(found.name, ram_bytes, plan, time.monotonic() - begin)
        self._keep(found.name, ram_bytes, plan, row.overhead_j)
        return row

    def _exact(self, found: Baseline, ram_bytes: int) -> ComparisonRow:
        solution = self._solution(found, ram_bytes)
        row = row_of_solution(found.name, ram_bytes, solution)
        if found.name == "poet":
            row = self._adopted(row, ram_bytes, solution)
        elif solution.plan is not None:
            self._keep(found.name, ram_bytes, solution.plan, row.overhead_j)
        return row

    def _solution(self, found: Baseline, ram_bytes: int) -> Solution:
        """The method's, or that of another which solves the same program."""
        alike = found.name == "checkmate" and proportional(self.problem)
        twin = method("poet-remat-only") if alike else found
        limit, spare = self.settings.time_limit_s, self.spare_s.get(ram_bytes, 0.0)
        taken = 0.0
        if (twin.name, ram_bytes) not in self.solved:
            solve = twin.solve
            assert solve is not None
            settings = replace(self.settings, time_limit_s=limit + spare) if found.name == "poet" else self.settings
            solution = solve(self.problem, ram_bytes, settings, self._starts(found.features))
            self.solved[twin.name, ram_bytes] = solution
            taken = solution.total_s
        self.spare_s[ram_bytes] = spare + max(0.0, limit - taken)
        return self.solved[twin.name, ram_bytes]

    def _starts(self, features: Features) -> tuple[Schedule, ...]:
        found: list[Schedule] = []
        for _, _, plan in sorted(self.known, key=lambda entry: entry[0]):
            schedule = schedule_of(plan)
            if (schedule.page_ins and not features.paging) or (schedule.recomputes and not features.remat):
                continue
            if schedule not in found:
                found.append(schedule)
            # number of the best plans that a solve is offered
            if len(found) == 6:
                break
        # The best last: each is taken only where it improves on those before.
        return tuple(reversed(found))

    def _keep(self, name: str, ram_bytes: int, plan: Plan, overhead_j: float | None) -> None:
        assert overhead_j is not None
        self.plans[name, ram_bytes] = plan
        self.known.append((overhead_j, name, plan))

    def _adopted(self, row: ComparisonRow, ram_bytes: int, solution: Solution) -> ComparisonRow:
        """POET's row, with the best plan that any method has found at this budget or a smaller one."""
        plan = solution.plan
        best = min(self.known, key=lambda entry: entry[0], default=None)
        # relative: overheads are sums of floats
        if best is not None and (row.overhead_j is None or best[0] < row.overhead_j * (1 - 1e-9)):
            plan = best[2]
            taken = row_of_plan(row.method, ram_bytes, plan, row.solve_s)
            bound, of_scope = solution.overhead_bound_j or 0.0, solution.scope_bound_j or 0.0
            row = replace(
                taken,
                scope=solution.scope,
                reason=f"the plan is that of {best[1]}",
                **bounded(best[0], bound, of_scope, self.settings.gap),
            )
        if plan is not None:
            self._keep("poet", ram_bytes, plan, row.overhead_j)
        return row
