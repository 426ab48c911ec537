"""One method at one budget: what it found, or why it found nothing.

Several RAM budgets in one option: `20%..100%/9`, `3MB..9MB/4`, `20%,35%,1MiB`.
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
"""Budgets in one option at most."""


def parse_budgets(text: str, *, option: str = "--ram") -> tuple[int | Share, ...]:
    """Budgets in the order given: a list, of single ones and of ranges `LOW..HIGH/COUNT`, both ends included.

    Raises OptionError for anything else, and for a range whose ends are not both shares or both sizes.
    """
    found: list[int | Share] = []
    for part in text.split(","):
        if not part.strip():
            raise OptionError(f"{option} '{text}': a budget in it is empty; give one, as in 40%, or several: 30%,50%")
        ends, _, count = part.partition("/")
        low_text, dots, high_text = ends.partition("..")
        if not dots:
            if count:
                raise OptionError(f"{option} {text}: '/{count}' counts the budgets of a range, as in 20%..100%/9")
            _check_range(part.strip(), option)
            found.append(parse_ram(part.strip(), option=option))
            continue
        try:
            steps = parse_whole(count, option=option, least=2, most=MOST) - 1
        except OptionError:
            raise OptionError(
                f"{option} {text}: say how many budgets the range has (2 to {MOST}), as in 20%..100%/9"
            ) from None
        low, high = parse_ram(low_text.strip(), option=option), parse_ram(high_text.strip(), option=option)
        if isinstance(low, Share) and isinstance(high, Share):
            found += [Share(low.fraction + (high.fraction - low.fraction) * k / steps) for k in range(steps + 1)]
        elif isinstance(low, int) and isinstance(high, int):
            found += [low + (high - low) * k // steps for k in range(steps + 1)]
        else:
            raise OptionError(f"{option} {text}: both ends must be percentages, or both sizes")
    return tuple(found)


def _check_range(text: str, option: str) -> None:
    """Refuse what was meant for a range, as `20%-100%` or `20%..100%`. Raises OptionError."""
    ends = re.fullmatch(r"(\S+?)\s*(?:-|–|:|to)\s*(\d\S*)", text)
    if ends is not None and "e" not in text.lower():
        raise OptionError(f"{option} {text}: a range is written {ends[1]}..{ends[2]}/9, with how many budgets it has")


def in_bytes(budgets: tuple[int | Share, ...], store_all_peak_bytes: int) -> tuple[int, ...]:
    """The budgets in bytes, without repetition, ascending."""
    # Rounded before it is cut: 20%..100%/9 has 100 %, not a hair less.
    sizes = {
        int(round(budget.fraction * store_all_peak_bytes, 6)) if isinstance(budget, Share) else budget
        for budget in budgets
    }
    return tuple(sorted(sizes))


FAILED = "failed"
"""The status of a heuristic that found no plan though one may exist, and of a solve that proved too little."""


@dataclass(frozen=True, kw_only=True)
class ComparisonRow(Figures):
    """A method at a budget. Figures are None where there is no plan.

    status
        `optimal`, `within-gap`, `feasible`, `infeasible` (proven of all plans that the method could make), or `failed`.
    reason
        Why there is no plan; of a plan, what has to be known of it; else empty.
    overhead_bound_j, overhead_gap
        Of a method with a proof in joules: no schedule has less overhead than the bound.
    scope, scope_bound_j, scope_gap
        The same of those in the scope.
    solve_s
        Seconds that the method took to schedule.
    beyond_scope
        Whether the plan is better than anything in the scope, so that it lies outside: the scope's bound is then its
        own value.
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
    """Of a method without a proof; its plan is simulated again, at the budget."""
    found = simulate(plan, ram_bytes=ram_bytes)
    # Nothing costs less than no overhead: that needs no other proof.
    status = Status.OPTIMAL if found.overhead_j <= 0 else Status.FEASIBLE
    return ComparisonRow(
        method=method, ram_budget_bytes=ram_bytes, status=str(status), solve_s=solve_s, **simulated(found)
    )


def row_of_solution(method: str, ram_bytes: int, solution: Solution) -> ComparisonRow:
    """Of a method with a proof; its plan is simulated again, at the budget."""
    if solution.plan is None:
        impossible = solution.status is Status.INFEASIBLE
        # scopes beyond which there is no plan of the method; `store-all` is of arguments that hold for every schedule
        whole = solution.scope in ("full", "store-all")
        within = f"no schedule with {proven_words(solution.scope)}, by proof; wider scopes may have one"
        return ComparisonRow(
            method=method,
            ram_budget_bytes=ram_bytes,
            status=str(solution.status) if impossible and whole else FAILED,
            reason=within if impossible and not whole else solution.reason,
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
    """Status, bounds that are no higher than the plan, and gaps, by their keys."""
    bound, open_ = min(bound_j, overhead_j), share_open(overhead_j, bound_j)
    of_scope = min(max(scope_bound_j, bound), overhead_j)
    return {
        "status": str(graded(open_, gap)),
        "overhead_bound_j": bound,
        "overhead_gap": open_,
        "scope_bound_j": of_scope,
        "scope_gap": share_open(overhead_j, of_scope),
        "beyond_scope": outdone(overhead_j, scope_bound_j),
    }


def about(problem: Problem, store_all_peak_bytes: int) -> dict[str, object]:
    """The figures of a problem that stand before those of comparisons and fronts."""
    return {
        "model": problem.name,
        "device": problem.device,
        "operators": len(problem.operators),
        "tensors": len(problem.tensors),
        "store_all_peak_bytes": store_all_peak_bytes,
        "baseline_energy_j": problem.baseline_energy_j,
        "baseline_time_s": problem.baseline_time_s,
    }


def simulated(found: Simulation) -> dict[str, Any]:
    """The figures of a simulation that rows and points have, by their keys."""
    return {name: getattr(found, name) for name in SIMULATED}
