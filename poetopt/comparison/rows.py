"""Rows of a comparison: the plan of one method at one budget, or the reason that there is none.

An option may hold several RAM budgets: `20%..100%/9`, `3MB..9MB/4`, `20%,35%,1MiB`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from poetopt.formulations.scope import proven_words
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import SIMULATED, Simulation, simulate
from poetopt.search.run import outdone
from poetopt.search.solution import Solution, Status, graded, share_open
from poetopt.util.errors import OptionError
from poetopt.util.figures import Figures
from poetopt.util.units import Share, parse_ram, parse_whole

MOST = 1000
"""Maximum number of budgets in a range."""


def parse_budgets(text: str, *, option: str = "--ram") -> tuple[int | Share, ...]:
    """Parse a list of budgets and ranges `LOW..HIGH/COUNT` (both ends included), in the given order.

    Raises OptionError for anything else, and for a range whose ends are neither both shares nor both sizes.
    """
    budgets: list[int | Share] = []
    for part in text.split(","):
        if not part.strip():
            raise OptionError(f"{option} '{text}': it has an empty budget. Give one like 40%, or several like 30%,50%.")
        ends, _, count = part.partition("/")
        low_text, dots, high_text = ends.partition("..")
        if not dots:
            if count:
                raise OptionError(f"{option} {text}: '/{count}' needs a range before it, as in 20%..100%/9")
            _check_range(part.strip(), option)
            budgets.append(parse_ram(part.strip(), option=option))
            continue
        try:
            steps = parse_whole(count, option=option, least=2, most=MOST) - 1
        except OptionError:
            raise OptionError(
                f"{option} {text}: the range lacks its number of budgets (2 to {MOST}). Add it, as in 20%..100%/9."
            ) from None
        low, high = parse_ram(low_text.strip(), option=option), parse_ram(high_text.strip(), option=option)
        if isinstance(low, Share) and isinstance(high, Share):
            budgets += [Share(low.fraction + (high.fraction - low.fraction) * k / steps) for k in range(steps + 1)]
        elif isinstance(low, int) and isinstance(high, int):
            budgets += [low + (high - low) * k // steps for k in range(steps + 1)]
        else:
            raise OptionError(f"{option} {text}: both ends must be percentages, or both sizes")
    return tuple(budgets)


def _check_range(text: str, option: str) -> None:
    """Raise OptionError for a range in another notation, such as `20%-100%` or `20%..100%`."""
    ends = re.fullmatch(r"(\S+?)\s*(?:-|–|:|to)\s*(\d\S*)", text)
    if ends is not None and "e" not in text.lower():
        raise OptionError(f"{option} {text}: write a range with its number of budgets, as in {ends[1]}..{ends[2]}/9")


def in_bytes(budgets: tuple[int | Share, ...], store_all_peak_bytes: int) -> tuple[int, ...]:
    """Return the distinct budgets in bytes, ascending."""
    # Rounded before truncation, so that 20%..100%/9 ends at exactly 100 %.
    sizes = {
        int(round(budget.fraction * store_all_peak_bytes, 6)) if isinstance(budget, Share) else budget
        for budget in budgets
    }
    return tuple(sorted(sizes))


FAILED = "failed"
"""Status of a heuristic without a plan though one may exist, and of a solve whose proof is incomplete."""


@dataclass(frozen=True, kw_only=True)
class ComparisonRow(Figures):
    """Result of a method at a budget; figures are None without a plan.

    Attributes
    ----------
    status
        `optimal`, `within-gap`, `feasible`, `infeasible` (proven of all plans that the method could make), or `failed`.
    reason
        Reason that there is no plan, or a note on the plan, or "".
    overhead_bound_j, overhead_gap
        Lower bound of the overhead of any schedule, and the gap to it, for methods with a proof in joules.
    scope, scope_bound_j, scope_gap
        Scope of the proof, with bound and gap of schedules in it.
    solve_s
        Seconds that the method took to schedule.
    beyond_scope
        Whether the plan lies outside of the scope, because it is better than any plan in it. The scope's bound is then
        the plan's own value.
    """

    method: str
    ram_budget_bytes: int
    status: str
    reason: str = ""
    energy_j: float | None = None
    overhead_j: float | None = None
    peak_bytes: int | None = None
    makespan_s: float | None = None
    recomputes: int | None = None
    page_ins: int | None = None
    page_outs: int | None = None
    bytes_paged: int | None = None
    scope: str | None = None
    overhead_bound_j: float | None = None
    overhead_gap: float | None = None
    scope_bound_j: float | None = None
    scope_gap: float | None = None
    solve_s: float = 0.0
    beyond_scope: bool = False


COLUMNS = tuple(field.name for field in fields(ComparisonRow))


def row_of_plan(method: str, ram_bytes: int, plan: Plan, solve_s: float) -> ComparisonRow:
    """Return the row of a method without a proof; its plan is simulated again, at the budget."""
    simulation = simulate(plan, ram_bytes=ram_bytes)
    # A plan without overhead is optimal without further proof.
    status = Status.OPTIMAL if simulation.overhead_j <= 0 else Status.FEASIBLE
    return ComparisonRow(
        method=method, ram_budget_bytes=ram_bytes, status=str(status), solve_s=solve_s, **simulated(simulation)
    )


def row_of_solution(method: str, ram_bytes: int, solution: Solution) -> ComparisonRow:
    """Return the row of a method with a proof; its plan is simulated again, at the budget."""
    if solution.plan is None:
        is_infeasible = solution.status is Status.INFEASIBLE
        # Scopes that cover all plans of the method; proofs in `store-all` hold for every schedule.
        is_exhaustive = solution.scope in ("full", "store-all")
        within = f"no schedule with {proven_words(solution.scope)} exists (proven). Wider scopes may have one."
        return ComparisonRow(
            method=method,
            ram_budget_bytes=ram_bytes,
            status=str(solution.status) if is_infeasible and is_exhaustive else FAILED,
            reason=within if is_infeasible and not is_exhaustive else solution.reason,
            scope=solution.scope,
            solve_s=solution.total_s,
        )
    return ComparisonRow(
        method=method,
        ram_budget_bytes=ram_bytes,
        status=str(solution.status),
        reason=solution.reason,
        scope=solution.scope,
        overhead_bound_j=solution.overhead_bound_j,
        overhead_gap=solution.overhead_gap,
        scope_bound_j=solution.scope_bound_j,
        scope_gap=solution.scope_gap,
        solve_s=solution.total_s,
        beyond_scope=solution.outdone,
        **simulated(simulate(solution.plan, ram_bytes=ram_bytes)),
    )


def bounded(overhead_j: float, bound_j: float, scope_bound_j: float, gap: float) -> dict[str, Any]:
    """Return status, bounds no higher than the plan, and gaps, by their keys."""
    bound, gap_to_bound = min(bound_j, overhead_j), share_open(overhead_j, bound_j)
    scope_bound = min(max(scope_bound_j, bound), overhead_j)
    return {
        "status": str(graded(gap_to_bound, gap)),
        "overhead_bound_j": bound,
        "overhead_gap": gap_to_bound,
        "scope_bound_j": scope_bound,
        "scope_gap": share_open(overhead_j, scope_bound),
        "beyond_scope": outdone(overhead_j, scope_bound_j),
    }


def about(problem: Problem, store_all_peak_bytes: int) -> dict[str, object]:
    """Return the figures of a problem that head comparisons and fronts."""
    return {
        "model": problem.name,
        "device": problem.device,
        "operators": len(problem.operators),
        "tensors": len(problem.tensors),
        "store_all_peak_bytes": store_all_peak_bytes,
        "baseline_energy_j": problem.baseline_energy_j,
        "baseline_time_s": problem.baseline_time_s,
    }


def simulated(simulation: Simulation) -> dict[str, Any]:
    """Return the figures of a simulation for rows and points, by their keys."""
    return {name: getattr(simulation, name) for name in SIMULATED}
