"""What a solve has proven of the scope that it searched."""

from __future__ import annotations

from poetopt.search.solution import OPTIMAL_GAP, Solution, Status, graded


def closed(solution: Solution) -> bool:
    """Whether no schedule of the scope costs less."""
    return solution.plan is not None and (solution.scope_gap or 0.0) <= OPTIMAL_GAP


def in_scope(solution: Solution) -> Status:
    """The status against the bound of the scope."""
    return solution.status if solution.plan is None else graded(solution.scope_gap, solution.options.gap)
