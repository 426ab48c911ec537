"""One method at one budget: what it found, or why it found nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, TypedDict

from poetopt.formulations.scope import kind_words
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import Simulation, simulate
from poetopt.search.solution import OPTIMAL_GAP, Solution, Status, graded, share_open
from poetopt.util.units import show_share

FAILED = "failed"
"""The status of a heuristic that found no plan though one may exist, and of a solve that proved too little."""
WHOLE = ("full", "store-all")
"""Scopes beyond which there is no plan of the method; `store-all` is of arguments that hold for every schedule."""


@dataclass(frozen=True, kw_only=True)
class Row:
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

    def to_dict(self) -> dict[str, object]:
        """The row as JSON has it, keys in order."""
        return {name: getattr(self, name) for name in COLUMNS}


COLUMNS = tuple(field.name for field in fields(Row))


def row_of_plan(method: str, ram_bytes: int, plan: Plan, solve_s: float) -> Row:
    """Of a method without a proof; its plan is simulated again, at the budget."""
    found = simulate(plan, ram_bytes=ram_bytes)
    # Nothing costs less than no overhead: that needs no other proof.
    status = Status.OPTIMAL if found.overhead_j <= 0 else Status.FEASIBLE
    return Row(method=method, ram_budget_bytes=ram_bytes, status=str(status), solve_s=solve_s, **_figures(found))


def row_of_solution(method: str, ram_bytes: int, solution: Solution) -> Row:
    """Of a method with a proof; its plan is simulated again, at the budget."""
    if solution.plan is None:
        impossible = solution.status is Status.INFEASIBLE
        whole = solution.scope in WHOLE
        within = f"no schedule with {kind_words(solution.scope)}, by proof; wider scopes may have one"
        return Row(
            method=method,
            ram_budget_bytes=ram_bytes,
            status=str(solution.status) if impossible and whole else FAILED,
            reason=within if impossible and not whole else solution.reason,
            scope=solution.scope,
            solve_s=solution.total_s,
        )
    return Row(
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
        **_figures(simulate(solution.plan, ram_bytes=ram_bytes)),
    )


class Proven(Protocol):
    """What is proven of a row or of a point of a front."""

    @property
    def status(self) -> str: ...
    @property
    def scope(self) -> str | None: ...
    @property
    def overhead_gap(self) -> float | None: ...
    @property
    def scope_gap(self) -> float | None: ...
    @property
    def beyond_scope(self) -> bool: ...


def proof_words(found: Proven, *, gap: bool = True) -> str:
    """`optimal`; `feasible (20.7 % open), optimal in depth<=4`, where the scope is proven to less than all schedules.

    gap
        Whether to say what is open of all.
    """
    open_, of_scope = found.overhead_gap or 0.0, found.scope_gap
    words = f"{found.status} ({show_share(open_)} open)" if gap and open_ > OPTIMAL_GAP else found.status
    if of_scope is None or open_ <= OPTIMAL_GAP or of_scope >= open_ * (1 - OPTIMAL_GAP):
        return words
    if found.beyond_scope:
        return f"{words}, beats all of {found.scope}"
    return f"{words}, {'optimal' if of_scope <= OPTIMAL_GAP else f'{show_share(of_scope)} open'} in {found.scope}"


def status_of(overhead_j: float, bound_j: float, gap: float) -> tuple[str, float]:
    """Status and overhead gap of a plan against a bound."""
    open_ = share_open(overhead_j, bound_j)
    return str(graded(open_, gap)), open_


class _Figures(TypedDict):
    energy_j: float
    overhead_j: float
    peak_bytes: int
    makespan_s: float
    recomputes: int
    page_ins: int
    page_outs: int
    bytes_paged: int


def _figures(found: Simulation) -> _Figures:
    return _Figures(
        energy_j=found.energy_j,
        overhead_j=found.overhead_j,
        peak_bytes=found.peak_bytes,
        makespan_s=found.makespan_s,
        recomputes=found.recomputes,
        page_ins=found.page_ins,
        page_outs=found.page_outs,
        bytes_paged=found.bytes_paged,
    )
